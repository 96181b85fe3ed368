//! All decisions about MQTT, without a socket: bytes and time in, bytes and deadlines out.
//!
//! The event loop (or a test) opens connections, passes in received bytes, and once per turn asks to commit: stage,
//! append, settle, dispatch, catch up. Afterwards the connections hold what is to be sent. The engine owns connections,
//! sessions, subscriptions and timers; the log, the state store and the retained messages are shared. It never blocks,
//! except for log reads that miss the tail cache and for inline commits; both are bounded per turn.

mod ack;
mod aliases;
mod attach;
mod auth_gate;
mod authenticate;
mod authorize;
mod batch_cache;
mod candidate_cache;
mod catch_up;
mod charges;
mod client_log;
mod clients;
mod close;
mod commit;
mod connect;
mod connection;
mod connection_gauges;
mod deliver;
mod encode;
mod enhanced;
mod entries;
mod inline_commit_policy;
mod inline_vec;
mod latency;
mod lazy_box;
mod limits;
mod out;
mod ownership;
mod persist;
mod position;
mod publish;
mod qos2_inbound;
mod qos2_outbound;
mod quotas;
mod rates;
mod read_retry;
mod receipt;
mod receive;
mod replays;
mod resend;
mod retain_request;
mod retained;
mod retained_cursor;
mod router;
mod scheduler;
mod send_retained;
mod session;
mod session_bytes;
mod settings;
mod shared;
mod slab;
mod stage;
mod state_commit;
mod subscribe;
mod sys;
mod template;
#[cfg(test)]
mod tests;
mod tick;
mod timers;
mod topics;
mod turn_metrics;
mod will;
mod window;

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use headwater_log::faults::{Sabotage, is_sabotaged};
use headwater_log::{Class, Log, Offset, Partition};
use parking_lot::Mutex;

use crate::auth::AuthService;
use crate::metrics::Metrics;
use crate::peer::Peer;
use crate::state::StateStore;

pub use clients::{ClientsRequest, PAGE_MAX, PageQuery};
pub use connection::Connection;
pub use limits::Drain;
pub use out::{Out, SLICES_MAX};
pub use quotas::{Kind as QuotaKind, QuotaLimits};
pub use receive::ReadPlan;
pub use retain_request::{MESSAGES_MAX, RetainRequest};
pub use retained::Retained;
pub use session::Session;
pub use settings::Settings;
pub use turn_metrics::PauseCause;

use auth_gate::{AuthGate, Wake};
use client_log::ClientLog;
use connection_gauges::ConnectionGauges;
use latency::Latency;
use lazy_box::LazyBox;
use quotas::Quotas;
use rates::ActiveRates;
use router::Router;
use shared::Groups;
pub use slab::{Key, Slab};
use stage::{PartitionIndex, Stage};
use state_commit::StateCommits;
use sys::SysTree;
use template::Templates;
use timers::{Timer, Timers};
use topics::Topics;
use turn_metrics::TurnMetrics;

pub type ConnKey = Key<Connection>;
pub type SessionKey = Key<Session>;

/// The time of a turn, read once.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Milliseconds of a monotonic clock.
    pub mono_ms: u64,
    /// Unix microseconds, UTC.
    pub wall_us: i64,
}

/// Limits on the pool of out buffers: their number, and the size of one.
const POOL_MAX: usize = 1024;
const POOL_BUFFER_MAX: usize = 16 << 10;

pub struct Engine {
    log: Log,
    state: Arc<StateStore>,
    metrics: Arc<Metrics>,
    settings: Settings,
    auth_gate: AuthGate,
    /// Clients whose client id was not proved, as rules with `%c` require: how many since the last log line, and when
    /// the next line may be written.
    unproved_unlogged: u64,
    unproved_log_due_ms: u64,
    /// Bytes kept for clients that are not admitted yet; bounded like received bytes.
    unknown_bytes: Rc<Cell<usize>>,
    now: Now,
    conns: Slab<Connection>,
    sessions: Slab<Session>,
    /// Ordered, so that clients can be listed page by page.
    by_client: BTreeMap<Rc<str>, SessionKey>,
    router: Router,
    groups: Groups,
    quotas: Quotas,
    batch_cache: batch_cache::BatchCache,
    candidate_cache: candidate_cache::CandidateCache,
    /// For sessions that catch up.
    options_cache: topics::OptionsCache,
    topics: Topics,
    retained: Arc<Mutex<Retained>>,
    /// One per partition; the one of the internal partition stays empty, because the state store appends there.
    stages: Vec<Stage>,
    /// Per partition, the end of what was dispatched to the live sessions.
    dispatched: Vec<Offset>,
    timers: Timers,
    /// Connections with bytes to write.
    touched: Vec<ConnKey>,
    /// Connections closed in this turn.
    closed: Vec<ConnKey>,
    /// Connections that may be read again because their pause has ended.
    resumed: Vec<ConnKey>,
    /// Sessions with something to send besides the live stream, each at most once.
    runnable: VecDeque<SessionKey>,
    /// Sessions that wait to repeat a read that failed temporarily.
    read_retries: Vec<SessionKey>,
    /// Sessions whose cursors have to be checkpointed or that have receipts in progress, each at most once.
    dirty: Vec<SessionKey>,
    /// Entries of `dirty` left in this checkpoint.
    dirty_left: usize,
    /// Connections whose front acknowledgement waits for the internal partition, by offset.
    state_waits: VecDeque<(Offset, ConnKey)>,
    /// QoS 2 state on its way into the internal partition.
    state_commits: StateCommits,
    /// QoS 2 commands that clients have received and whose receipts are not durable yet; bounded by the windows.
    receipted: Vec<(SessionKey, u16)>,
    /// Packet ids of QoS 2 publishes in use, over all sessions.
    ids_in_use: usize,
    tenant_id_counts: qos2_inbound::TenantIdCounts,
    /// Number of sessions in the state store.
    stored_sessions: usize,
    /// Counted bytes of all sessions.
    session_bytes: u64,
    /// Sessions created since the start.
    lives: u64,
    /// Bytes reserved for large packets that are being received.
    reserved_bytes: usize,
    budget_waits: VecDeque<ConnKey>,
    /// Budget was freed since the connections that wait for it were last resumed.
    budget_freed: bool,
    pool: Vec<LazyBox<Vec<u8>>>,
    templates: Templates,
    /// Wills that were stored and are published, until their records are durable.
    published_wills: Vec<will::Published>,
    turn_metrics: TurnMetrics,
    payload_holders: out::PayloadHolders,
    /// Rates of the connections with recent traffic.
    active_rates: ActiveRates,
    /// Counts of the connected clients.
    connection_gauges: ConnectionGauges,
    latency: Latency,
    turn_at: Instant,
    sys: SysTree,
    client_log: ClientLog,
    /// While set, no client is admitted.
    drain: Option<Drain>,
    next_stamp: u64,
    /// A read stopped at its bound: the next turn must not sleep.
    more: bool,
    /// The client whose stored session was removed last.
    last_removed: Option<Rc<str>>,
    /// Source of assigned client ids.
    assigned: u64,
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
        let partitions = log.partitions().iter();
        let stages: Vec<Stage> = partitions
            .clone()
            .zip(1..)
            .map(|(partition, stamp)| Stage::new(partition.clone(), stamp))
            .collect();
        let dispatched = partitions
            .map(|partition| partition.high_watermark())
            .collect();
        let limits = (
            settings.mqtt.max_retained as usize,
            settings.mqtt.max_retained_bytes.0,
        );
        let retained = Retained::load(&log, &state, limits)?;
        let mut engine = Self {
            next_stamp: stages.len() as u64 + 1,
            stages,
            dispatched,
            retained: Arc::new(Mutex::new(retained)),
            log,
            state,
            metrics,
            quotas: Quotas::new(settings.quotas),
            settings,
            auth_gate: AuthGate::open(),
            unproved_unlogged: 0,
            unproved_log_due_ms: 0,
            unknown_bytes: Rc::default(),
            now,
            conns: Slab::default(),
            sessions: Slab::default(),
            by_client: BTreeMap::new(),
            router: Router::default(),
            groups: Groups::default(),
            batch_cache: batch_cache::BatchCache::default(),
            candidate_cache: candidate_cache::CandidateCache::default(),
            options_cache: topics::OptionsCache::default(),
            topics: Topics::new(),
            timers: Timers::default(),
            touched: Vec::new(),
            closed: Vec::new(),
            resumed: Vec::new(),
            runnable: VecDeque::new(),
            read_retries: Vec::new(),
            dirty: Vec::new(),
            dirty_left: 0,
            state_waits: VecDeque::new(),
            state_commits: StateCommits::default(),
            receipted: Vec::new(),
            ids_in_use: 0,
            tenant_id_counts: qos2_inbound::TenantIdCounts::default(),
            stored_sessions: 0,
            session_bytes: 0,
            lives: 0,
            reserved_bytes: 0,
            budget_waits: VecDeque::new(),
            budget_freed: false,
            pool: Vec::new(),
            templates: Templates::default(),
            published_wills: Vec::new(),
            turn_metrics: TurnMetrics::default(),
            payload_holders: out::PayloadHolders::default(),
            active_rates: ActiveRates::default(),
            connection_gauges: ConnectionGauges::default(),
            latency: Latency::default(),
            turn_at: Instant::now(),
            sys: SysTree::default(),
            client_log: ClientLog::default(),
            drain: None,
            more: false,
            last_removed: None,
            assigned: now.wall_us.unsigned_abs(),
        };
        engine.guard_retained();
        engine.restore_sessions();
        engine.restore_qos2_inbound()?;
        engine
            .timers
            .set(now.mono_ms + tick::CHECKPOINT_MS, Timer::Checkpoint);
        engine.start_sys();
        Ok(engine)
    }

    /// Requires authentication by this authority for new connections. `wake` makes the loop take a turn.
    pub fn set_auth(&mut self, auth_service: Arc<AuthService>, wake: Wake) {
        self.auth_gate = AuthGate::new(Some(auth_service), wake);
        self.renew_rights();
    }

    /// Begins a turn at this time.
    pub fn begin(&mut self, now: Now) {
        self.now = now;
        self.more = false;
        self.turn_at = Instant::now();
        self.groups.begin_turn();
        self.take_auth_updates();
    }

    /// Ends a turn: the sockets were given everything to send.
    pub fn end(&self) {
        self.metrics.detail.turns.observe(self.turn_at.elapsed());
    }

    /// Opens a new connection.
    pub fn open(&mut self, peer: Peer) -> ConnKey {
        let due_ms = self.now.mono_ms + self.settings.mqtt.connect_timeout.as_ms();
        let mut conn = Connection::new(peer, self.now.mono_ms);
        conn.silence_due_ms = due_ms;
        let key = self.conns.insert(conn);
        self.timers.set(due_ms, Timer::Silence(key));
        self.turn_metrics.opened += 1;
        key
    }

    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// Whether a turn is due although nothing is ready, because bounded work was left over.
    pub fn has_more(&self) -> bool {
        self.more || self.has_late() || self.groups.has_runnable() || !self.resumed.is_empty()
    }

    /// Whether there are sessions that can catch up now.
    pub fn has_late(&self) -> bool {
        !self.runnable.is_empty() || self.may_schedule_reads()
    }

    /// Whether the connection's session has more to send than the live stream.
    #[inline]
    pub fn is_catching_up(&self, key: ConnKey) -> bool {
        let session = self.conns.get(key).and_then(|conn| conn.session);
        let session = session.and_then(|session| self.sessions.get(session));
        session.is_some_and(Session::has_work)
    }

    /// Whether a partition has changed since the engine last checked, so that a turn is due.
    pub fn is_behind_log(&self) -> bool {
        let moved = self
            .stages
            .iter()
            .zip(&self.dispatched)
            .any(|(stage, dispatched)| {
                let partition = &stage.partition;
                stage.is_settleable(self.mark_of(stage))
                    || (partition.high_watermark() > *dispatched
                        && stage.pull_after_ms <= self.now.mono_ms
                        && partition.class() != Class::Internal)
            });
        let state_waits = self.state_waits.front();
        let mark = self.state_mark();
        moved
            || self.auth_gate.has_updates()
            || state_waits.is_some_and(|(offset, _)| mark >= *offset)
            || self.state_commits.is_settleable(mark)
    }

    /// The offset below which a partition's records may be acknowledged.
    fn mark_of(&self, stage: &Stage) -> Offset {
        if is_sabotaged(Sabotage::AckBeforeSync) {
            Offset(u64::MAX)
        } else if self.settings.ack_written {
            stage.partition.written()
        } else {
            stage.partition.high_watermark()
        }
    }

    /// Connections with bytes to write; get the bytes with [`Engine::out`].
    pub fn take_touched(&mut self) -> Vec<ConnKey> {
        std::mem::take(&mut self.touched)
    }

    /// If some sessions catch up, the touched connections of the others: they need not wait for the reads.
    pub fn take_touched_before_late(&mut self) -> Vec<ConnKey> {
        if !self.has_late() {
            return Vec::new();
        }
        let touched = std::mem::take(&mut self.touched);
        let (late, live) = touched
            .into_iter()
            .partition(|key| self.is_catching_up(*key));
        self.touched = late;
        live
    }

    /// Returns the emptied list for reuse in the next turn.
    pub fn return_touched(&mut self, mut list: Vec<ConnKey>) {
        list.clear();
        self.touched = list;
    }

    /// Closed connections; they are to be removed after a last write.
    pub fn take_closed(&mut self) -> Vec<ConnKey> {
        std::mem::take(&mut self.closed)
    }

    /// Connections that were paused and may be read again.
    pub fn take_resumed(&mut self) -> Vec<ConnKey> {
        std::mem::take(&mut self.resumed)
    }

    /// The socket is writable again.
    pub fn writable(&mut self, key: ConnKey) {
        if self.conns.get(key).is_some_and(|conn| conn.out_blocked) {
            self.touch(key);
        }
    }

    /// Adds a connection to the list of connections to write.
    fn touch(&mut self, key: ConnKey) {
        if let Some(conn) = self.conns.get_mut(key)
            && !conn.touched
        {
            conn.touched = true;
            self.touched.push(key);
        }
    }

    /// The connection and a buffer to append to, which is written at the end of the turn.
    fn writer(&mut self, key: ConnKey) -> Option<&mut Connection> {
        let conn = self.conns.get_mut(key)?;
        if conn.out.capacity() == 0
            && let Some(buffer) = self.pool.pop()
        {
            conn.out = buffer;
        }
        if !conn.touched {
            conn.touched = true;
            self.touched.push(key);
        }
        Some(conn)
    }

    /// Makes a session with something to send run in the next catch-up.
    fn wake_session(&mut self, key: SessionKey) {
        if self.sessions.get(key).is_some_and(Session::is_member) {
            self.wake_groups_of(key);
        }
        if let Some(session) = self.sessions.get_mut(key)
            && !session.queued
            && session.active
            && session.has_work()
        {
            session.queued = true;
            self.runnable.push_back(key);
        }
    }

    /// Partitions that clients can reach.
    fn data_partitions(&self) -> impl Iterator<Item = PartitionIndex> + use<> {
        let partitions: Vec<PartitionIndex> = self
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
        self.log.partitions().first()
    }

    /// The offset below which the internal partition is durable.
    fn state_mark(&self) -> Offset {
        self.state_partition()
            .map_or(Offset(0), Partition::high_watermark)
    }
}
