//! Closing a connection: what the client is told, what happens to its session, and when its will is published.

use std::collections::VecDeque;
use std::rc::Rc;

use headwater_mqtt::ReasonCode;
use headwater_mqtt::packet::disconnect::Disconnect;

use crate::engine::clients::charges::discharge;
use crate::engine::clients::timers::Timer;
use crate::engine::effects::Cause;
use crate::engine::ids::Waiter;
use crate::engine::ingest::own::{OwnRecord, OwnRecords};
use crate::engine::observe::Count;
use crate::engine::quotas::Kind;
use crate::engine::session::connection::Will;
use crate::engine::session::cursors::Cursor;
use crate::engine::session::{NEVER_EXPIRES, Offline};
use crate::engine::session_store::checkpoint::Checkpointing;
use crate::engine::shared_groups::is_shared;
use crate::engine::shared_groups::membership::Membership;
use crate::engine::{ConnKey, SessionKey};

use super::Lifecycle;

impl Lifecycle<'_> {
    /// Closes a connection; what follows from that is done when the step ends.
    pub fn close(&mut self, key: ConnKey, cause: Cause) {
        self.clients.close(key, cause, self.env, self.effects);
    }

    /// Closes a connection as a step of its own.
    pub fn close_now(&mut self, key: ConnKey, cause: Cause) {
        self.close(key, cause);
        self.drain();
    }

    /// Does what follows from the close of a connection.
    pub fn end_connection(&mut self, key: ConnKey, cause: &Cause) {
        let Some(conn) = self.clients.conn_mut(key) else {
            return;
        };
        let account = conn.account.take();
        let reserved = conn.unparsed.take().reserved;
        let keeps_will = !matches!(cause, Cause::Goodbye);
        let will = conn.extras.take().will.filter(|_| keeps_will);
        let (session, transport, version) = (conn.session, conn.peer.transport, conn.version);
        self.quotas.remove(account, Kind::Connections, 1);
        self.clients.give_back(reserved);
        if let Some(reason) = cause.reason() {
            self.observe.refuse("disconnect", reason);
        }
        // Only a connection that was open has a session.
        if let Some(session) = session {
            self.observe.leave(transport.name(), version);
            if let Some(conn) = self.clients.conn(key) {
                let (now_ms, session) = (self.env.now.mono_ms, self.clients.session_of(key));
                self.observe.log_disconnected(now_ms, conn, session, cause);
            }
            self.detach(session, key, will);
        }
    }

    /// Closes every connection and tells MQTT 5 clients that the server is shutting down. Wills are published; delayed
    /// wills keep waiting, because they are stored and the next start restores them.
    pub fn close_all(&mut self) {
        let conns = self.clients.connections();
        let keys: Vec<ConnKey> = conns.map(|(key, _)| key).collect();
        for key in keys {
            self.close_now(key, Cause::Reason(ReasonCode::ServerShuttingDown));
        }
    }

    /// The session loses its connection: it ends, or it falls behind in all partitions until the client is back.
    pub fn detach(&mut self, key: SessionKey, conn: ConnKey, will: Option<Box<Will>>) {
        let now = self.env.now;
        let Some(session) = self.clients.session_mut(key) else {
            return;
        };
        if session.conn != Some(conn) {
            return;
        }
        session.conn = None;
        session.active = false;
        self.catch_up.forget(Waiter::Session(key));
        if let Some(extras) = session.extras.present_mut() {
            extras.retained = VecDeque::new();
            session.extras.trim();
        }
        session.resend = None;
        let mut away = Offline::since(now.wall_us);
        if session.expiry_s != NEVER_EXPIRES {
            away.expiry_due_ms = now.mono_ms + u64::from(session.expiry_s) * 1000;
        }
        let expiry_due_ms = away.expiry_due_ms;
        session.offline = Some(away);
        if !session.subscriptions.is_empty() {
            self.routing.note_session(key, session.is_member());
        }
        if session.expiry_s == 0 {
            if let Some(will) = will {
                self.publish_will(key, &will);
            }
            self.end_session(key);
            return;
        }
        for partition in self.env.data_partitions() {
            let live_at = self.delivery.live_at(partition);
            session.behind.fall_behind(Cursor {
                qos0_from: live_at,
                ..Cursor::new(partition, live_at)
            });
        }
        session.is_unlisted = true;
        for held in session
            .subscriptions
            .iter()
            .filter(|held| !is_shared(&held.filter))
        {
            self.routing.unlist(&held.filter, key);
        }
        let is_member = session.is_member();
        if session.expiry_s != NEVER_EXPIRES {
            self.clients.set_timer(expiry_due_ms, Timer::Expiry(key));
        }
        match will {
            Some(will) if will.delay_s > 0 => self.await_will(key, will),
            Some(will) => self.publish_will(key, &will),
            None => {}
        }
        self.clients.recount_bytes(key, self.quotas);
        if is_member {
            lend!(self => Membership).give_back(key, false);
        }
        lend!(self => Checkpointing).store_session(key);
    }

    /// Removes a session and everything that depends on it.
    pub fn end_session(&mut self, key: SessionKey) {
        if let Some(session) = self.clients.session_mut(key)
            && let Some(away) = &mut session.offline
            && let Some((_, will)) = away.will.take()
        {
            // A will that the log does not accept now stays in the state store, and the next start publishes it.
            self.fire_will(key, will);
            if let Some(session) = self.clients.session_mut(key) {
                session.will_stored = false;
            }
        }
        lend!(self => Membership).leave_all(key);
        let Some(session) = self.clients.remove_session(key) else {
            return;
        };
        for subscription in &session.subscriptions {
            if is_shared(&subscription.filter) {
                continue;
            } else if session.is_unlisted {
                self.routing.remove_away(&subscription.filter);
            } else {
                self.routing.remove(&subscription.filter, key);
            }
        }
        self.qos2.forget(&session);
        if session.stored {
            self.store.forget(&session, self.quotas);
        }
        discharge(&session, self.quotas);
    }

    pub fn publish_will(&mut self, key: SessionKey, will: &Will) {
        let Some(session) = self.clients.session(key) else {
            return;
        };
        let (client_id, account) = (Rc::clone(&session.client_id), session.account);
        let may_publish = self.has_right_to_will(key, will);
        if self.env.refusal_of_name(&will.topic).is_some() || !may_publish {
            self.env
                .metrics
                .auth
                .publishes_denied
                .inc_by(u64::from(!may_publish));
            self.observe.count(Count::PublishesRefused, 1);
            return;
        }
        let retain = self.may_retain(account, will);
        lend!(self => OwnRecords).stage_own(&OwnRecord {
            topic: &will.topic,
            client_id: &client_id,
            key: None,
            qos: will.qos,
            retain,
            properties: &will.properties,
            payload: &will.payload,
        });
        self.effects.note_more(true);
    }

    pub fn handle_disconnect(&mut self, key: ConnKey, disconnect: &Disconnect<'_>) {
        let expiry_s = disconnect.properties.session_expiry_interval();
        if let (Some(expiry_s), Some((_, session))) = (expiry_s, self.clients.attached(key)) {
            if session.expiry_s == 0 && expiry_s != 0 {
                return self.close(key, Cause::Reason(ReasonCode::ProtocolError));
            }
            session.expiry_s = expiry_s.min(self.env.settings.mqtt.session_expiry_max_s());
        }
        let with_will = disconnect.reason != ReasonCode::NORMAL_DISCONNECTION;
        self.close(
            key,
            if with_will {
                Cause::GoodbyeWithWill
            } else {
                Cause::Goodbye
            },
        );
    }
}
