//! CONNECT: identifies the client, handles an earlier connection and session of that client, and sends the CONNACK.

use std::sync::Arc;

use headwater_mqtt::packet::connect;
use headwater_mqtt::{Connect, ConnectReturnCode, Property, ReasonCode, encode};

use crate::auth::scram::METHOD;
use crate::auth::{Access, Denied, Rights};
use crate::engine::clients::timers::Timer;
use crate::engine::delivery::replies::Replies;
use crate::engine::effects::Cause;
use crate::engine::lifecycle::Lifecycle;
use crate::engine::observe::Count;
use crate::engine::quotas::Kind;
use crate::engine::session::ack::PacketKind;
use crate::engine::session::aliases::OutAliases;
use crate::engine::session::connection::{Phase, Will};
use crate::engine::session_store::checkpoint::Checkpointing;
use crate::engine::{ConnKey, SessionKey};

use super::authenticate::Authenticated;
use super::limits::limit_properties;
use super::over_limit::{OverLimit, Usage};
use super::receive::Receiving;

/// The longest client id: it has to fit into a topic of the internal partition with room to spare.
const CLIENT_ID_BYTES_MAX: usize = 32 << 10;

impl Receiving<'_> {
    /// Returns false if the CONNECT has to be handled again later, because its credentials are being checked.
    pub(super) fn handle_connect(&mut self, key: ConnKey, first_byte: u8, body: &[u8]) -> bool {
        match connect::decode(first_byte, body) {
            Ok(connect) => {
                if let Some(conn) = self.clients.conn_mut(key) {
                    conn.version = connect.version;
                }
                if connect.client_id.len() > CLIENT_ID_BYTES_MAX {
                    self.refuse_connect(key, ReasonCode::ClientIdentifierNotValid);
                } else if let Some(reason) = self.protocol.refusal_by_limits(&connect, self.env) {
                    self.refuse_and_log(key, connect.client_id, reason);
                } else if connect.properties.authentication_method().is_some() {
                    self.begin_exchange(key, &connect, body);
                } else {
                    let now_us = self.env.now.wall_us;
                    let Some(conn) = self.clients.conn_mut(key) else {
                        return true;
                    };
                    let protocol = &*self.protocol;
                    match protocol.authenticate((key, conn), &connect, now_us) {
                        Authenticated::As(rights) => self.admit_client(key, &connect, rights, None),
                        Authenticated::Waits => return false,
                        Authenticated::Refused(denied) => {
                            self.deny_connect(key, connect.client_id, denied);
                        }
                    }
                }
            }
            Err(error) => {
                tracing::debug!(%error, "a CONNECT was refused");
                self.observe.count(Count::ConnectionsRefused, 1);
                if let Some(conn) = self.clients.writer(key) {
                    encode::refusal(&mut conn.out, error.refusal);
                }
                self.close(key, Cause::Refused);
            }
        }
        true
    }

    /// Answers the CONNECT of a client that is refused.
    pub(super) fn deny_connect(&mut self, key: ConnKey, client_id: &str, denied: Denied) {
        self.clients
            .note_denied(key, client_id, denied, None, self.env);
        self.refuse_with(key, denied.reason(), denied.return_code());
    }

    /// Admits an authenticated client. `proof` is the server's final SCRAM message, for clients that used enhanced
    /// authentication.
    pub(super) fn admit_client(
        &mut self,
        key: ConnKey,
        connect: &Connect<'_>,
        rights: Option<Arc<Rights>>,
        proof: Option<&str>,
    ) {
        if let Err(denied) = self.claim_session(connect.client_id, rights.as_ref()) {
            self.clients
                .note_denied(key, connect.client_id, denied, rights.as_ref(), self.env);
            return self.refuse_with(key, denied.reason(), denied.return_code());
        }
        match self.refusal_by_quotas(key, connect, rights.as_ref()) {
            Some(reason) => self.refuse_and_log(key, connect.client_id, reason),
            None => self.accept(key, connect, rights, proof),
        }
    }

    /// Why a client is refused because of what the broker, its user or its tenant already has.
    fn refusal_by_quotas(
        &mut self,
        key: ConnKey,
        connect: &Connect<'_>,
        rights: Option<&Arc<Rights>>,
    ) -> Option<ReasonCode> {
        let account = self.quotas.open(rights);
        let over = lend!(self => Usage).connect_over(account, connect);
        let waits = self.quotas.stores_again_at(account, self.env.now.mono_ms);
        self.quotas.close(account);
        if waits.is_some() && !connect.clean_start && self.counts_next(connect.client_id) {
            return Some(ReasonCode::ServerBusy);
        }
        let over = over?;
        if let OverLimit::Quota(kind) = over {
            let who = Some((connect.client_id, rights.map(|rights| &**rights)));
            let what = ("connect", kind.reason());
            self.clients.refused(key, who, what, None, self.env);
        } else if let Some(conn) = self.clients.conn(key) {
            let reason = ReasonCode::QuotaExceeded;
            self.observe.note_refused(conn, connect.client_id, reason);
        }
        let is_session = !matches!(over, OverLimit::Quota(Kind::Connections));
        self.observe
            .count(Count::SessionsRefused, u64::from(is_session));
        Some(ReasonCode::QuotaExceeded)
    }

    /// Whether storing the session of a client once more counts against its tenant.
    fn counts_next(&self, client_id: &str) -> bool {
        let held = self.clients.key_by_id(client_id);
        held.and_then(|key| Some((key, self.clients.session(key)?.stored_bytes())))
            .is_some_and(|(key, bytes)| self.store.counts_next(key, bytes))
    }

    fn refuse_and_log(&mut self, key: ConnKey, client_id: &str, reason: ReasonCode) {
        if let Some(conn) = self.clients.conn(key) {
            let now_ms = self.env.now.mono_ms;
            self.observe.log_refused(now_ms, conn, client_id, reason);
            // What is over a quota is noted where the quota is known.
            if reason != ReasonCode::QuotaExceeded {
                self.observe.note_refused(conn, client_id, reason);
            }
        }
        self.refuse_connect(key, reason);
    }

    fn refuse_connect(&mut self, key: ConnKey, reason: ReasonCode) {
        let code = match reason {
            ReasonCode::ClientIdentifierNotValid => ConnectReturnCode::IdentifierRejected,
            _ => ConnectReturnCode::ServerUnavailable,
        };
        self.refuse_with(key, reason, code);
    }

    fn refuse_with(&mut self, key: ConnKey, reason: ReasonCode, code: ConnectReturnCode) {
        self.observe.count(Count::ConnectionsRefused, 1);
        self.observe.refuse("connack", reason);
        let reference = self.env.settings.reference_for(reason);
        if let Some(conn) = self.clients.writer(key) {
            if conn.version.is_v5() {
                let properties = reference.map(Property::ServerReference);
                encode::connack(&mut conn.out, false, reason, properties.as_slice());
            } else {
                encode::connack_v3(&mut conn.out, false, code);
            }
        }
        self.close(key, Cause::Refused);
    }

    fn accept(
        &mut self,
        key: ConnKey,
        connect: &Connect<'_>,
        rights: Option<Arc<Rights>>,
        proof: Option<&str>,
    ) {
        let assigned = connect
            .client_id
            .is_empty()
            .then(|| self.assign_client_id());
        let client_id = assigned.as_deref().unwrap_or(connect.client_id);
        let (session_key, before) = lend!(self => Lifecycle).session_for(key, connect, client_id);
        let present = before.is_some();
        self.clients.watch_expiry(key, rights.as_deref(), self.env);
        let now_ms = self.env.now.mono_ms;
        self.protocol
            .unproved
            .log(rights.as_ref(), client_id, now_ms);
        self.clients
            .charge(session_key, rights.as_ref(), self.quotas);
        if let Some(session) = self.clients.session_mut(session_key) {
            session.rights = rights;
            self.groups.update_rights(session_key, session);
        }
        let after = match lend!(self => Checkpointing).store_attached(session_key) {
            Ok(after) => after,
            Err(error) => {
                if self.observe.may_log_client(self.env.now.mono_ms) {
                    tracing::warn!(%error, client_id, "a session cannot be stored, its CONNECT is refused");
                }
                if let Some(conn) = self.clients.conn(key) {
                    let reason = ReasonCode::ServerUnavailable;
                    self.observe.note_refused(conn, client_id, reason);
                }
                lend!(self => Lifecycle).undo_attach(session_key, key, before);
                return self.refuse_connect(key, ReasonCode::ServerUnavailable);
            }
        };
        self.open_connection(key, connect, session_key);
        if let Some(conn) = self.clients.conn(key) {
            let (now_ms, session) = (self.env.now.mono_ms, self.clients.session(session_key));
            self.observe.log_connected(now_ms, conn, session, present);
        }
        let mut bytes = Vec::new();
        if connect.version.is_v5() {
            self.encode_connack(
                &mut bytes,
                connect,
                assigned.as_deref(),
                session_key,
                present,
                proof,
            );
            let size_max = connect.properties.maximum_packet_size();
            if size_max.is_some_and(|size_max| bytes.len() > size_max as usize) {
                // The client accepts no packet as large as its CONNACK: its connection is closed without one, and its
                // will is dropped.
                self.observe.count(Count::ConnectionsRefused, 1);
                return self.close(key, Cause::Goodbye);
            }
        } else {
            // MQTT 3.1 has no session present flag.
            let present = present && connect.version != headwater_mqtt::Version::V31;
            encode::connack_v3(&mut bytes, present, ConnectReturnCode::Accepted);
        }
        lend!(self => Replies).queue_packet(key, after, PacketKind::Connack, bytes);
    }

    /// Sets up the connection with what the client announced.
    fn open_connection(&mut self, key: ConnKey, connect: &Connect<'_>, session: SessionKey) {
        // A will that may not be published is not kept. The rights are checked again when it is due.
        let wanted = connect.will.as_ref();
        let will = wanted.filter(|will| self.clients.may(session, Access::Publish, will.topic));
        let is_denied = wanted.is_some() && will.is_none();
        if is_denied {
            self.env.metrics.auth.publishes_denied.inc();
            if self.observe.may_log_client(self.env.now.mono_ms) {
                tracing::warn!(
                    client_id = connect.client_id,
                    "the will of a client is dropped: it may not publish to that topic"
                );
            }
        }
        let will = will.map(|will| Box::new(Will::of(will)));
        let keep_alive_s = self.env.settings.keep_alive_of(connect);
        let account = self
            .clients
            .session(session)
            .and_then(|session| session.account);
        let Some(conn) = self.clients.conn_mut(key) else {
            return;
        };
        conn.phase = Phase::Open;
        let transport = conn.peer.transport.name();
        self.observe.enter(transport, connect.version);
        conn.session = Some(session);
        conn.account = account;
        self.quotas.add(account, Kind::Connections, 1);
        conn.keep_alive_s = keep_alive_s;
        conn.packet_max = connect.properties.maximum_packet_size().unwrap_or(u32::MAX);
        let aliases = connect.properties.topic_alias_maximum().unwrap_or(0);
        let out_aliases = OutAliases::of(aliases.min(self.env.settings.mqtt.delivery_aliases));
        conn.extras.trim();
        if will.is_some() || out_aliases.is_some() {
            conn.extras.will = will;
            conn.extras.out_aliases = out_aliases;
        }
        conn.problem_info = connect
            .properties
            .request_problem_information()
            .unwrap_or(true);
        // Offsets are sent as user properties of the PUBACK, which this client may have turned off.
        conn.stream_ack = connect.version.is_v5()
            && conn.problem_info
            && connect.properties.user_property("stream-ack") == Some("1");
        if conn.keep_alive_s > 0 {
            let due_ms = self.env.now.mono_ms + u64::from(conn.keep_alive_s) * 1500;
            // Otherwise the timer already set is the first to check.
            if due_ms < conn.silence_due_ms {
                conn.silence_due_ms = due_ms;
                self.clients.set_timer(due_ms, Timer::Silence(key));
            }
        }
        if is_denied {
            let topic = wanted.map(|will| will.topic);
            let what = ("will", "acl");
            self.clients.refused(key, None, what, topic, self.env);
        }
        self.clients.recount_bytes(session, self.quotas);
    }

    fn encode_connack(
        &self,
        out: &mut Vec<u8>,
        connect: &Connect<'_>,
        assigned: Option<&str>,
        session: SessionKey,
        present: bool,
        proof: Option<&str>,
    ) {
        let mut properties = vec![
            Property::ReceiveMaximum(self.env.settings.mqtt.receive_maximum),
            Property::MaximumPacketSize(
                u32::try_from(self.env.settings.mqtt.max_packet_bytes.as_usize())
                    .unwrap_or(u32::MAX),
            ),
            Property::TopicAliasMaximum(self.env.settings.mqtt.topic_alias_maximum),
            Property::SharedSubscriptionAvailable(true),
        ];
        limit_properties(&self.env.settings, connect, &mut properties);
        let granted = self
            .clients
            .session(session)
            .map_or(0, |session| session.expiry_s);
        if connect
            .properties
            .session_expiry_interval()
            .is_some_and(|wanted| wanted != granted)
        {
            properties.push(Property::SessionExpiryInterval(granted));
        }
        if let Some(proof) = proof {
            properties.push(Property::AuthenticationMethod(METHOD));
            properties.push(Property::AuthenticationData(proof.as_bytes()));
        }
        if let Some(client_id) = assigned {
            properties.push(Property::AssignedClientIdentifier(client_id));
        }
        encode::connack(out, present, ReasonCode::Success, &properties);
        // Properties that the client can do without are left out if it accepts only small packets; the limits apply all
        // the same.
        let size_max = connect.properties.maximum_packet_size();
        if size_max.is_some_and(|size_max| out.len() > size_max as usize) {
            out.clear();
            properties.retain(|property| {
                !matches!(
                    property,
                    Property::ReceiveMaximum(_)
                        | Property::MaximumPacketSize(_)
                        | Property::TopicAliasMaximum(_)
                        | Property::SharedSubscriptionAvailable(_)
                )
            });
            encode::connack(out, present, ReasonCode::Success, &properties);
        }
    }

    /// A client id that no session has. With the time it also differs from those of a lost log, which clients may still
    /// use.
    fn assign_client_id(&self) -> String {
        loop {
            let number = self.store.unique_number();
            let client_id = format!("auto-{:x}-{number:x}", self.env.now.wall_us);
            if self.clients.key_by_id(&client_id).is_none() {
                return client_id;
            }
        }
    }
}
