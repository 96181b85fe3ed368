//! CONNECT: identifies the client, handles an earlier connection and session of that client, and sends the CONNACK.

use std::rc::Rc;
use std::sync::Arc;

use headwater_log::Offset;
use headwater_mqtt::packet::connect;
use headwater_mqtt::{Connect, ConnectReturnCode, Property, ReasonCode, encode};

use crate::auth::scram::METHOD;
use crate::auth::{Access, Denied, Rights};
use crate::engine::clients::timers::Timer;
use crate::engine::effects::Cause;
use crate::engine::quotas::Kind;
use crate::engine::session::NEVER_EXPIRES;
use crate::engine::session::ack::PacketKind;
use crate::engine::session::aliases::OutAliases;
use crate::engine::session::connection::{Phase, Will};
use crate::engine::{ConnKey, Engine, SessionKey};

use super::authenticate::Authenticated;

/// The longest client id: it has to fit into a topic of the internal partition with room to spare.
const CLIENT_ID_BYTES_MAX: usize = 32 << 10;

impl Engine {
    /// Returns false if the CONNECT has to be handled again later, because its credentials are being checked.
    pub(super) fn handle_connect(&mut self, key: ConnKey, first_byte: u8, body: &[u8]) -> bool {
        match connect::decode(first_byte, body) {
            Ok(connect) => {
                if let Some(conn) = self.clients.conn_mut(key) {
                    conn.version = connect.version;
                }
                if connect.client_id.len() > CLIENT_ID_BYTES_MAX {
                    self.refuse_connect(key, ReasonCode::ClientIdentifierNotValid);
                } else if let Some(reason) = self.refusal_by_limits(&connect) {
                    self.log_refused(key, connect.client_id, reason);
                    self.refuse_connect(key, reason);
                } else if connect.properties.authentication_method().is_some() {
                    self.begin_exchange(key, &connect, body);
                } else {
                    match self.authenticate(key, &connect) {
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
                self.observe.turn_metrics.refused += 1;
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
        self.note_denied(key, client_id, denied, None);
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
            self.note_denied(key, connect.client_id, denied, rights.as_ref());
            return self.refuse_with(key, denied.reason(), denied.return_code());
        }
        let over = self.refusal_of_session(connect);
        let over = over
            .or_else(|| self.refusal_by_quotas(key, connect, rights.as_ref()))
            .or_else(|| self.refusal_by_bytes(key, connect, rights.as_ref()));
        match over {
            Some(reason) => {
                self.log_refused(key, connect.client_id, reason);
                self.refuse_connect(key, reason);
            }
            None => self.accept(key, connect, rights, proof),
        }
    }

    /// Reason code when the session limit is reached.
    fn refusal_of_session(&mut self, connect: &Connect<'_>) -> Option<ReasonCode> {
        if self.expiry_of(connect) == 0
            || self.quotas.stored_sessions < self.env.settings.mqtt.max_sessions as usize
        {
            return None;
        }
        let held = self.clients.by_id(connect.client_id);
        if held.is_some_and(|session| session.stored) {
            return None;
        }
        self.observe.turn_metrics.sessions_refused += 1;
        Some(ReasonCode::QuotaExceeded)
    }

    fn refuse_connect(&mut self, key: ConnKey, reason: ReasonCode) {
        let code = match reason {
            ReasonCode::ClientIdentifierNotValid => ConnectReturnCode::IdentifierRejected,
            _ => ConnectReturnCode::ServerUnavailable,
        };
        self.refuse_with(key, reason, code);
    }

    fn refuse_with(&mut self, key: ConnKey, reason: ReasonCode, code: ConnectReturnCode) {
        self.observe.turn_metrics.refused += 1;
        self.observe.turn_metrics.refuse("connack", reason);
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
        let (session_key, before) = self.session_for(key, connect, client_id);
        let present = before.is_some();
        self.watch_expiry(key, rights.as_deref());
        self.log_unproved(rights.as_ref(), client_id);
        self.charge_session(session_key, rights.as_ref());
        if let Some(session) = self.clients.session_mut(session_key) {
            session.rights = rights;
        }
        self.update_group_rights(session_key);
        let after = match self.settle_state_of(session_key) {
            Ok(after) => after,
            Err(error) => {
                if self.may_log_client() {
                    tracing::warn!(%error, client_id, "a session cannot be stored, its CONNECT is refused");
                }
                self.undo_attach(session_key, key, before);
                return self.refuse_connect(key, ReasonCode::ServerUnavailable);
            }
        };
        self.open_connection(key, connect, session_key);
        self.log_connected(key, present);
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
                self.observe.turn_metrics.refused += 1;
                return self.close(key, Cause::Goodbye);
            }
        } else {
            // MQTT 3.1 has no session present flag.
            let present = present && connect.version != headwater_mqtt::Version::V31;
            encode::connack_v3(&mut bytes, present, ConnectReturnCode::Accepted);
        }
        self.queue_packet(key, after, PacketKind::Connack, bytes);
    }

    /// Sets up the connection with what the client announced.
    fn open_connection(&mut self, key: ConnKey, connect: &Connect<'_>, session: SessionKey) {
        // A will that may not be published is not kept. The rights are checked again when it is due.
        let wanted = connect.will.as_ref();
        let will = wanted.filter(|will| self.may(session, Access::Publish, will.topic));
        if wanted.is_some() && will.is_none() {
            self.env.metrics.auth.publishes_denied.inc();
            self.audit_session(key, session, "will", "acl");
            if self.may_log_client() {
                tracing::warn!(
                    client_id = connect.client_id,
                    "the will of a client is dropped: it may not publish to that topic"
                );
            }
        }
        let will = will.map(|will| Box::new(own_will(will)));
        let keep_alive_s = self.keep_alive_of(connect);
        let account = self
            .clients
            .session(session)
            .and_then(|session| session.account);
        let Some(conn) = self.clients.conns.get_mut(key) else {
            return;
        };
        conn.phase = Phase::Open;
        self.observe
            .connection_gauges
            .enter(conn.peer.transport.name(), connect.version);
        self.observe.turn_metrics.clients_accepted += 1;
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
                self.clients.timers.set(due_ms, Timer::Silence(key));
            }
        }
        self.recount_bytes(session);
    }

    pub(in crate::engine) fn expiry_of(&self, connect: &Connect<'_>) -> u32 {
        let wanted = match (connect.version.is_v5(), connect.clean_start) {
            (true, _) => connect.properties.session_expiry_interval().unwrap_or(0),
            (false, true) => 0,
            (false, false) => NEVER_EXPIRES,
        };
        wanted.min(self.env.settings.mqtt.session_expiry_max_s())
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
        self.limit_properties(connect, &mut properties);
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

    /// Identifies a session in the records of its QoS 2 publishes. No two sessions of a log have the same number,
    /// because each start uses a new epoch.
    pub(in crate::engine) fn next_life(&mut self) -> u64 {
        let epoch = self
            .state_partition()
            .map_or(0, |partition| partition.epoch().0);
        self.clients.lives += 1;
        epoch << 40 | self.clients.lives
    }

    /// A client id that no session has.
    fn assign_client_id(&mut self) -> String {
        loop {
            self.clients.assigned = self
                .clients
                .assigned
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let client_id = format!("auto-{:016x}", self.clients.assigned);
            if !self.clients.by_client.contains_key(client_id.as_str()) {
                return client_id;
            }
        }
    }

    /// Deliveries may begin: the CONNACK has left.
    pub(in crate::engine) fn activate(&mut self, key: ConnKey) {
        let Some((session_key, session)) = self.clients.attached(key) else {
            return;
        };
        session.active = true;
        // Retransmissions go before anything new.
        if session.resend.is_none() && !session.ends_replays() {
            let dispatched = &self.delivery.dispatched;
            session
                .behind
                .retain(|behind| behind.next < dispatched[behind.partition.index()]);
            session.behind.trim();
        }
        if !session.subscriptions.is_empty() {
            self.routing.router.advance();
        }
        self.activate_member(session_key);
        self.wake_session(session_key);
    }

    /// Brings the state store in line with a session that was just attached. Returns the offset for which the CONNACK
    /// has to wait.
    fn settle_state_of(
        &mut self,
        key: SessionKey,
    ) -> Result<Option<Offset>, crate::state::StateError> {
        let Some(session) = self.clients.session(key) else {
            return Ok(None);
        };
        let (client_id, stored, persistent) = (
            Rc::clone(&session.client_id),
            session.stored,
            session.expiry_s > 0,
        );
        match (persistent, stored) {
            (true, _) => self.try_store_session(key).map(Some),
            (false, true) => {
                let keys = crate::engine::session_store::persist::stored_keys(session);
                let offset = self.write_values(&keys)?;
                if let Some(session) = self.clients.session_mut(key) {
                    session.stored = false;
                    let account = session.account;
                    if session.qos2_inbound.is_stored {
                        session.qos2_inbound.is_stored = false;
                    }
                    session.outbound_stored = false;
                    session.will_stored = false;
                    self.note_stored(account, false);
                }
                Ok(Some(offset))
            }
            // A clean start may have deleted a stored session just now: the removal must be durable as well.
            (false, false) => Ok(self.removal_pending(&client_id)),
        }
    }

    /// The end of the state log, if a stored session of this client was removed and the removal is not durable yet.
    fn removal_pending(&self, client_id: &str) -> Option<Offset> {
        let is_removed = self.store.last_removed.as_deref() == Some(client_id);
        self.state_pending().filter(|_| is_removed)
    }

    /// The end of the state log, if it is not durable yet.
    pub(super) fn state_pending(&self) -> Option<Offset> {
        let end = self.store.state.end();
        (end > self.store.state.durable()).then_some(end)
    }
}

fn own_will(will: &connect::Will<'_>) -> Will {
    let mut properties = Vec::new();
    will.properties.copy_forwardable(&mut properties);
    Will {
        topic: will.topic.into(),
        payload: will.payload.into(),
        properties: properties.into(),
        qos: will.qos.as_u8(),
        retain: will.retain,
        delay_s: will.properties.will_delay_interval().unwrap_or(0),
        waits: None,
    }
}
