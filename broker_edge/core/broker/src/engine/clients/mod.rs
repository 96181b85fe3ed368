//! Connections and sessions, and the lists of those with work to do.

pub mod timers;

use std::collections::BTreeMap;
use std::rc::Rc;

use headwater_mqtt::{Property, encode};

use super::containers::lazy_box::LazyBox;
use super::effects::{Cause, Effect, Effects};
use super::env::Env;
use super::session::connection::Phase;
use super::session::out::PayloadHolders;
use super::{ConnKey, Connection, Session, SessionKey, Slab};

use timers::Timers;

#[derive(Default)]
pub struct Clients {
    pub(super) conns: Slab<Connection>,
    pub(super) sessions: Slab<Session>,
    /// Ordered, so that clients can be listed page by page.
    pub(super) by_client: BTreeMap<Rc<str>, SessionKey>,
    pub(super) timers: Timers,
    /// Connections with bytes to write.
    pub(super) touched: Vec<ConnKey>,
    /// Connections closed in this turn.
    pub(super) closed: Vec<ConnKey>,
    /// Connections that may be read again because their pause has ended.
    pub(super) resumed: Vec<ConnKey>,
    pub(super) pool: Vec<LazyBox<Vec<u8>>>,
    pub(super) payload_holders: PayloadHolders,
    /// Sessions created since the start.
    pub(super) lives: u64,
    /// Source of assigned client ids.
    pub(super) assigned: u64,
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
        self.session(*self.by_client.get(client_id)?)
    }

    /// The connection of a session.
    #[inline]
    pub(super) fn conn_of(&self, key: SessionKey) -> Option<ConnKey> {
        self.session(key)?.conn
    }

    /// Adds a connection to the list of connections to write.
    pub(super) fn touch(&mut self, key: ConnKey) {
        if let Some(conn) = self.conns.get_mut(key)
            && !conn.touched
        {
            conn.touched = true;
            self.touched.push(key);
        }
    }

    /// The connection and a buffer to append to, which is written at the end of the turn.
    pub(super) fn writer(&mut self, key: ConnKey) -> Option<&mut Connection> {
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

    /// Whether the CONNACK of an open connection has left.
    pub(super) fn has_connack(&self, key: ConnKey) -> bool {
        self.session_of(key).is_some_and(|session| session.active)
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
