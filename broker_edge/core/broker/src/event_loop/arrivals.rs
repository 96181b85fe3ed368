//! Connections before their CONNECT: their sockets and addresses, and limits on the time, memory and CPU that they
//! take.
//!
//! The engine learns of a connection when its CONNECT is complete. Until then it takes a slot here, has one deadline
//! for everything, and holds at most the bytes of a CONNECT; all of them together hold at most [`HELD_BYTES_MAX`], beyond
//! which the oldest of the address that holds the most is closed. TLS handshakes get only a part of each turn, so that a
//! storm of them takes longer instead of delaying connected clients.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use crate::engine::{Key, Slab};
use crate::metrics::{ConnectFailure, GaugePart, Metrics};
use crate::transport::{ListenerProtocol, Stream};

use super::admission::PerAddress;
use super::arrival::{Arrival, Step};
use super::failure::Failure;
use super::failure_log::FailureLog;
use super::held_bytes::{HeldBytes, Holder};
use super::turn_share::TurnShare;

pub type ArrivalKey = Key<Arrival>;

/// Set in the tokens of arrivals; slot numbers of connections stay below it.
const TOKEN_BIT: u64 = 1 << 31;
/// Limit of incomplete input over all arrivals. Most CONNECTs arrive in one piece and are never held.
const HELD_BYTES_MAX: usize = 8 << 20;
/// When this many handshakes wait for the CPU, further clients wait in the kernel's backlog, because they would only
/// time out here.
const HANDSHAKES_WAITING_MAX: usize = 64;
/// At most one in this many pending connections may be in a TLS handshake, which holds about 15 KiB; a silent
/// connection does not.
const HANDSHAKES_PART: usize = 4;
/// No connection is closed for another before it has had this much time.
const GRACE_MS: u64 = 1000;
/// This many may always be pending, however many clients are connected.
const PENDING_MIN: usize = 16;
/// How often to check for room again.
const ROOM_MS: u64 = 10;

pub struct Limits {
    pub pending_max: usize,
    pub connect_bytes_max: usize,
    pub timeout_ms: u64,
}

/// A connection that is ready for MQTT; the buffer begins with its first bytes.
pub struct Opened {
    pub arrival: Arrival,
    pub len: usize,
    pub more: bool,
}

pub struct Arrivals {
    arrivals: Slab<Arrival>,
    limits: Limits,
    /// See [`Arrivals::share`].
    room: usize,
    /// Arrivals in order of opening, which is also the order of their deadlines; some may be gone.
    by_age: VecDeque<ArrivalKey>,
    ready: VecDeque<ArrivalKey>,
    /// Arrivals whose next step may be part of a TLS handshake.
    ready_costly: VecDeque<ArrivalKey>,
    /// Arrivals in a TLS handshake, each of which holds the same.
    handshakes: HeldBytes,
    held: HeldBytes,
    /// Sockets that ended with an answer, kept open until it arrives.
    answered: Vec<Stream>,
    metrics: Arc<Metrics>,
    pending: GaugePart,
    failure_log: FailureLog,
}

impl Arrivals {
    pub fn new(limits: Limits, metrics: Arc<Metrics>) -> Self {
        Self {
            arrivals: Slab::default(),
            room: limits.pending_max,
            limits,
            by_age: VecDeque::new(),
            ready: VecDeque::new(),
            ready_costly: VecDeque::new(),
            handshakes: HeldBytes::default(),
            held: HeldBytes::default(),
            answered: Vec::new(),
            pending: GaugePart::of(&metrics.transport.pending),
            metrics,
            failure_log: FailureLog::default(),
        }
    }

    pub fn len(&self) -> usize {
        self.arrivals.len()
    }

    /// The arrival of a poll token, if the token is one of an arrival.
    pub fn key_of(token: Token) -> Option<ArrivalKey> {
        let bits = token.0 as u64;
        (bits & TOKEN_BIT != 0).then(|| ArrivalKey::from_bits(bits & !TOKEN_BIT))
    }

    /// Whether there is work without a poll event.
    pub fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.ready_costly.is_empty()
    }

    /// Whether new TLS clients should wait until earlier ones are served.
    pub fn is_storm(&self) -> bool {
        self.ready_costly.len() >= HANDSHAKES_WAITING_MAX
    }

    /// The earliest deadline.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let oldest = self.arrivals.get(*self.by_age.front()?);
        // If the oldest is gone, do not wait for it.
        Some(oldest.map_or(0, |oldest| oldest.opened_ms + self.limits.timeout_ms))
    }

    /// Sets the number of connections that fit besides the connected clients. Old arrivals are closed for new ones
    /// before all room is used up, so that the next client to connect finds a slot even if silent connections take the
    /// others.
    pub fn share(&mut self, room: usize) {
        self.room = room.clamp(PENDING_MIN, self.limits.pending_max.max(PENDING_MIN));
    }

    fn pending_max(&self) -> usize {
        self.limits.pending_max.min(self.room)
    }

    /// Whether one more may arrive, closing the oldest if needed; otherwise the time to ask again.
    pub fn has_room(&mut self, now_ms: u64) -> Result<(), u64> {
        if self.arrivals.len() < self.pending_max() {
            return Ok(());
        }
        self.forget_gone();
        let oldest = self.by_age.front().and_then(|key| self.arrivals.get(*key));
        let may_go_ms = oldest.map_or(0, |oldest| oldest.opened_ms + GRACE_MS);
        if may_go_ms > now_ms {
            return Err(may_go_ms.min(now_ms + ROOM_MS));
        }
        Ok(())
    }

    /// Closes the oldest if that is the only way to make room.
    pub fn make_room(&mut self, per_address: &mut PerAddress) {
        if self.arrivals.len() >= self.pending_max() {
            self.forget_gone();
            if let Some(oldest) = self.by_age.front().copied() {
                self.fail(oldest, ConnectFailure::Pending, per_address);
            }
        }
    }

    pub fn insert(
        &mut self,
        stream: TcpStream,
        address: SocketAddr,
        speaks: &Arc<ListenerProtocol>,
        now_ms: u64,
        registry: &Registry,
        per_address: &mut PerAddress,
    ) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let arrival = Arrival::new(Stream::plain(stream), Arc::clone(speaks), address, now_ms);
        if arrival.is_address_known() && !per_address.enter(address.ip()) {
            self.count(ConnectFailure::PerIp, address);
            return Ok(());
        }
        self.make_room(per_address);
        let key = self.arrivals.insert(arrival);
        let Some(arrival) = self.arrivals.get_mut(key) else {
            return Ok(());
        };
        let token = usize::try_from(key.to_bits() | TOKEN_BIT).map_err(io::Error::other)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        let socket = arrival.stream_mut().socket_mut();
        if let Err(error) = registry.register(socket, Token(token), interest) {
            self.remove(key, per_address);
            return Err(error);
        }
        self.by_age.push_back(key);
        Ok(())
    }

    /// Notes that the socket of an arrival is ready.
    pub fn ready(&mut self, key: ArrivalKey, is_ending: bool, per_address: &mut PerAddress) {
        let Some(arrival) = self.arrivals.get_mut(key) else {
            return;
        };
        arrival.is_ending |= is_ending;
        if arrival.stream_mut().flush().is_err() {
            return self.fail(key, ConnectFailure::Lost, per_address);
        }
        self.queue(key);
    }

    fn queue(&mut self, key: ArrivalKey) {
        if let Some(arrival) = self.arrivals.get_mut(key)
            && !std::mem::replace(&mut arrival.is_queued, true)
        {
            if arrival.is_costly() {
                self.ready_costly.push_back(key);
            } else {
                self.ready.push_back(key);
            }
        }
    }

    /// Closes the arrivals past their deadline.
    pub fn expire(&mut self, now_ms: u64, per_address: &mut PerAddress) {
        loop {
            self.forget_gone();
            let Some(oldest) = self.by_age.front().copied() else {
                break;
            };
            let opened_ms = self
                .arrivals
                .get(oldest)
                .map_or(0, |arrival| arrival.opened_ms);
            if opened_ms + self.limits.timeout_ms > now_ms {
                break;
            }
            self.fail(oldest, ConnectFailure::Timeout, per_address);
        }
        // A slow arrival must not retain the keys of later ones that are gone.
        if self.by_age.len() > 2 * self.arrivals.len() + 1024 {
            let arrivals = &self.arrivals;
            self.by_age.retain(|key| arrivals.get(*key).is_some());
        }
        self.pending.set(self.arrivals.len());
        self.failure_log.tell_left_out(now_ms);
    }

    /// Drops keys of gone arrivals from the front.
    pub fn forget_gone(&mut self) {
        while let Some(key) = self.by_age.front()
            && self.arrivals.get(*key).is_none()
        {
            self.by_age.pop_front();
        }
    }

    /// Starts a turn with its limits of steps and of handshake time.
    pub fn begin_turn(&self) -> TurnShare {
        TurnShare::new(self.ready.len(), self.ready_costly.len())
    }

    /// Takes steps until an arrival is ready for MQTT or the turn is over.
    pub fn next(
        &mut self,
        turn: &mut TurnShare,
        buffer: &mut [u8],
        now_ms: u64,
        per_address: &mut PerAddress,
    ) -> Option<Opened> {
        loop {
            let key = self.take_ready(turn)?;
            let Some(arrival) = self.arrivals.get_mut(key) else {
                continue;
            };
            arrival.is_queued = false;
            let (was_costly, was_known) = (arrival.is_costly(), arrival.is_address_known());
            let (was_handshaking, cost) = (arrival.is_handshaking(), arrival.cost);
            self.held
                .release(holder(key, arrival), arrival.held_bytes());
            let step = arrival.step(buffer, self.limits.connect_bytes_max);
            let arrival = self.arrivals.get(key)?;
            turn.spend(arrival.cost - cost);
            self.held.hold(holder(key, arrival), arrival.held_bytes());
            match (was_handshaking, arrival.is_handshaking()) {
                (false, true) => self.handshakes.hold(holder(key, arrival), 1),
                (true, false) => self.handshakes.release(holder(key, arrival), 1),
                _ => {}
            }
            if was_costly && !arrival.is_costly() && !matches!(step, Step::Failed(_)) {
                self.metrics.transport.handshakes.inc();
            }
            let ip = arrival.address.ip();
            if !was_known && arrival.is_address_known() && !per_address.enter(ip) {
                // It was not counted per address, so it must not be uncounted.
                self.count(ConnectFailure::PerIp, arrival.address);
                self.take(key);
                continue;
            }
            match step {
                Step::Wait => {}
                Step::Again => self.queue(key),
                Step::Open { len, more } => {
                    let arrival = self.take(key)?;
                    return Some(Opened { arrival, len, more });
                }
                Step::Failed(failure) => self.end(key, &failure, now_ms, per_address),
            }
            while self.held.total() > HELD_BYTES_MAX
                && let Some(greediest) = self.held.greediest()
            {
                self.fail(greediest, ConnectFailure::Pending, per_address);
            }
            // The oldest of the address that has the most: its new one is more likely to finish.
            if self.handshakes.len() > (self.limits.pending_max / HANDSHAKES_PART).max(1)
                && let Some(greediest) = self.handshakes.greediest()
            {
                self.fail(greediest, ConnectFailure::Pending, per_address);
            }
        }
    }

    fn take_ready(&mut self, turn: &mut TurnShare) -> Option<ArrivalKey> {
        if turn.take_plain() {
            return self.ready.pop_front();
        }
        if turn.take_costly() {
            return self.ready_costly.pop_front();
        }
        None
    }

    fn end(
        &mut self,
        key: ArrivalKey,
        failure: &Failure,
        now_ms: u64,
        per_address: &mut PerAddress,
    ) {
        if let Some(arrival) = self.arrivals.get(key) {
            self.metrics.transport.count_failure(failure.kind);
            if !failure.detail.is_empty() {
                let (listener, address) = (arrival.listener(), arrival.address);
                self.failure_log
                    .tell(failure.kind, &failure.detail, listener, address, now_ms);
            }
        }
        if let Some(arrival) = self.remove(key, per_address)
            && failure.is_answered
        {
            self.answered.push(arrival.into_stream().0);
        }
    }

    fn fail(&mut self, key: ArrivalKey, kind: ConnectFailure, per_address: &mut PerAddress) {
        if let Some(arrival) = self.remove(key, per_address) {
            self.count(kind, arrival.address);
        }
    }

    /// Counts a failed arrival.
    pub fn count(&self, kind: ConnectFailure, address: SocketAddr) {
        self.metrics.transport.count_failure(kind);
        tracing::debug!(%address, reason = kind.name(), "a connection was closed before its CONNECT");
    }

    fn remove(&mut self, key: ArrivalKey, per_address: &mut PerAddress) -> Option<Arrival> {
        let arrival = self.take(key)?;
        if arrival.is_address_known() {
            per_address.leave(arrival.address.ip());
        }
        Some(arrival)
    }

    fn take(&mut self, key: ArrivalKey) -> Option<Arrival> {
        let arrival = self.arrivals.remove(key)?;
        self.held
            .release(holder(key, &arrival), arrival.held_bytes());
        if arrival.is_handshaking() {
            self.handshakes.release(holder(key, &arrival), 1);
        }
        Some(arrival)
    }

    /// Sockets that ended with an answer.
    pub fn take_answered(&mut self) -> impl Iterator<Item = Stream> + use<'_> {
        self.answered.drain(..)
    }
}

fn holder(key: ArrivalKey, arrival: &Arrival) -> Holder {
    Holder {
        key,
        address: arrival.address.ip(),
        opened_ms: arrival.opened_ms,
    }
}
