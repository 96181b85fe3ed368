//! The limits and choices of the data plane: plain values that the broker fills from the configuration.

use headwater_mqtt::QoS;

use super::qos2_inbound::IDS_IN_USE_MAX;
use super::quotas::QuotaLimits;

/// The settings of the engine and the event loop.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Bytes of a packet, including its header.
    pub packet_bytes_max: usize,
    /// Bytes received and not parsed, over all connections.
    pub receive_budget_bytes: usize,
    /// Packet ids of QoS 2 publishes in use, over all sessions.
    pub ids_in_use_max: usize,
    /// Unacknowledged deliveries to a client that sets no receive maximum.
    pub inflight_max: u16,
    /// Unacknowledged publishes that a client may have.
    pub receive_maximum: u16,
    pub topic_alias_maximum: u16,
    /// Of one session.
    pub subscriptions_max: usize,
    /// Bytes of the filters of one session.
    pub filter_bytes_max: usize,
    /// Sessions that outlive their connection.
    pub sessions_max: usize,
    /// Topics with a retained message.
    pub retained_max: usize,
    /// Bytes of those topics and messages.
    pub retained_bytes_max: u64,
    /// Bytes of filters, wills and long client ids, over all sessions.
    pub session_bytes_max: u64,
    /// Levels of a topic or a filter.
    pub topic_levels_max: usize,
    /// Topic aliases for deliveries on a connection whose client accepts them.
    pub delivery_aliases_max: u16,
    /// Shared groups, in total.
    pub shared_groups_max: usize,
    /// Members of shared groups, in total.
    pub shared_members_max: usize,
    /// Subscriptions of all sessions.
    pub total_subscriptions_max: usize,
    /// Quotas of users and tenants, if there are any.
    pub quotas: QuotaLimits,
    /// How long a member of a shared group may leave a delivery unacknowledged before the record goes to another
    /// member; 0 for ever.
    pub shared_redelivery_after_ms: u64,
    /// Time from accepting a connection to its CONNECT.
    pub connect_timeout_ms: u64,
    /// The longest time that a session may outlive its connection; longer requests are reduced to it.
    pub session_expiry_max_s: u32,
    /// Limit on the bytes that wait for one socket.
    pub out_buffer_bytes: usize,
    /// Acknowledge at the written offset instead of the synced one.
    pub ack_written: bool,
    /// Connections that may publish in a turn whose append is committed on the loop's thread.
    pub inline_publishers_max: usize,
    pub limits: Limits,
    /// Time between updates of `$SYS`; 0 turns them off.
    pub sys_interval_ms: u64,
}

/// Limits of one client, beyond its queues.
#[derive(Debug, Clone)]
pub struct Limits {
    pub messages_per_s: Option<u32>,
    pub bytes_per_s: Option<u64>,
    /// Topics that a connection may add to the topic table.
    pub topics_max: u32,
    /// Bytes of a topic or filter.
    pub topic_bytes_max: usize,
    pub qos_max: QoS,
    pub retain_available: bool,
    pub wildcard_available: bool,
    /// Seconds; 0 for no limit.
    pub keep_alive_max_s: u16,
    pub server_reference: Option<String>,
    pub response_information: Option<String>,
}

impl Limits {
    pub fn limits_rate(&self) -> bool {
        self.messages_per_s.is_some() || self.bytes_per_s.is_some()
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            messages_per_s: None,
            bytes_per_s: None,
            topics_max: 50_000,
            topic_bytes_max: 65_535,
            qos_max: QoS::ExactlyOnce,
            retain_available: true,
            wildcard_available: true,
            keep_alive_max_s: 0,
            server_reference: None,
            response_information: None,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            packet_bytes_max: 1 << 20,
            receive_budget_bytes: 64 << 20,
            inflight_max: 100,
            receive_maximum: 1024,
            topic_alias_maximum: 10,
            subscriptions_max: 1024,
            filter_bytes_max: 256 << 10,
            sessions_max: 100_000,
            retained_max: 100_000,
            retained_bytes_max: 256 << 20,
            session_bytes_max: 128 << 20,
            topic_levels_max: 64,
            delivery_aliases_max: 32,
            shared_groups_max: 10_000,
            shared_members_max: 1_000_000,
            total_subscriptions_max: 10_000_000,
            quotas: QuotaLimits::default(),
            shared_redelivery_after_ms: 30_000,
            connect_timeout_ms: 10_000,
            session_expiry_max_s: 30 * 24 * 3600,
            out_buffer_bytes: 256 << 10,
            ids_in_use_max: IDS_IN_USE_MAX,
            ack_written: false,
            inline_publishers_max: 64,
            limits: Limits::default(),
            sys_interval_ms: 10_000,
        }
    }
}
