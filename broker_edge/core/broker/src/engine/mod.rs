//! All decisions about MQTT, without a socket: bytes and time in, bytes and deadlines out.
//!
//! The event loop (or a test) opens connections, passes in received bytes, and once per turn asks to commit: stage,
//! append, settle, dispatch, catch up. Afterwards the connections hold what is to be sent. The engine owns connections,
//! sessions, subscriptions and timers; the log, the state store and the retained messages are shared. It never blocks,
//! except for log reads that miss the tail cache and for inline commits; both are bounded per turn.

#[macro_use]
mod lend;

mod catch_up;
mod clients;
mod containers;
mod delivery;
mod due;
mod effects;
mod env;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
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
pub(crate) mod stored;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use headwater_log::{Log, RemovalGuard};
use headwater_mqtt::ReasonCode;
use parking_lot::Mutex;

use crate::auth::AuthService;
use crate::metrics::Metrics;
use crate::peer::Peer;
use crate::state::StateStore;

pub use containers::slab::{Generation, Key, Slab};
pub use env::Now;
pub use operate::clients_api::{ClientsRequest, PAGE_MAX, PageQuery};
pub use operate::retain_request::{MESSAGES_MAX, RetainRequest};
pub use operate::weigh_request::{TOPICS_MAX, WeighRequest};
pub use protocol::limits::Drain;
pub use protocol::receive::ReadPlan;
pub use quotas::{Kind as QuotaKind, QuotaLimits};
pub use retained::Retained;
pub use session::Session;
pub use session::connection::Connection;
pub use session::out::{Out, SLICES_MAX};
pub use session::pauses::Pause;
pub use settings::Settings;

use catch_up::{CatchUp, CatchingUp};
use clients::Clients;
use clients::timers::Timer;
use delivery::Delivery;
use delivery::dispatch::Dispatching;
use effects::{Cause, Effects};
use env::Env;
use ids::Waiter;
use ingest::Ingest;
use lifecycle::Lifecycle;
use lifecycle::tick::CHECKPOINT_MS;
use observe::{Count, Observe};
use operate::sys::SysTopics;
use protocol::Protocol;
use protocol::auth_gate::Wake;
use protocol::authorize::AuthUpdates;
use protocol::over_limit::Usage;
use protocol::receive::Receiving;
use qos2::{Acknowledging, Qos2};
use quotas::Quotas;
use retained::guard::guard;
use routing::Routing;
use session_store::Store;
use session_store::checkpoint::Checkpointing;
use shared_groups::Groups;

pub type ConnKey = Key<Connection>;
pub type SessionKey = Key<Session>;

/// Limit on timers per turn, so that timers of very many clients due at once do not block the loop.
const DUE_MAX: usize = 256;

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
    _removal_guards: Vec<RemovalGuard>,
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
        let mqtt = &settings.mqtt;
        let limits = (mqtt.max_retained as usize, mqtt.max_retained_bytes.0);
        let partitions = log.partitions().to_vec();
        let ingest = Ingest::new(&partitions, &settings);
        // Before the retained messages are read: what becomes durable meanwhile is dispatched later, and not left out.
        let delivery = Delivery::new(&partitions);
        let retained = Arc::new(Mutex::new(Retained::load(&log, &state, limits)?));
        let mut engine = Self {
            clients: Clients::default(),
            protocol: Protocol::default(),
            routing: Routing::default(),
            ingest,
            delivery,
            catch_up: CatchUp::default(),
            qos2: Qos2::default(),
            groups: Groups::default(),
            _removal_guards: guard(&partitions, &retained, &state),
            retained,
            store: Store::new(state, partitions.len()),
            quotas: Quotas::new(settings.quotas),
            observe: Observe::new(Arc::clone(&metrics), now.mono_ms),
            effects: Effects::default(),
            env: Env {
                log,
                partitions,
                settings,
                metrics,
                now,
            },
        };
        let authority = engine.protocol.authority();
        lend!(engine => Checkpointing).restore_sessions(authority);
        lend!(engine => Lifecycle).publish_left_wills();
        let held = lend!(engine => Checkpointing).restore_received()?;
        engine.qos2.restore(held);
        engine
            .clients
            .set_timer(now.mono_ms + CHECKPOINT_MS, Timer::Checkpoint);
        lend!(engine => SysTopics).start();
        Ok(engine)
    }

    /// Requires authentication by this authority for new connections. `wake` makes the loop take a turn.
    pub fn set_auth(&mut self, auth_service: Arc<AuthService>, wake: Wake) {
        lend!(self => AuthUpdates).begin(auth_service, wake);
        self.drain();
    }

    /// Begins a turn at this time.
    pub fn begin(&mut self, now: Now) {
        self.env.now = now;
        self.effects.begin_turn();
        self.observe.begin_turn();
        self.ingest.begin_turn(self.observe.turn_at());
        self.groups.begin_turn();
        self.routing.costly.begin_turn(now.mono_ms);
        lend!(self => AuthUpdates).take();
        self.drain();
    }

    /// Does what the step that ends here asks of higher parts.
    #[inline]
    fn drain(&mut self) {
        if !self.effects.is_empty() {
            lend!(self => Lifecycle).drain();
        }
    }

    /// Ends a turn: the sockets were given everything to send.
    pub fn end(&self) {
        self.observe.end_turn();
    }

    /// Opens a new connection.
    pub fn open(&mut self, peer: Peer) -> ConnKey {
        self.observe.count(Count::ConnectionsOpened, 1);
        self.clients.open(peer, &self.env)
    }

    /// Connections with bytes to write; get the bytes with [`Engine::out`].
    pub fn take_touched(&mut self) -> Vec<ConnKey> {
        self.clients.take_touched()
    }

    /// If some sessions catch up, the touched connections of the others: they need not wait for the reads.
    pub fn take_touched_before_late(&mut self) -> Vec<ConnKey> {
        if !self.has_late() {
            return Vec::new();
        }
        self.clients.take_touched_live()
    }

    /// Returns the emptied list for reuse in the next turn.
    pub fn return_touched(&mut self, list: Vec<ConnKey>) {
        self.clients.return_touched(list);
    }

    /// Closed connections; they are to be removed after a last write.
    pub fn take_closed(&mut self) -> Vec<ConnKey> {
        self.clients.take_closed()
    }

    /// Connections that were paused and may be read again.
    pub fn take_resumed(&mut self) -> Vec<ConnKey> {
        self.clients.take_resumed()
    }

    /// Some of them have to wait for the next turn.
    pub fn put_back_resumed(&mut self, rest: impl Iterator<Item = ConnKey>) {
        self.clients.put_back_resumed(rest);
    }

    /// The socket is writable again.
    pub fn writable(&mut self, key: ConnKey) {
        self.clients.touch_blocked(key);
    }

    /// Answers a request of an operator about clients.
    pub fn answer_clients(&mut self, request: ClientsRequest) {
        request.serve(lend!(self => Lifecycle));
    }

    /// Answers a Flight producer that is about to append retained messages.
    pub fn answer_retain(&mut self, request: RetainRequest) {
        let observe = &mut self.observe;
        request.serve(&self.env, &mut self.quotas, &self.retained, observe);
    }

    /// Answers a Flight producer that asks what its topics cost; returns whether that took much work.
    pub fn answer_weigh(&mut self, request: WeighRequest) -> bool {
        request.serve(&self.env, &mut self.routing, &self.clients, &self.groups)
    }

    /// Begins or ends maintenance: new clients are refused, and connected ones are closed, some in each turn.
    pub fn set_drain(&mut self, drain: Option<Drain>) {
        self.protocol.set_drain(drain, &mut self.observe);
    }

    /// Whether and how a readable connection is to be read.
    pub fn read_plan(&mut self, key: ConnKey) -> ReadPlan {
        lend!(self => Receiving).read_plan(key)
    }

    /// The connection's own buffer; received bytes are appended to it.
    pub fn held_mut(&mut self, key: ConnKey) -> Option<&mut Vec<u8>> {
        let conn = self.clients.conn_mut(key);
        conn.map(|conn| &mut conn.unparsed.bytes)
    }

    /// Parses the connection's own buffer: after a read into it, or when a pause ends. Returns whether the connection
    /// may be read.
    pub fn receive_held(&mut self, key: ConnKey) -> bool {
        lend!(self => Receiving).receive_held(key)
    }

    /// Handles the packets in `bytes` and keeps an incomplete rest. `is_news` if some bytes were just received.
    pub fn receive(&mut self, key: ConnKey, bytes: &[u8], is_news: bool) {
        lend!(self => Receiving).receive(key, bytes, is_news);
    }

    /// Divides what a turn may do among so many connections that may have something to read.
    pub fn share_turn(&self, connections: usize) {
        self.routing.share_turn(connections);
    }

    /// The work that the packets of the last [`Engine::receive`] made, as a part of what a turn may do.
    pub fn work_of_receive(&self) -> u64 {
        self.routing.turn_work()
    }

    /// Counts bytes received from the socket.
    pub fn count_received(&mut self, key: ConnKey, count: usize) {
        self.clients.count_received(key, count, &mut self.observe);
    }

    /// Counts connections that were refused.
    pub fn count_refused(&mut self, count: u64) {
        self.observe.count(Count::ConnectionsRefused, count);
    }

    /// The peer closed the socket, or it failed.
    pub fn lost(&mut self, key: ConnKey) {
        lend!(self => Lifecycle).close_now(key, Cause::Lost);
    }

    /// Forgets a connection whose socket is closed.
    pub fn remove(&mut self, key: ConnKey) {
        self.lost(key);
        self.clients.remove(key);
    }

    /// Closes every connection and tells MQTT 5 clients that the server is shutting down. Wills are published; delayed
    /// wills keep waiting, because they are stored and the next start restores them.
    pub fn close_all(&mut self) {
        lend!(self => Lifecycle).close_all();
    }

    /// Closes every connection because another node serves the clients from now on, and tells MQTT 5 clients which one.
    /// Nothing is stored: the log is not this node's to write any more.
    pub fn abandon(&mut self, server: Option<&str>) {
        self.env.settings.mqtt.server_reference = server.map(str::to_owned);
        let reason = match server {
            Some(_) => ReasonCode::UseAnotherServer,
            None => ReasonCode::ServerShuttingDown,
        };
        let keys: Vec<ConnKey> = self.clients.connections().map(|(key, _)| key).collect();
        for key in keys {
            let cause = Cause::Reason(reason);
            self.clients.close(key, cause, &self.env, &mut self.effects);
        }
    }

    /// Stores every persistent session, for a clean stop.
    pub fn store_all(&mut self) {
        lend!(self => Checkpointing).store_all();
        self.drain();
    }

    /// The bytes a connection has to send.
    pub fn out(&mut self, key: ConnKey) -> Out<'_> {
        self.clients.out(key)
    }

    /// Reports how much of [`Engine::out`] the socket took. The rest is sent when the socket is writable.
    pub fn written(&mut self, key: ConnKey, count: usize) {
        self.note_sent(key, count, true);
    }

    /// The same, when the socket took all of the part it was given: the sender continues with the rest itself.
    pub fn written_part(&mut self, key: ConnKey, count: usize) {
        self.note_sent(key, count, false);
    }

    fn note_sent(&mut self, key: ConnKey, count: usize, is_full: bool) {
        let of = (&self.env, &mut self.observe);
        if let Some(session) = self.clients.note_sent(key, count, is_full, of) {
            let waiter = Waiter::Session(session);
            self.catch_up
                .wake(waiter, &mut self.clients, &mut self.groups);
        }
    }

    /// Does the work that is due. Called before [`Engine::commit`], so that wills are appended in the same turn.
    pub fn tick(&mut self) {
        let now_ms = self.env.now.mono_ms;
        for _ in 0..DUE_MAX {
            match self.clients.pop_due(now_ms) {
                Some(Timer::Sys) => lend!(self => SysTopics).publish(),
                Some(timer) => lend!(self => Lifecycle).due(timer),
                None => return,
            }
            self.drain();
        }
        // The remaining timers run in the next turn.
        let next = self.clients.next_due_ms();
        let is_due = next.is_some_and(|due_ms| due_ms <= now_ms);
        self.effects.note_more(is_due);
    }

    /// The whole commit of a turn. Afterwards the connections hold what is to be sent.
    pub fn commit(&mut self) {
        self.commit_live();
        self.commit_late();
    }

    /// Appends, settles and dispatches: the work that publishers and the live stream wait for.
    pub fn commit_live(&mut self) {
        self.append_all();
        // As in Mosquitto, a publisher that also subscribes gets its message before the PUBACK of QoS 1, and after the
        // PUBREC of QoS 2.
        if self.ingest.look(&self.env) {
            self.settle();
            lend!(self => Dispatching).run();
        } else {
            lend!(self => Dispatching).run();
            self.settle();
        }
    }

    /// Lets sessions that are behind catch up, and does the rest of a turn's work.
    pub fn commit_late(&mut self) {
        lend!(self => CatchingUp).run();
        self.drain();
        // Receipts and wills staged above need not wait for another turn.
        self.append_all();
        lend!(self => Acknowledging).release_receipted();
        self.drain();
        lend!(self => Checkpointing).write_state_commit();
        self.drain();
        self.clients.copy_held_payloads();
        self.clients.wake_budget_waits(&self.env);
        lend!(self => SysTopics).send_pending();
        self.protocol
            .drain_some(&mut self.clients, &self.env, &mut self.effects);
        self.drain();
        self.observe
            .count(Count::SharedRightsChecks, self.groups.take_looks());
        let present = lend!(self => Usage).gauges(self.protocol.is_draining());
        self.observe.publish(present);
    }

    fn append_all(&mut self) {
        self.ingest.append_all(&self.env, &mut self.effects);
        self.drain();
    }

    fn settle(&mut self) {
        lend!(self => Acknowledging).settle();
        self.drain();
    }
}
