//! The limits and choices of the data plane: plain values, filled from the configuration by the broker.

/// What the engine and the event loop are started with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// A packet, header included.
    pub packet_bytes_max: usize,
    /// Bytes received and not parsed, all connections together.
    pub receive_budget_bytes: usize,
    /// Unacknowledged deliveries to a client that names no receive maximum.
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
    /// Those topics and messages together.
    pub retained_bytes_max: u64,
    /// Of a topic or a filter.
    pub topic_levels_max: usize,
    /// Shared groups, all together.
    pub shared_groups_max: usize,
    /// How long a member of a shared group may owe an acknowledgement before the record goes to another; 0 for ever.
    pub shared_redelivery_after_ms: u64,
    /// Time from opening a connection to its CONNECT.
    pub connect_timeout_ms: u64,
    /// The longest that a session outlives its connection; longer wishes are cut to it.
    pub session_expiry_max_s: u32,
    /// Bytes that wait for one socket.
    pub out_buffer_bytes: usize,
    /// The bound of a partition's append queue, as the log has it.
    pub queue_bytes: usize,
    /// Acknowledge at the written mark instead of the synced one.
    pub ack_written: bool,
    /// Connections that may publish in a turn whose append is committed on the loop's thread.
    pub inline_publishers_max: usize,
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
            topic_levels_max: 64,
            shared_groups_max: 10_000,
            shared_redelivery_after_ms: 30_000,
            connect_timeout_ms: 10_000,
            session_expiry_max_s: 30 * 24 * 3600,
            out_buffer_bytes: 256 << 10,
            queue_bytes: 8 << 20,
            ack_written: false,
            inline_publishers_max: 64,
        }
    }
}
