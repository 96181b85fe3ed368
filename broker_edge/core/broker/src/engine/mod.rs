//! All decisions about MQTT, without a socket: bytes and time in, bytes and deadlines out.
//!
//! The event loop (or a test) opens connections, passes in received bytes, and once per turn asks to commit: stage,
//! append, settle, dispatch, catch up. Afterwards the connections hold what is to be sent. The engine owns connections,
//! sessions, subscriptions and timers; the log, the state store and the retained messages are shared. It never blocks,
//! except for log reads that miss the tail cache and for inline commits; both are bounded per turn.

mod catch_up;
mod clients;
mod commit;
mod containers;
mod delivery;
mod effects;
mod env;
mod ids;
mod ingest;
mod lifecycle;
mod observe;
mod operate;
mod protocol;
mod qos2;
mod quotas;
mod retained;
mod routing;
mod session;
mod session_store;
mod settings;
mod shared_groups;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Instant;

use headwater_log::faults::{Sabotage, is_sabotaged};
use headwater_log::{Class, Log, Offset, Partition};
use parking_lot::Mutex;

use crate::auth::AuthService;
use crate::metrics::Metrics;
use crate::peer::Peer;
use crate::state::StateStore;

pub use containers::slab::{Key, Slab};
pub use env::Now;
pub use observe::turn_metrics::PauseCause;
pub use operate::clients_api::{ClientsRequest, PAGE_MAX, PageQuery};
pub use operate::retain_request::{MESSAGES_MAX, RetainRequest};
pub use protocol::limits::Drain;
pub use protocol::receive::ReadPlan;
pub use quotas::{Kind as QuotaKind, QuotaLimits};
pub use retained::Retained;
pub use session::Session;
pub use session::connection::Connection;
pub use session::out::{Out, SLICES_MAX};
pub use settings::Settings;

use catch_up::CatchUp;
use clients::Clients;
use clients::timers::Timer;
use delivery::Delivery;
use effects::{Effect, Effects};
use env::Env;
use ids::PartitionIndex;
use ingest::Ingest;
use ingest::stage::Stage;
use lifecycle::tick::CHECKPOINT_MS;
use observe::Observe;
use protocol::Protocol;
use protocol::auth_gate::{AuthGate, Wake};
use qos2::Qos2;
use quotas::Quotas;
use routing::Routing;
use session_store::Store;
use shared_groups::Groups;

pub type ConnKey = Key<Connection>;
pub type SessionKey = Key<Session>;

pub struct Engine {
    env: Env,
    clients: Clients,
    protocol: Protocol,
    routing: Routing,
    ingest: Ingest,
    delivery: Delivery,
    catch_up: CatchUp,
    qos2: Qos2,
    groups: Groups,
    retained: Arc<Mutex<Retained>>,
    store: Store,
    quotas: Quotas,
    observe: Observe,
    effects: Effects,
}

impl Engine {
    /// Builds the engine on an open log and restores sessions, subscriptions and retained messages from it.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn new(
        settings: Settings,
        log: Log,
        state: Arc<StateStore>,
        metrics: Arc<Metrics>,
        now: Now,
    ) -> Result<Self, headwater_log::ReadError> {
        let limits = (
            settings.mqtt.max_retained as usize,
            settings.mqtt.max_retained_bytes.0,
        );
        let partitions = log.partitions().to_vec();
        let mut engine = Self {
            clients: Clients {
                assigned: now.wall_us.unsigned_abs(),
                ..Clients::default()
            },
            protocol: Protocol::default(),
            routing: Routing::default(),
            ingest: Ingest::new(&partitions),
            delivery: Delivery {
                dispatched: partitions.iter().map(Partition::high_watermark).collect(),
                ..Delivery::default()
            },
            catch_up: CatchUp::default(),
            qos2: Qos2::default(),
            groups: Groups::default(),
            retained: Arc::new(Mutex::new(Retained::load(&log, &state, limits)?)),
            store: Store::new(state),
            quotas: Quotas::new(settings.quotas),
            observe: Observe::default(),
            effects: Effects::default(),
            env: Env {
                log,
                partitions,
                settings,
                metrics,
                now,
            },
        };
        engine.guard_retained();
        engine.restore_sessions();
        engine.restore_qos2_inbound()?;
        engine
            .clients
            .timers
            .set(now.mono_ms + CHECKPOINT_MS, Timer::Checkpoint);
        engine.start_sys();
        Ok(engine)
    }

    /// Requires authentication by this authority for new connections. `wake` makes the loop take a turn.
    pub fn set_auth(&mut self, auth_service: Arc<AuthService>, wake: Wake) {
        self.protocol.auth_gate = AuthGate::new(Some(auth_service), wake);
        self.renew_rights();
    }

    /// Begins a turn at this time.
    pub fn begin(&mut self, now: Now) {
        debug_assert!(self.effects.is_empty(), "the last step was drained");
        self.env.now = now;
        self.effects.more = false;
        self.observe.turn_at = Instant::now();
        self.groups.begin_turn();
        self.take_auth_updates();
    }

    /// Does what the step that ends here asks of higher parts: a packet, a due timer, a connection that settled, an
    /// append, or a call from outside. The next step finds all of it done. A connection closes once, so this ends.
    #[inline]
    fn drain(&mut self) {
        while let Some(effect) = self.effects.pop() {
            match effect {
                Effect::Close(key, cause) => self.end_connection(key, &cause),
            }
        }
    }

    /// Ends a turn: the sockets were given everything to send.
    pub fn end(&self) {
        self.env
            .metrics
            .detail
            .turns
            .observe(self.observe.turn_at.elapsed());
    }

    /// Opens a new connection.
    pub fn open(&mut self, peer: Peer) -> ConnKey {
        let due_ms = self.env.now.mono_ms + self.env.settings.mqtt.connect_timeout.as_ms();
        let mut conn = Connection::new(peer, self.env.now.mono_ms);
        conn.silence_due_ms = due_ms;
        let key = self.clients.conns.insert(conn);
        self.clients.timers.set(due_ms, Timer::Silence(key));
        self.observe.turn_metrics.opened += 1;
        key
    }

    pub fn connections(&self) -> usize {
        self.clients.conns.len()
    }

    /// Whether a turn is due although nothing is ready, because bounded work was left over.
    pub fn has_more(&self) -> bool {
        self.effects.more
            || self.has_late()
            || self.groups.has_runnable()
            || !self.clients.resumed.is_empty()
    }

    /// Whether there are sessions that can catch up now.
    pub fn has_late(&self) -> bool {
        !self.catch_up.runnable.is_empty() || self.may_schedule_reads()
    }

    /// Whether the connection's session has more to send than the live stream.
    #[inline]
    pub fn is_catching_up(&self, key: ConnKey) -> bool {
        let session = self.clients.session_of(key);
        session.is_some_and(Session::has_work)
    }

    /// Whether a partition has changed since the engine last checked, so that a turn is due.
    pub fn is_behind_log(&self) -> bool {
        let moved = self
            .ingest
            .stages
            .iter()
            .zip(&self.delivery.dispatched)
            .any(|(stage, dispatched)| {
                let partition = &stage.partition;
                stage.is_settleable(self.mark_of(stage))
                    || (partition.high_watermark() > *dispatched
                        && stage.pull_after_ms <= self.env.now.mono_ms
                        && partition.class() != Class::Internal)
            });
        let state_waits = self.ingest.state_waits.front();
        let mark = self.state_mark();
        moved
            || self.protocol.auth_gate.has_updates()
            || state_waits.is_some_and(|(offset, _)| mark >= *offset)
            || self.store.state_commits.is_settleable(mark)
    }

    /// The offset below which a partition's records may be acknowledged.
    fn mark_of(&self, stage: &Stage) -> Offset {
        if is_sabotaged(Sabotage::AckBeforeSync) {
            Offset(u64::MAX)
        } else if self.env.settings.ack_written {
            stage.partition.written()
        } else {
            stage.partition.high_watermark()
        }
    }

    /// Connections with bytes to write; get the bytes with [`Engine::out`].
    pub fn take_touched(&mut self) -> Vec<ConnKey> {
        std::mem::take(&mut self.clients.touched)
    }

    /// If some sessions catch up, the touched connections of the others: they need not wait for the reads.
    pub fn take_touched_before_late(&mut self) -> Vec<ConnKey> {
        if !self.has_late() {
            return Vec::new();
        }
        let touched = std::mem::take(&mut self.clients.touched);
        let (late, live) = touched
            .into_iter()
            .partition(|key| self.is_catching_up(*key));
        self.clients.touched = late;
        live
    }

    /// Returns the emptied list for reuse in the next turn.
    pub fn return_touched(&mut self, mut list: Vec<ConnKey>) {
        list.clear();
        self.clients.touched = list;
    }

    /// Closed connections; they are to be removed after a last write.
    pub fn take_closed(&mut self) -> Vec<ConnKey> {
        std::mem::take(&mut self.clients.closed)
    }

    /// Connections that were paused and may be read again.
    pub fn take_resumed(&mut self) -> Vec<ConnKey> {
        std::mem::take(&mut self.clients.resumed)
    }

    /// The socket is writable again.
    pub fn writable(&mut self, key: ConnKey) {
        if self.clients.conn(key).is_some_and(|conn| conn.out_blocked) {
            self.clients.touch(key);
        }
    }

    /// Makes a session with something to send run in the next catch-up.
    fn wake_session(&mut self, key: SessionKey) {
        if self.clients.session(key).is_some_and(Session::is_member) {
            self.wake_groups_of(key);
        }
        if let Some(session) = self.clients.session_mut(key)
            && !session.queued
            && session.active
            && session.has_work()
        {
            session.queued = true;
            self.catch_up.runnable.push_back(key);
        }
    }

    /// Partitions that clients can reach.
    fn data_partitions(&self) -> impl Iterator<Item = PartitionIndex> + use<> {
        let partitions: Vec<PartitionIndex> = self
            .env
            .log
            .partitions()
            .iter()
            .filter(|partition| partition.class() != Class::Internal)
            .map(|partition| PartitionIndex::of(partition.id()))
            .collect();
        partitions.into_iter()
    }

    /// The internal partition, which stores the state of sessions.
    fn state_partition(&self) -> Option<&Partition> {
        self.env.log.partitions().first()
    }

    /// The offset below which the internal partition is durable.
    fn state_mark(&self) -> Offset {
        self.state_partition()
            .map_or(Offset(0), Partition::high_watermark)
    }
}
