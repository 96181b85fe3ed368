//! Attaches a client to its session: an existing one or a new one.

use headwater_mqtt::{Connect, PacketId, ReasonCode};

use crate::engine::effects::Cause;
use crate::engine::routing::router::Subscriber;
use crate::engine::session::cursors::Cursor;
use crate::engine::session::{Offline, Session};
use crate::engine::shared_groups::is_shared;
use crate::engine::{ConnKey, SessionKey};

use super::Lifecycle;

/// The state of a session before its client came back.
pub struct PreviousState {
    expiry_s: u32,
    offline: Option<Box<Offline>>,
}

impl Lifecycle<'_> {
    /// Refuses a CONNECT whose state cannot be stored. An existing session stays, with everything it holds for its
    /// client; the client is expected to connect again.
    pub fn undo_attach(&mut self, key: SessionKey, conn: ConnKey, before: Option<PreviousState>) {
        let Some(before) = before else {
            return self.end_session(key);
        };
        if let Some(session) = self.clients.session_mut(key) {
            session.expiry_s = before.expiry_s;
        }
        self.detach(key, conn, None);
        if let (Some(session), Some(away)) = (self.clients.session_mut(key), before.offline) {
            session.offline = Some(away);
        }
        self.clients.recount_bytes(key, self.quotas);
    }

    /// The session of a connecting client, and its previous state if it existed. An earlier connection of the client is
    /// closed.
    pub fn session_for(
        &mut self,
        key: ConnKey,
        connect: &Connect<'_>,
        client_id: &str,
    ) -> (SessionKey, Option<PreviousState>) {
        let expiry_s = self.env.settings.expiry_of(connect);
        let window_max = connect
            .properties
            .receive_maximum()
            .unwrap_or(u16::MAX)
            .min(self.env.settings.mqtt.max_inflight);
        let mut found = self.clients.key_by_id(client_id);
        if let Some(session) = found {
            let old = self.clients.conn_of(session);
            if let Some(old) = old {
                self.close_now(old, Cause::Reason(ReasonCode::SessionTakenOver));
            }
            if connect.clean_start {
                if let Some(session) = self.clients.session(session) {
                    self.observe.note_ended(session, "clean start");
                }
                self.end_session(session);
            }
            found = self.clients.key_by_id(client_id);
        }
        let was_there = found.is_some();
        let session_key = found.unwrap_or_else(|| {
            let life = self.store.unique_number();
            let session = Session::new(client_id.into(), connect.version, life);
            self.clients.insert(session)
        });
        let mut before = None;
        if let Some(session) = self.clients.session_mut(session_key) {
            // The client is back before its will was due.
            let offline = session.offline.take();
            before = was_there.then_some(PreviousState {
                expiry_s: session.expiry_s,
                offline,
            });
            session.conn = Some(key);
            session.active = false;
            session.version = connect.version;
            session.window_max = window_max;
            session.expiry_s = expiry_s;
            if std::mem::take(&mut session.is_unlisted) {
                let held = session.subscriptions.iter();
                for held in held.filter(|held| !is_shared(&held.filter)) {
                    let subscriber = Subscriber {
                        session: session_key,
                        options: held.options,
                        replaying: session.is_replaying(&held.filter),
                    };
                    self.routing.relist(&held.filter, subscriber);
                }
            }
            session.resend = session.window.front().and_then(PacketId::new);
            session.behind.skip_qos0(self.delivery.live());
            // The cursors start at the live offsets now, even if the CONNACK has to wait for the disk.
            for partition in self.env.data_partitions() {
                let live_at = self.delivery.live_at(partition);
                session.behind.fall_behind(Cursor::new(partition, live_at));
            }
        }
        (session_key, before)
    }
}
