//! Connections and sessions, and the lists of those with work to do.

mod budget;
pub mod charges;
mod credentials;
mod out;
mod pace;
pub mod rates;
mod send_budget;
pub mod timers;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use headwater_mqtt::{Property, encode};

use crate::audit::Refused;
use crate::auth::{Access, Rights};
use crate::client_events::{ClientEvent, What};
use crate::peer::Peer;

use super::containers::once_queue::OnceQueue;
use super::containers::slab::Marks;
use super::effects::{Cause, Effect, Effects};
use super::env::Env;
use super::observe::connection_gauges::name_of;
use super::session::connection::Phase;
use super::session::pauses::Pause;
use super::{ConnKey, Connection, Session, SessionKey, Slab};

use budget::Budget;
use out::{Outgoing, PayloadHolders};
use rates::ActiveRates;
use send_budget::SendBudget;
use timers::{Timer, Timers};

#[derive(Default)]
pub struct Clients {
    conns: Slab<Connection>,
    sessions: Slab<Session>,
    /// Ordered, so that clients can be listed page by page.
    by_client: BTreeMap<Rc<str>, SessionKey>,
    timers: Timers,
    /// Connections closed in this turn.
    closed: Vec<ConnKey>,
    /// Connections that may be read again because their pause has ended.
    resumed: Vec<ConnKey>,
    /// Until when connections are taken to be paused for their work.
    costly_until_ms: u64,
    outgoing: Outgoing,
    /// Of what waits for the sockets.
    pub(super) send_budget: SendBudget,
    payload_holders: PayloadHolders,
    active_rates: ActiveRates,
    /// Of the bytes of large packets that are being received.
    budget: Budget,
}

impl Clients {
    #[inline]
    pub(super) fn conn(&self, key: ConnKey) -> Option<&Connection> {
        self.conns.get(key)
    }

    #[inline]
    pub(super) fn conn_mut(&mut self, key: ConnKey) -> Option<&mut Connection> {
        self.conns.get_mut(key)
    }

    #[inline]
    pub(super) fn session(&self, key: SessionKey) -> Option<&Session> {
        self.sessions.get(key)
    }

    #[inline]
    pub(super) fn session_mut(&mut self, key: SessionKey) -> Option<&mut Session> {
        self.sessions.get_mut(key)
    }

    #[inline]
    pub(super) fn pair(
        &mut self,
        session: SessionKey,
        conn: ConnKey,
    ) -> Option<(&mut Session, &mut Connection)> {
        Some((self.sessions.get_mut(session)?, self.conns.get_mut(conn)?))
    }

    /// A connection with its session, if it has one.
    #[inline]
    pub(super) fn conn_with_session(
        &mut self,
        key: ConnKey,
    ) -> Option<(&mut Connection, Option<&mut Session>)> {
        let conn = self.conns.get_mut(key)?;
        let session = conn.session.and_then(|key| self.sessions.get_mut(key));
        Some((conn, session))
    }

    /// A connection to change, and what finds sessions meanwhile.
    #[inline]
    pub(super) fn conn_beside_sessions<'a>(
        &'a mut self,
        key: ConnKey,
    ) -> Option<(
        &'a mut Connection,
        impl Fn(SessionKey) -> Option<&'a Session> + Copy,
    )> {
        let sessions = &self.sessions;
        let conn = self.conns.get_mut(key)?;
        Some((conn, |key| sessions.get(key)))
    }

    #[inline]
    pub(super) fn session_key(&self, key: ConnKey) -> Option<SessionKey> {
        self.conn(key)?.session
    }

    /// The session of a connection.
    pub(super) fn session_of(&self, key: ConnKey) -> Option<&Session> {
        self.session(self.session_key(key)?)
    }

    /// The same to change it.
    #[inline]
    pub(super) fn attached(&mut self, key: ConnKey) -> Option<(SessionKey, &mut Session)> {
        let session = self.session_key(key)?;
        Some((session, self.session_mut(session)?))
    }

    /// The session of a client.
    pub(super) fn by_id(&self, client_id: &str) -> Option<&Session> {
        self.session(self.key_by_id(client_id)?)
    }

    pub(super) fn key_by_id(&self, client_id: &str) -> Option<SessionKey> {
        self.by_client.get(client_id).copied()
    }

    /// The clients after an id, in the order of their ids.
    pub(super) fn after(&self, id: Option<&str>) -> impl Iterator<Item = (&Rc<str>, &Session)> {
        let after = id.map_or(Bound::Unbounded, Bound::Excluded);
        let keys = self.by_client.range::<str, _>((after, Bound::Unbounded));
        keys.filter_map(|(id, key)| Some((id, self.session(*key)?)))
    }

    /// Every connection, also those that are not open yet or closed in this turn.
    pub(super) fn connections(&self) -> impl Iterator<Item = (ConnKey, &Connection)> {
        self.conns.iter()
    }

    pub(super) fn connections_len(&self) -> usize {
        self.conns.len()
    }

    /// Every session, of connected and of disconnected clients.
    pub(super) fn sessions(&self) -> impl Iterator<Item = (SessionKey, &Session)> {
        self.sessions.iter()
    }

    /// Their keys, to change them one by one.
    pub(super) fn session_keys(&self) -> Vec<SessionKey> {
        self.sessions.keys().collect()
    }

    pub(super) fn sessions_len(&self) -> usize {
        self.sessions.len()
    }

    /// A session, and the marks of the lists that it is in.
    #[inline]
    pub(super) fn session_marked(&mut self, key: SessionKey) -> Option<(&mut Session, &mut Marks)> {
        self.sessions.get_marked(key)
    }

    /// Takes the first session that still exists from a list.
    #[inline]
    pub(super) fn pop_session<const MARK: u8>(
        &mut self,
        list: &mut OnceQueue<Session, MARK>,
    ) -> Option<SessionKey> {
        list.pop(&mut self.sessions)
    }

    /// Adds a session under its client id.
    pub(super) fn insert(&mut self, session: Session) -> SessionKey {
        let client_id = Rc::clone(&session.client_id);
        let key = self.sessions.insert(session);
        self.by_client.insert(client_id, key);
        key
    }

    pub(super) fn remove_session(&mut self, key: SessionKey) -> Option<Session> {
        let session = self.sessions.remove(key)?;
        if self.key_by_id(&session.client_id) == Some(key) {
            self.by_client.remove(&session.client_id);
        }
        Some(session)
    }

    /// The connection of a session.
    #[inline]
    pub(super) fn conn_of(&self, key: SessionKey) -> Option<ConnKey> {
        self.session(key)?.conn
    }

    /// Opens a connection, which has some time for its CONNECT.
    pub(super) fn open(&mut self, peer: Peer, env: &Env) -> ConnKey {
        let due_ms = env.now.mono_ms + env.settings.mqtt.connect_timeout.as_ms();
        let mut conn = Connection::new(peer, env.now.mono_ms);
        conn.silence_due_ms = due_ms;
        let key = self.conns.insert(conn);
        self.set_timer(due_ms, Timer::Silence(key));
        key
    }

    /// Ends a pause of reading. It was no silence of the client.
    pub(super) fn resume(&mut self, key: ConnKey, pause: Pause, env: &Env) {
        if let Some(conn) = self.conns.get_mut(key)
            && conn.pauses.end(pause)
        {
            conn.last_read_ms = env.now.mono_ms;
            self.resumed.push(key);
        }
    }

    pub(super) fn has_resumed(&self) -> bool {
        !self.resumed.is_empty()
    }

    #[cfg(test)]
    pub(super) fn closed(&self) -> &[ConnKey] {
        &self.closed
    }

    /// Connections closed in this turn.
    pub(super) fn take_closed(&mut self) -> Vec<ConnKey> {
        std::mem::take(&mut self.closed)
    }

    /// Connections whose pause has ended: they may be read again.
    pub(super) fn take_resumed(&mut self) -> Vec<ConnKey> {
        std::mem::take(&mut self.resumed)
    }

    /// They come before those that are resumed later.
    pub(super) fn put_back_resumed(&mut self, rest: impl Iterator<Item = ConnKey>) {
        self.resumed.splice(0..0, rest);
    }

    /// Whether the client of a session has this access to a topic (a filter, for [`Access::Subscribe`]).
    #[inline]
    pub(super) fn may(&self, session: SessionKey, access: Access, topic: &str) -> bool {
        self.session(session)
            .is_some_and(|session| session.may(access, topic))
    }

    /// Whether the CONNACK of an open connection has left.
    pub(super) fn has_connack(&self, key: ConnKey) -> bool {
        self.session_of(key).is_some_and(|session| session.active)
    }

    /// Audits what a client was refused, with the topic or filter if it is about one. `who` names a client that has no
    /// session yet.
    pub(super) fn refused(
        &self,
        key: ConnKey,
        who: Option<(&str, Option<&Rights>)>,
        (act, reason): (&'static str, &'static str),
        topic: Option<&str>,
        env: &Env,
    ) {
        let session = || {
            let session = self.session_of(key)?;
            Some((&*session.client_id, session.rights.as_deref()))
        };
        if let (Some(conn), Some((client_id, rights))) = (self.conn(key), who.or_else(session)) {
            let user = rights.and_then(Rights::user).map(|user| &**user);
            env.metrics.audit.refuse(&Refused {
                door: conn.peer.transport.interface(),
                act,
                reason,
                topic,
                user,
                address: Some(conn.peer.address().ip()),
                client_id: Some(client_id),
            });
            env.metrics.events.note(&ClientEvent {
                client_id,
                what: What::Refused,
                act: Some(act),
                reason,
                topic,
                user,
                address: Some(conn.peer.address()),
                version: Some(name_of(conn.version)),
            });
        }
    }

    /// Marks a connection as closed and tells an MQTT 5 client why, unless it waits for its CONNACK. Nothing is read or
    /// sent after that; what is in `out` may still be written in this turn. The effect does the rest.
    pub(super) fn close(&mut self, key: ConnKey, cause: Cause, env: &Env, effects: &mut Effects) {
        let told = cause.reason().filter(|_| self.has_connack(key));
        let Some(conn) = self.conns.get_mut(key) else {
            return;
        };
        if conn.phase == Phase::Closed {
            return;
        }
        conn.phase = Phase::Closed;
        let version = conn.version;
        if let (Some(reason), true) = (told, version.is_v5())
            && let Some(conn) = self.writer(key)
        {
            let reference = env.settings.reference_for(reason);
            let properties = reference.map(Property::ServerReference);
            encode::disconnect(&mut conn.out, version, reason, properties.as_slice());
        }
        self.closed.push(key);
        effects.push(Effect::Close(key, cause));
    }
}
