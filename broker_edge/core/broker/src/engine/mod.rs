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
mod stored;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use headwater_log::{Log, RemovalGuard};
use parking_lot::Mutex;

use crate::auth::AuthService;
use crate::metrics::Metrics;
use crate::peer::Peer;
use crate::state::StateStore;

pub use containers::slab::{Key, Slab};
pub use env::Now;
pub use operate::clients_api::{ClientsRequest, PAGE_MAX, PageQuery};
pub use operate::retain_request::{MESSAGES_MAX, RetainRequest};
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
use effects::{Effect, Effects};
use env::Env;
use ids::Waiter;
use ingest::Ingest;
use lifecycle::tick::CHECKPOINT_MS;
use observe::Observe;
use operate::clients_api::ClientsView;
use operate::sys::SysTopics;
use protocol::Protocol;
use protocol::auth_gate::Wake;
use protocol::authorize::AuthUpdates;
use qos2::Qos2;
use quotas::Quotas;
use retained::guard::guard;
use routing::Routing;
use session_store::Store;
use session_store::checkpoint::Checkpointing;
use shared_groups::Groups;
use shared_groups::membership::Membership;

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
        let limits = (
            settings.mqtt.max_retained as usize,
            settings.mqtt.max_retained_bytes.0,
        );
        let partitions = log.partitions().to_vec();
        let ingest = Ingest::new(&partitions);
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
        engine.publish_left_wills();
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
        debug_assert!(self.effects.is_empty(), "the last step was drained");
        self.env.now = now;
        self.effects.more = false;
        self.observe.begin_turn();
        self.ingest.begin_turn(self.observe.turn_at());
        self.groups.begin_turn();
        lend!(self => AuthUpdates).take();
        self.drain();
    }

    /// Does what the step that ends here asks of higher parts: a packet, a due timer, a connection that settled, an
    /// append, or a call from outside. The next step finds all of it done. A connection closes once, so this ends.
    #[inline]
    fn drain(&mut self) {
        while let Some(effect) = self.effects.pop() {
            match effect {
                Effect::Close(key, cause) => self.end_connection(key, &cause),
                Effect::Activated(key) => self.activate(key),
                Effect::Wake(key) => self.wake_session(key),
                Effect::Joined(key) => lend!(self => Checkpointing).store_session(key),
                Effect::Appended(outcome) => self.appended(outcome),
            }
        }
    }

    /// Ends a turn: the sockets were given everything to send.
    pub fn end(&self) {
        self.observe.end_turn();
    }

    /// Opens a new connection.
    pub fn open(&mut self, peer: Peer) -> ConnKey {
        let due_ms = self.env.now.mono_ms + self.env.settings.mqtt.connect_timeout.as_ms();
        let mut conn = Connection::new(peer, self.env.now.mono_ms);
        conn.silence_due_ms = due_ms;
        let key = self.clients.conns.insert(conn);
        self.clients.set_timer(due_ms, Timer::Silence(key));
        self.observe.turn_metrics.connections_opened += 1;
        key
    }

    pub fn connections(&self) -> usize {
        self.clients.conns.len()
    }

    /// Whether a turn is due although nothing is ready, because bounded work was left over.
    pub fn has_more(&self) -> bool {
        self.effects.more
            || self.has_late()
            || self.groups.runnable() > 0
            || self.clients.has_resumed()
    }

    /// Whether there are sessions that can catch up now.
    pub fn has_late(&self) -> bool {
        self.catch_up.has_late()
    }

    /// Whether the connection's session has more to send than the live stream.
    #[inline]
    pub fn is_catching_up(&self, key: ConnKey) -> bool {
        let session = self.clients.session_of(key);
        session.is_some_and(Session::has_work)
    }

    /// Whether a partition has changed since the engine last checked, so that a turn is due.
    pub fn is_behind_log(&self) -> bool {
        self.delivery.has_due(&self.env)
            || self.ingest.is_settleable(&self.env)
            || self.store.is_settleable()
            || self.protocol.has_auth_updates()
    }

    /// Connections with bytes to write; get the bytes with [`Engine::out`].
    pub fn take_touched(&mut self) -> Vec<ConnKey> {
        self.clients.touched.take()
    }

    /// If some sessions catch up, the touched connections of the others: they need not wait for the reads.
    pub fn take_touched_before_late(&mut self) -> Vec<ConnKey> {
        if !self.has_late() {
            return Vec::new();
        }
        let touched = self.clients.touched.take().into_iter();
        let (late, live) = touched.partition(|key| self.is_catching_up(*key));
        self.clients.touched.put_back(late);
        live
    }

    /// Returns the emptied list for reuse in the next turn.
    pub fn return_touched(&mut self, mut list: Vec<ConnKey>) {
        list.clear();
        self.clients.touched.put_back(list);
    }

    /// Closed connections; they are to be removed after a last write.
    pub fn take_closed(&mut self) -> Vec<ConnKey> {
        self.clients.take_closed()
    }

    /// Connections that were paused and may be read again.
    pub fn take_resumed(&mut self) -> Vec<ConnKey> {
        self.clients.take_resumed()
    }

    /// The socket is writable again.
    pub fn writable(&mut self, key: ConnKey) {
        if self.clients.conn(key).is_some_and(|conn| conn.out_blocked) {
            self.clients.touch(key);
        }
    }

    /// Answers a request of an operator about clients.
    pub fn answer_clients(&mut self, request: ClientsRequest) {
        let view = lend!(self => ClientsView);
        match request {
            ClientsRequest::List { query, answer } => drop(answer.send(view.page(&query))),
            ClientsRequest::Show { client_id, answer } => {
                drop(answer.send(view.detail(&client_id)));
            }
            ClientsRequest::Kick {
                client_id,
                ends_session,
                answer,
            } => drop(answer.send(self.kick(&client_id, ends_session))),
        }
    }

    /// Answers a Flight producer that is about to append retained messages.
    pub fn answer_retain(&mut self, request: RetainRequest) {
        let observe = &mut self.observe;
        request.serve(&self.env, &mut self.quotas, &self.retained, observe);
    }

    /// Begins or ends maintenance: new clients are refused, and connected ones are closed, some in each turn.
    pub fn set_drain(&mut self, drain: Option<Drain>) {
        self.protocol.set_drain(drain, &mut self.observe);
    }

    /// Updates the averages of `$SYS` and sends the values that changed.
    fn publish_sys(&mut self) {
        lend!(self => SysTopics).publish();
    }

    /// Sends what became durable to the live sessions and groups.
    fn dispatch(&mut self) {
        lend!(self => Dispatching).run();
    }

    /// Lets sessions and groups that are behind read on.
    fn catch_up(&mut self) {
        lend!(self => CatchingUp).run();
        self.drain();
    }

    /// Stores every persistent session, for a clean stop.
    pub fn store_all(&mut self) {
        lend!(self => Checkpointing).store_all();
        self.drain();
    }

    fn membership(&mut self) -> Membership<'_> {
        lend!(self => Membership)
    }

    /// Makes a session with something to send run in the next catch-up.
    fn wake_session(&mut self, key: SessionKey) {
        let waiter = Waiter::Session(key);
        self.catch_up
            .wake(waiter, &mut self.clients, &mut self.groups);
    }
}
