//! What the loop has without an engine: the poll, the listeners, connections before their CONNECT, and the sockets.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::{Events, Poll, Token};

use crate::clock::now_us;
use crate::config::Config;
use crate::descriptors::{connections_room, open_files_max, pending_room};
use crate::engine::{ConnKey, Now};
use crate::metrics::{ConnectFailure, Metrics};
use crate::transport::{BoundListener, Stream};

use super::LoopWaker;
use super::admission::{PerAddress, Rate};
use super::arrivals::{Arrivals, Limits, Opened};
use super::commands::Commands;
use super::listener::{self, Listener};
use super::socket::Sockets;
use super::turn_share::TurnShare;

/// The most bytes read from one connection in a turn (I8).
pub const READ_BYTES_MAX: usize = 256 << 10;
const EVENTS_MAX: usize = 1024;

pub const WAKER: Token = Token(usize::MAX);
/// The token of the first listener; the others count down from it.
const LISTENER: Token = Token(usize::MAX - 1);
const LISTENERS_MAX: usize = 256;

pub struct Doors {
    poll: Poll,
    waker: Arc<LoopWaker>,
    pub commands: Commands,
    listeners: Vec<Listener>,
    arrivals: Arrivals,
    rate: Rate,
    pub per_address: PerAddress,
    /// Until this time no connection is accepted, because of a limit. On the engine's clock.
    accepts_from_ms: u64,
    /// The start of the turn, on the same clock.
    turn_ms: u64,
    pub sockets: Sockets,
    pub buffer: Vec<u8>,
    started: Instant,
    connections_max: usize,
    /// The number of connections that the file descriptors allow.
    connections_room: usize,
}

impl Doors {
    /// # Errors
    /// A listener cannot be registered with the poll.
    pub fn new(
        poll: Poll,
        waker: Arc<LoopWaker>,
        commands: Commands,
        bound: Vec<BoundListener>,
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
            buffer: vec![0; READ_BYTES_MAX],
            started: Instant::now(),
            connections_max,
            connections_room: usize::try_from(connections_room(open_files_max()))
                .unwrap_or(usize::MAX),
        })
    }

    /// Room for what one poll reports.
    pub fn events() -> Events {
        Events::with_capacity(EVENTS_MAX)
    }

    pub fn now(&self) -> Now {
        Now {
            mono_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            wall_us: now_us(),
        }
    }

    /// Begins a turn at this time.
    pub fn begin(&mut self, now: Now) {
        self.turn_ms = now.mono_ms;
    }

    /// Whether a turn is needed without any event.
    pub fn has_work(&self) -> bool {
        self.arrivals.has_work() || self.may_accept()
    }

    /// Polls without waiting.
    ///
    /// # Errors
    /// Of the poll.
    pub fn look(&mut self, events: &mut Events) -> io::Result<()> {
        self.poll.poll(events, Some(Duration::ZERO))
    }

    /// Waits for events, the waker or the next deadline. `is_behind`: asked once the waker works, whether there is work
    /// that was queued before it did. `next_ms`: a deadline of somebody else.
    ///
    /// # Errors
    /// Of the poll.
    pub fn sleep(
        &mut self,
        events: &mut Events,
        is_behind: impl FnOnce() -> bool,
        next_ms: Option<u64>,
    ) -> io::Result<()> {
        self.waker.sleeping.store(true, Ordering::SeqCst);
        // A thread that changed the log or sent a command before this line saw the loop awake and did not wake it.
        let timeout = if is_behind() || !self.commands.is_empty() {
            Some(Duration::ZERO)
        } else {
            self.timeout(next_ms)
        };
        let result = self.poll.poll(events, timeout);
        self.waker.sleeping.store(false, Ordering::SeqCst);
        result
    }

    fn timeout(&self, next_ms: Option<u64>) -> Option<Duration> {
        let now_ms = self.now().mono_ms;
        let accepts = self.listeners.iter().any(Listener::has_more);
        let due = next_ms
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

    /// Takes the event of a listener, of the waker or of a connection before its CONNECT; the token of any other.
    #[inline]
    pub fn take_event(&mut self, event: &Event) -> Option<Token> {
        match event.token() {
            WAKER => {}
            Token(number) if number > LISTENER.0 - LISTENERS_MAX => {
                if let Some(listener) = self.listeners.get_mut(LISTENER.0 - number) {
                    listener.ready();
                }
            }
            token => match Arrivals::key_of(token) {
                Some(key) => {
                    let is_ending = event.is_read_closed() || event.is_error();
                    self.arrivals.ready(key, is_ending, &mut self.per_address);
                }
                None => return Some(token),
            },
        }
        None
    }

    /// Accepts connections beside those that are `connected`. Returns how many were closed for the limit.
    pub fn accept(&mut self, connected: usize) -> u64 {
        let now_ms = self.turn_ms;
        let mut refused = 0;
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
                self.arrivals.share(places.saturating_sub(connected));
                let room = self.arrivals.has_room(now_ms).and_then(|()| {
                    let token = self.rate.take(now_ms);
                    token.map_err(|wait_ms| now_ms + wait_ms)
                });
                if let Err(from_ms) = room {
                    self.accepts_from_ms = from_ms;
                    return refused;
                }
                let Some((stream, address)) = listener.accept() else {
                    self.rate.give_back();
                    break;
                };
                self.arrivals.make_room(&mut self.per_address);
                if connected + self.arrivals.len() >= self.connections_max {
                    refused += 1;
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
        refused
    }

    /// The part of this turn that connections before their CONNECT may use, if any of them has work.
    pub fn begin_arrivals(&self) -> Option<TurnShare> {
        self.arrivals.has_work().then(|| self.arrivals.begin_turn())
    }

    /// Advances connections until one has its CONNECT, or their part of the turn is used up.
    pub fn next_opened(&mut self, turn: &mut TurnShare) -> Option<Opened> {
        let (buffer, per_address) = (&mut self.buffer, &mut self.per_address);
        self.arrivals.next(turn, buffer, self.turn_ms, per_address)
    }

    /// Lets go of the sockets that ended with an answer.
    pub fn end_arrivals(&mut self) {
        self.arrivals.forget_gone();
        for stream in self.arrivals.take_answered() {
            self.sockets.let_go(stream);
        }
    }

    /// Counts a connection that was closed before it reached an engine.
    pub fn count_failure(&self, kind: ConnectFailure, address: SocketAddr) {
        self.arrivals.count(kind, address);
    }

    /// Keeps the socket of a connection that has its CONNECT.
    ///
    /// # Errors
    /// It cannot be registered with the poll.
    pub fn insert(&mut self, key: ConnKey, stream: Stream) -> io::Result<()> {
        self.sockets.insert(key, stream, self.poll.registry())
    }

    /// Closes the socket of a connection.
    pub fn remove(&mut self, key: ConnKey) {
        self.sockets.remove(key, self.poll.registry());
        self.per_address.closed(key);
    }

    /// Reads and drops the input of sockets that were let go.
    pub fn drain_let_go(&mut self) {
        self.sockets.drain(&mut self.buffer);
    }
}
