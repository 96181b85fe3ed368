//! Enhanced authentication (MQTT 5, 4.12): the exchange of AUTH packets, before the CONNACK and again on an open
//! connection. The only method is SCRAM-SHA-256; `auth::scram` handles its messages.

use std::sync::Arc;

use headwater_mqtt::packet::auth::Auth;
use headwater_mqtt::packet::connect;
use headwater_mqtt::{Connect, Property, ReasonCode, encode};

use crate::auth::scram::{Exchange, METHOD};
use crate::auth::{Authority, Denied};
use crate::engine::ConnKey;
use crate::engine::effects::Cause;
use crate::engine::observe::Count;
use crate::engine::session::auth::{AuthStep, Charge, Exchanging, Pending};
use crate::engine::session::connection::{Connection, Phase};

use super::authenticate::Authenticated;
use super::receive::Receiving;

/// The first byte of a CONNECT packet.
const CONNECT_BYTE: u8 = 0x10;

impl Receiving<'_> {
    /// Starts the exchange that a CONNECT asks for.
    pub(super) fn begin_exchange(&mut self, key: ConnKey, connect: &Connect<'_>, body: &[u8]) {
        let method = connect.properties.authentication_method();
        if method != Some(METHOD) || !self.protocol.auth_gate.authority.serves_scram() {
            return self.deny_connect(key, connect.client_id, Denied::Method);
        }
        let message = connect.properties.authentication_data().unwrap_or_default();
        let Some((pending, answer)) = self.begin_scram(message) else {
            return self.deny_connect(key, connect.client_id, Denied::BadCredentials);
        };
        let bytes_max = self.env.settings.mqtt.receive_budget_bytes.as_usize();
        let Some(charge) = Charge::take(&self.protocol.unknown_bytes, body.len(), bytes_max) else {
            return self.deny_connect(key, connect.client_id, Denied::Busy);
        };
        if let Some(conn) = self.clients.conn_mut(key) {
            conn.phase = Phase::Authenticating;
            conn.packet_max = connect.properties.maximum_packet_size().unwrap_or(u32::MAX);
            conn.extras.auth = Some(Box::new(AuthStep::Enhanced(Exchanging::Connecting {
                pending,
                connect: body.into(),
                _charge: charge,
            })));
        }
        self.send_auth(key, ReasonCode::ContinueAuthentication, &answer);
    }

    fn begin_scram(&self, message: &[u8]) -> Option<(Pending, String)> {
        let mut keys = None;
        let (exchange, answer) = Exchange::begin(message, |user| {
            let (stored, fingerprint) = self.protocol.auth_gate.authority.scram_keys(user);
            keys = fingerprint;
            stored
        })
        .ok()?;
        Some((Pending { exchange, keys }, answer))
    }

    /// A packet on a connection that has not had its CONNACK: only AUTH is allowed (MQTT-3.1.2-30).
    pub(super) fn handle_auth(&mut self, key: ConnKey, auth: &Auth<'_>) {
        let is_named = auth.properties.authentication_method() == Some(METHOD);
        let Some(step) = self.clients.conn_mut(key).and_then(Connection::take_auth) else {
            // The CONNECT had no authentication method (MQTT-4.12.0-7).
            return self.close(key, Cause::Reason(ReasonCode::ProtocolError));
        };
        let AuthStep::Enhanced(exchanging) = step else {
            return self.close(key, Cause::Reason(ReasonCode::ProtocolError));
        };
        let message = auth.properties.authentication_data().unwrap_or_default();
        match (exchanging, auth.reason) {
            (
                Exchanging::Connecting {
                    pending, connect, ..
                },
                ReasonCode::ContinueAuthentication,
            ) if is_named => {
                self.finish_connect(key, &pending, &connect, message);
            }
            (Exchanging::Done, ReasonCode::Reauthenticate) if is_named => {
                self.begin_again(key, message);
            }
            (Exchanging::Again { pending }, ReasonCode::ContinueAuthentication) if is_named => {
                self.finish_again(key, &pending, message);
            }
            _ if !is_named => self.close(key, Cause::Reason(ReasonCode::BadAuthenticationMethod)),
            _ => self.close(key, Cause::Reason(ReasonCode::ProtocolError)),
        }
    }

    fn finish_connect(&mut self, key: ConnKey, pending: &Pending, body: &[u8], message: &[u8]) {
        // The packet was decoded before, so it can be decoded again.
        let Ok(connect) = connect::decode(CONNECT_BYTE, body) else {
            return self.close(key, Cause::Reason(ReasonCode::ProtocolError));
        };
        let (Ok(answer), Some(keys)) = (pending.exchange.finish(message), pending.keys) else {
            return self.deny_connect(key, connect.client_id, Denied::BadCredentials);
        };
        let identity = Authority::scram_identity(pending.exchange.user(), keys);
        let now_us = self.env.now.wall_us;
        match self.protocol.authenticated(identity, &connect, now_us) {
            Authenticated::As(rights) => {
                if let Some(conn) = self.clients.conn_mut(key) {
                    conn.extras.auth = Some(Box::new(AuthStep::Enhanced(Exchanging::Done)));
                }
                self.admit_client(key, &connect, rights, Some(&answer));
            }
            Authenticated::Refused(denied) => self.deny_connect(key, connect.client_id, denied),
            Authenticated::Waits => {}
        }
    }

    fn begin_again(&mut self, key: ConnKey, message: &[u8]) {
        let Some((pending, answer)) = self.begin_scram(message) else {
            return self.fail_again(key);
        };
        if let Some(conn) = self.clients.conn_mut(key) {
            conn.extras.auth = Some(Box::new(AuthStep::Enhanced(Exchanging::Again { pending })));
        }
        self.send_auth(key, ReasonCode::ContinueAuthentication, &answer);
    }

    /// The client has to prove that it is still the same user; it cannot become another one.
    fn finish_again(&mut self, key: ConnKey, pending: &Pending, message: &[u8]) {
        let session = self.clients.session_key(key);
        let rights = session.and_then(|key| self.clients.session(key)?.rights.clone());
        let user = pending.exchange.user();
        let is_same = rights.is_some_and(|rights| rights.identity().user.as_deref() == Some(user));
        let (Ok(answer), Some(keys), true) =
            (pending.exchange.finish(message), pending.keys, is_same)
        else {
            return self.fail_again(key);
        };
        let identity = Authority::scram_identity(user, keys);
        if !self.protocol.auth_gate.authority.still_admits(&identity) {
            return self.fail_again(key);
        }
        let rights = self.protocol.auth_gate.rights(identity);
        if let Some(session) = session.and_then(|session| self.clients.session_mut(session)) {
            session.rights = rights;
        }
        if let Some(conn) = self.clients.conn_mut(key) {
            conn.extras.auth = Some(Box::new(AuthStep::Enhanced(Exchanging::Done)));
        }
        self.send_auth(key, ReasonCode::Success, &answer);
    }

    /// A failed re-authentication ends the connection (MQTT-4.12.1-2).
    fn fail_again(&mut self, key: ConnKey) {
        let client_id = self.client_id_of(key);
        self.clients
            .note_denied(key, &client_id, Denied::BadCredentials, None, self.env);
        self.close(key, Cause::Reason(ReasonCode::NotAuthorized));
    }

    fn client_id_of(&self, key: ConnKey) -> Arc<str> {
        let session = self.clients.session_of(key);
        session.map_or_else(|| "".into(), |session| (&*session.client_id).into())
    }

    fn send_auth(&mut self, key: ConnKey, reason: ReasonCode, message: &str) {
        if let Some(conn) = self.clients.writer(key) {
            let properties = [
                Property::AuthenticationMethod(METHOD),
                Property::AuthenticationData(message.as_bytes()),
            ];
            let base = conn.out.len();
            encode::auth(&mut conn.out, reason, &properties);
            if conn.out.len() - base > conn.packet_max as usize {
                // The exchange cannot continue with a client whose Maximum Packet Size excludes its messages
                // (MQTT-3.1.2-24).
                conn.out.truncate(base);
                return self.close(key, Cause::Refused);
            }
            self.observe.count(Count::PacketsSent, 1);
        }
    }
}
