//! The settings of the data plane: plain values that the broker fills from the configuration.

use headwater_mqtt::{Connect, ReasonCode};

use crate::config::{MqttSettings, SysSettings};
use crate::engine::qos2::IDS_IN_USE_MAX;

use super::quotas::QuotaLimits;
use super::session::NEVER_EXPIRES;

/// The settings of the engine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The settings of the operator; `config/mqtt.rs` declares and explains each.
    pub mqtt: MqttSettings,
    /// Quotas of users and tenants, if there are any.
    pub quotas: QuotaLimits,
    /// Acknowledge at the written offset instead of the synced one.
    pub ack_written: bool,
    /// Time between updates of `$SYS`; 0 turns them off.
    pub sys_interval_ms: u64,
    /// Packet ids of QoS 2 publishes in use, over all sessions.
    pub ids_in_use_max: usize,
    /// Connections that may publish in a turn whose append is committed on the loop's thread.
    pub inline_publishers_max: usize,
    /// Records of clients that may wait to be written, per partition. Each connection may add a few.
    pub queued_records_max: u64,
}

impl Settings {
    /// The server reference for a reason code that sends the client elsewhere.
    pub fn reference_for(&self, reason: ReasonCode) -> Option<&str> {
        let goes = matches!(
            reason,
            ReasonCode::UseAnotherServer | ReasonCode::ServerMoved
        );
        self.mqtt.server_reference.as_deref().filter(|_| goes)
    }

    /// The effective keep alive in seconds: the client's, or the one that the broker imposes on MQTT 5.
    pub fn keep_alive_of(&self, connect: &Connect<'_>) -> u16 {
        let max = self.mqtt.keep_alive_max_s();
        let wanted = connect.keep_alive_s;
        if max > 0 && connect.version.is_v5() && (wanted == 0 || wanted > max) {
            max
        } else {
            wanted
        }
    }

    /// How many seconds the session of a connecting client outlives its connection.
    pub fn expiry_of(&self, connect: &Connect<'_>) -> u32 {
        let wanted = match (connect.version.is_v5(), connect.clean_start) {
            (true, _) => connect.properties.session_expiry_interval().unwrap_or(0),
            (false, true) => 0,
            (false, false) => NEVER_EXPIRES,
        };
        wanted.min(self.mqtt.session_expiry_max_s())
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mqtt: MqttSettings::default(),
            quotas: QuotaLimits::default(),
            ack_written: false,
            sys_interval_ms: SysSettings::default().interval.as_ms(),
            ids_in_use_max: IDS_IN_USE_MAX,
            inline_publishers_max: 64,
            queued_records_max: 64 << 10,
        }
    }
}
