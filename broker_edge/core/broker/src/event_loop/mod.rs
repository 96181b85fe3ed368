//! The event loop's thread: listeners, sockets, poll and waker. It knows no packets; the engine knows no sockets.
//!
//! Sockets are registered once, edge-triggered in both directions. So a turn costs only the poll, one receive per
//! readable connection and one send per connection with output.

mod admission;
mod arrival;
mod arrivals;
mod commands;
mod failure_log;
mod listener;
mod read_queue;
mod socket;
mod write;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mio::{Events, Poll, Token, Waker};

use crate::config::{BrokerSettings, MqttSettings};
use crate::descriptors::{connections_room, open_files_max, pending_room};
use crate::engine::{ConnKey, Engine, Now, ReadPlan};
use crate::metrics::{ConnectFailure, Metrics};
use crate::transport::BoundListener;

use admission::{PerAddress, Rate};
use arrivals::{Arrivals, Limits, Opened};
pub use commands::{Command, CommandSender, Commands, queue};
use listener::Listener;
use read_queue::ReadQueue;
use socket::{Received, Sockets};

/// The most bytes read from one connection in a turn (I8).
const READ_BYTES_MAX: usize = 256 << 10;
/// The most bytes read from all connections in a turn. It bounds the staged records, and so the size of an append.
const TURN_BYTES_MAX: usize = 4 << 20;
const EVENTS_MAX: usize = 1024;
/// How often a turn polls for more input before a commit that blocks the loop. A poll costs a hundredth of a sync, and
/// input that arrives between polls shares the sync.
const LOOKS_MAX: usize = 4;

pub const WAKER: Token = Token(usize::MAX);
/// The token of the first listener; the others count down from it.
const LISTENER: Token = Token(usize::MAX - 1);
const LISTENERS_MAX: usize = 256;

/// Wakes the loop from other threads. Costs a system call only while the loop sleeps.
#[derive(Debug)]
pub struct LoopWaker {
    waker: Waker,
    sleeping: AtomicBool,
}

impl LoopWaker {
    pub fn new(waker: Waker) -> Self {
        Self {
            waker,
            sleeping: AtomicBool::new(false),
        }
    }

    /// Makes the loop take a turn soon. A loop that is awake checks again before it sleeps.
    pub fn wake(&self) {
        if self.sleeping.swap(false, Ordering::SeqCst)
            && let Err(error) = self.waker.wake()
        {
            tracing::error!(%error, "could not wake the loop");
        }
    }
}

pub struct EventLoop {
    poll: Poll,
    waker: Arc<LoopWaker>,
    commands: Commands,
    listeners: Vec<Listener>,
    arrivals: Arrivals,
    rate: Rate,
    per_address: PerAddress,
    /// Until this time no connection is accepted, because of a limit. On the engine's clock.
    accepts_from_ms: u64,
    /// The start of the turn, on the same clock.
    turn_ms: u64,
    sockets: Sockets,
    engine: Engine,
    readable: ReadQueue,
    buffer: Vec<u8>,
    started: Instant,
    connections_max: usize,
    /// The number of connections that the file descriptors allow.
    connections_room: usize,
}

/// The limits of the loop.
pub struct LoopSettings<'a> {
    pub mqtt: &'a MqttSettings,
    pub broker: &'a BrokerSettings,
}

impl EventLoop {
    /// # Errors
    /// A listener cannot be registered with the poll.
    pub fn new(
        poll: Poll,
        waker: Arc<LoopWaker>,
        commands: Commands,
        bound: Vec<BoundListener>,
        engine: Engine,
        metrics: Arc<Metrics>,
        settings: &LoopSettings<'_>,
    ) -> io::Result<Self> {
        if bound.len() > LISTENERS_MAX {
            return Err(io::Error::other(
                "more than 256 listener addresses are configured",
            ));
        }
        let LoopSettings { mqtt, broker } = settings;
        let connections_max = broker.max_connections as usize;
        let pending_max = broker.max_pending_connections as usize;
        if let Some(any) = bound.first() {
            listener::prepare_descriptors(&any.listener, connections_max);
        }
        let listeners = bound
            .into_iter()
            .enumerate()
            .map(|(index, bound)| Listener::new(bound, poll.registry(), Token(LISTENER.0 - index)))
            .collect::<io::Result<_>>()?;
        let limits = Limits {
            pending_max: pending_max.min(pending_room(open_files_max())),
            connect_bytes_max: mqtt.connect_bytes_max(),
            timeout_ms: mqtt.connect_timeout.as_ms(),
        };
        Ok(Self {
            poll,
            waker,
            commands,
            listeners,
            arrivals: Arrivals::new(limits, metrics),
            rate: Rate::new(broker.max_connect_rate),
            per_address: PerAddress::new(broker.max_connections_per_ip),
            accepts_from_ms: 0,
            turn_ms: 0,
            sockets: Sockets::default(),
            engine,
            readable: ReadQueue::default(),
            buffer: vec![0; READ_BYTES_MAX],
            started: Instant::now(),
            connections_max,
            connections_room: usize::try_from(connections_room(open_files_max()))
                .unwrap_or(usize::MAX),
        })
    }

    /// Runs turns until a stop command.
    pub fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS_MAX);
        loop {
            if let Err(error) = self.wait(&mut events)
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "the poll failed, the loop stops");
                return;
            }
            let now = self.now();
            self.turn_ms = now.mono_ms;
            self.engine.begin(now);
            self.readable.begin_turn();
            if self.handle_commands() {
                return self.stop();
            }
            self.take_events(&events);
            self.accept();
            self.promote();
            self.read();
            self.look_again(&mut events);
            self.engine.tick();
            self.engine.commit_live();
            self.write_live();
            self.engine.commit_late();
            self.write();
            self.engine.end();
            if self.engine.has_late() {
                // Without the yield the loop would keep its CPU for milliseconds, while live clients and kernel threads
                // wait.
                std::thread::yield_now();
            }
        }
    }

    /// Handles commands from other threads. Returns true for a stop command.
    fn handle_commands(&mut self) -> bool {
        for _ in 0..commands::TAKEN_MAX {
            match self.commands.take() {
                Some(Command::Stop) => return true,
                Some(Command::Clients(request)) => self.engine.answer_clients(request),
                Some(Command::Retain(request)) => self.engine.answer_retain(request),
                Some(Command::Drain(drain)) => self.engine.set_drain(drain),
                None => return false,
            }
        }
        false
    }

    fn now(&self) -> Now {
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Now {
            mono_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            wall_us: i64::try_from(wall.as_micros()).unwrap_or(i64::MAX),
        }
    }

    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        let busy = |this: &Self| {
            !this.readable.is_empty()
                || this.engine.has_more()
                || this.arrivals.has_work()
                || this.may_accept()
        };
        if busy(self) {
            return self.poll.poll(events, Some(Duration::ZERO));
        }
        self.waker.sleeping.store(true, Ordering::SeqCst);
        // A thread that changed the log or sent a command before this line saw the loop awake and did not wake it.
        let timeout = if self.engine.is_behind_log() || !self.commands.is_empty() {
            Some(Duration::ZERO)
        } else {
            self.timeout()
        };
        let result = self.poll.poll(events, timeout);
        self.waker.sleeping.store(false, Ordering::SeqCst);
        result
    }

    fn timeout(&self) -> Option<Duration> {
        let now_ms = self.now().mono_ms;
        let accepts = self.listeners.iter().any(Listener::has_more);
        let due = self
            .engine
            .next_deadline_ms()
            .into_iter()
            .chain(self.arrivals.next_deadline_ms())
            .chain(accepts.then_some(self.accepts_from_ms))
            .map(|due_ms| Duration::from_millis(due_ms.saturating_sub(now_ms)));
        let rests = self.listeners.iter().filter_map(Listener::rest);
        due.chain(self.sockets.linger()).chain(rests).min()
    }

    /// Whether connections may be waiting that will cause no event, and accepting is not paused.
    fn may_accept(&self) -> bool {
        self.listeners.iter().any(Listener::has_more) && self.accepts_from_ms <= self.now().mono_ms
    }

    fn take_events(&mut self, events: &Events) {
        for event in events {
            match event.token() {
                WAKER => {}
                Token(number) if number > LISTENER.0 - LISTENERS_MAX => {
                    if let Some(listener) = self.listeners.get_mut(LISTENER.0 - number) {
                        listener.ready();
                    }
                }
                token if let Some(key) = Arrivals::key_of(token) => {
                    let is_ending = event.is_read_closed() || event.is_error();
                    self.arrivals.ready(key, is_ending, &mut self.per_address);
                }
                token => {
                    let key = ConnKey::from_bits(token.0 as u64);
                    if event.is_writable() {
                        self.writable(key);
                    }
                    if event.is_read_closed() || event.is_error() {
                        self.sockets.mark_ending(key);
                    }
                    if event.is_readable() || event.is_read_closed() || event.is_error() {
                        self.want_read(key);
                    }
                }
            }
        }
    }

    fn writable(&mut self, key: ConnKey) {
        if let Err(error) = self.sockets.flush(key) {
            tracing::debug!(%error, "a send failed");
            self.engine.lost(key);
        }
        self.engine.writable(key);
    }

    fn want_read(&mut self, key: ConnKey) {
        if self.sockets.mark_readable(key) {
            self.readable.push(key, self.engine.is_catching_up(key));
        }
    }

    fn accept(&mut self) {
        let now_ms = self.turn_ms;
        self.arrivals.expire(now_ms, &mut self.per_address);
        for index in 0..self.listeners.len() {
            while self.accepts_from_ms <= now_ms {
                let listener = &mut self.listeners[index];
                if !listener.has_more()
                    || listener.speaks().tls.is_some() && self.arrivals.is_storm()
                {
                    break;
                }
                let places = self.connections_max.min(self.connections_room);
                self.arrivals
                    .share(places.saturating_sub(self.engine.connections()));
                let room = self.arrivals.has_room(now_ms).and_then(|()| {
                    let token = self.rate.take(now_ms);
                    token.map_err(|wait_ms| now_ms + wait_ms)
                });
                if let Err(from_ms) = room {
                    self.accepts_from_ms = from_ms;
                    return;
                }
                let Some((stream, address)) = listener.accept() else {
                    self.rate.give_back();
                    break;
                };
                self.arrivals.make_room(&mut self.per_address);
                if self.engine.connections() + self.arrivals.len() >= self.connections_max {
                    self.engine.count_refused();
                    self.arrivals.count(ConnectFailure::Limit, address);
                    continue;
                }
                let inserted = self.arrivals.insert(
                    stream,
                    address,
                    listener.speaks(),
                    now_ms,
                    self.poll.registry(),
                    &mut self.per_address,
                );
                if let Err(error) = inserted {
                    tracing::warn!(%error, "could not register a connection");
                }
            }
        }
    }

    /// Advances connections before their CONNECT, and passes those with a complete CONNECT to the engine.
    fn promote(&mut self) {
        if !self.arrivals.has_work() {
            return;
        }
        let now_ms = self.turn_ms;
        let mut turn = self.arrivals.begin_turn();
        while let Some(opened) =
            self.arrivals
                .next(&mut turn, &mut self.buffer, now_ms, &mut self.per_address)
        {
            self.open(opened);
        }
        self.arrivals.forget_gone();
        for stream in self.arrivals.take_answered() {
            self.sockets.let_go(stream);
        }
    }

    fn open(&mut self, opened: Opened) {
        let Opened { arrival, len, more } = opened;
        let is_ending = arrival.is_ending;
        let (stream, peer) = arrival.into_stream();
        let ip = peer.address().ip();
        let key = self.engine.open(peer);
        self.per_address.opened(key, ip);
        if let Err(error) = self.sockets.insert(key, stream, self.poll.registry()) {
            tracing::warn!(%error, "could not register a connection");
            self.per_address.closed(key);
            return self.engine.remove(key);
        }
        self.engine.count_received(key, len);
        self.engine.receive(key, &self.buffer[..len], true);
        if is_ending {
            self.sockets.mark_ending(key);
        }
        if more || is_ending {
            self.want_read(key);
        }
    }

    /// Reads ready connections in order, each at most once and all together within the limit of a turn.
    fn read(&mut self) {
        for key in self.engine.take_resumed() {
            if self.engine.receive_held(key) {
                self.want_read(key);
            }
        }
        let mut left = TURN_BYTES_MAX;
        let mut pass = self.readable.pass();
        while left > 0
            && let Some(key) = self.readable.next(&mut pass)
        {
            self.sockets.unmark_readable(key);
            let received = match self.engine.read_plan(key) {
                // It stays unread; the engine reports it in `take_resumed` when it may continue.
                ReadPlan::Wait => continue,
                ReadPlan::Shared { held, bytes_max } => self.read_shared(key, &held, bytes_max),
                ReadPlan::Own { wanted } => self.read_own(key, wanted.min(READ_BYTES_MAX)),
            };
            match received {
                Received::Bytes { count, more } => {
                    // A read without any MQTT bytes: WebSocket headers and pings cost as much as payloads.
                    let cost = if count == 0 { READ_BYTES_MAX } else { count };
                    left = left.saturating_sub(cost);
                    self.engine.count_received(key, count);
                    // Otherwise the socket is empty, and later input causes a new event.
                    if more {
                        self.want_read(key);
                    }
                }
                Received::Nothing => {}
                Received::Closed => self.engine.lost(key),
            }
        }
    }

    /// Reads input that has arrived since the turn began, if it would otherwise wait for a whole sync: publishers that
    /// were acknowledged together publish again while the first of them are read. Stops at the first poll without
    /// events.
    fn look_again(&mut self, events: &mut Events) {
        for _ in 0..LOOKS_MAX {
            if !self.engine.will_hold_up_several() {
                return;
            }
            // If the poll fails, it fails again at the start of the next turn, which handles the error.
            if self.poll.poll(events, Some(Duration::ZERO)).is_err() || events.is_empty() {
                return;
            }
            self.take_events(events);
            self.read();
        }
    }

    fn read_shared(&mut self, key: ConnKey, held: &[u8], bytes_max: usize) -> Received {
        self.buffer[..held.len()].copy_from_slice(held);
        let end = bytes_max.min(self.buffer.len());
        let received = self.sockets.receive(key, &mut self.buffer[held.len()..end]);
        let count = received.count();
        if count > 0 || !held.is_empty() {
            self.engine
                .receive(key, &self.buffer[..held.len() + count], count > 0);
        }
        received
    }

    fn read_own(&mut self, key: ConnKey, wanted: usize) -> Received {
        let Some(held) = self.engine.held_mut(key) else {
            return Received::Nothing;
        };
        let base = held.len();
        held.resize(base + wanted, 0);
        let received = self.sockets.receive(key, &mut held[base..]);
        let count = received.count();
        held.truncate(base + count);
        if count > 0 {
            self.engine.receive_held(key);
        }
        received
    }

    /// The clean stop: notifies clients, stores wills and sessions.
    fn stop(mut self) {
        self.engine.close_all();
        self.engine.commit();
        self.write();
        self.engine.store_all();
    }
}
