//! The event loop's thread: listeners, sockets, poll and waker. It knows no packets; the engine knows no sockets.
//!
//! Sockets are registered once, edge-triggered in both directions. So a turn costs only the poll, one receive per
//! readable connection and one send per connection with output.

mod accept;
mod admission;
mod arrival;
mod arrivals;
mod commands;
mod failure;
mod failure_log;
mod listener;
mod read;
mod read_queue;
mod socket;
mod turn_share;
mod waker;
mod write;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};

use crate::clock::now_us;
use crate::config::Config;
use crate::descriptors::{connections_room, open_files_max, pending_room};
use crate::engine::{ConnKey, Engine, Now};
use crate::metrics::Metrics;
use crate::transport::BoundListener;

use admission::{PerAddress, Rate};
use arrivals::{Arrivals, Limits};
pub use commands::{AskError, Command, CommandSender, Commands, queue};
use listener::Listener;
use read_queue::ReadQueue;
use socket::Sockets;
pub use waker::LoopWaker;

/// The most bytes read from one connection in a turn (I8).
const READ_BYTES_MAX: usize = 256 << 10;
const EVENTS_MAX: usize = 1024;

pub const WAKER: Token = Token(usize::MAX);
/// The token of the first listener; the others count down from it.
const LISTENER: Token = Token(usize::MAX - 1);
const LISTENERS_MAX: usize = 256;

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
        config: &Config,
    ) -> io::Result<Self> {
        if bound.len() > LISTENERS_MAX {
            return Err(io::Error::other(
                "more than 256 listener addresses are configured",
            ));
        }
        let (mqtt, broker) = (&config.mqtt, &config.broker);
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
                Some(Command::Weigh(request)) => {
                    if self.engine.answer_weigh(request) {
                        return false;
                    }
                }
                Some(Command::Drain(drain)) => self.engine.set_drain(drain),
                None => return false,
            }
        }
        false
    }

    fn now(&self) -> Now {
        Now {
            mono_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            wall_us: now_us(),
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

    /// The clean stop: notifies clients, stores wills and sessions.
    fn stop(mut self) {
        self.engine.close_all();
        self.engine.commit();
        self.write();
        self.engine.store_all();
    }
}
