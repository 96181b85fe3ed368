//! Settings of MQTT and of the connections that speak it.
//!
//! Where a limit is enforced, in `engine/protocol`: `publish` and `publish_topic` (one PUBLISH), `subscribe` (one
//! SUBSCRIBE), `filters` (one filter, and the filters of one session), `receive` (the size of any packet, the budget),
//! `limits` (one CONNECT, and what its CONNACK announces; `connect` announces the rest), `over_limit` (all sessions
//! together, users and tenants). Rates are in `engine/session/limits`, the window in `engine/lifecycle/attach`, what
//! precedes a CONNECT in `event_loop`. `service/limits` has the same limits on topics and records for Flight.

use headwater_mqtt::QoS;

use super::declare::{age, bytes, choice, days, gib, kib, mib, ms, secs, settings, whole};
use super::units::{Age, ByteSize};

settings! {
    /// What MQTT clients may do, each and all together.
    pub struct MqttSettings {
        /// Largest packet that a client may send.
        max_packet_bytes: ByteSize = mib(1), bytes(kib(1), ByteSize(268_435_460));
        /// Memory for packets that are being received, all connections together.
        receive_budget_bytes: ByteSize = mib(64), bytes(kib(64), gib(64));
        /// Unacknowledged deliveries to a client that sets no Receive Maximum.
        max_inflight: u16 = 100, whole(1, 65_535);
        /// Unacknowledged publishes that an MQTT 5 client may have (Receive Maximum).
        receive_maximum: u16 = 1024, whole(1, 65_535);
        /// Topic aliases that an MQTT 5 client may set (Topic Alias Maximum).
        topic_alias_maximum: u16 = 10;
        /// Subscriptions of one session.
        max_subscriptions: u32 = 1024, whole(1, 1_000_000);
        /// Total size of the filters of one session.
        max_filter_bytes: ByteSize = kib(256), bytes(kib(1), mib(64));
        /// Sessions that outlive their connection. A CONNECT over the limit is refused: reason code 0x97 for MQTT 5,
        /// return code 3 for older clients.
        max_sessions: u32 = 100_000, whole(1, 10_000_000);
        /// Topics with a retained message. A publish over the limit is refused: MQTT 5 clients get 0x97; of older
        /// clients, QoS 0 is dropped and QoS 1 and 2 close the connection.
        max_retained: u32 = 100_000, whole(1, 10_000_000);
        /// Total size of the retained messages and their topics. A publish over the limit is refused as for
        /// `max_retained`.
        max_retained_bytes: ByteSize = mib(256), bytes(kib(64), gib(64));
        /// Total size of the filters, wills (of connected clients and delayed ones) and client ids of all sessions,
        /// without the first 256 bytes of each session. They take up to four times as much memory. Over the limit
        /// MQTT 5 clients get 0x97, older clients return code 3 (CONNECT) or 0x80 (SUBSCRIBE).
        max_session_bytes: ByteSize = mib(128), bytes(kib(64), gib(64));
        /// Levels of a topic or filter.
        max_topic_levels: u16 = 64, whole(1, 1_024);
        /// Topic aliases that the broker sets in deliveries to an MQTT 5 client that allows as many.
        delivery_aliases: u16 = 32;
        /// Shared subscription groups ($share/<name>/<filter>) of all clients together. A SUBSCRIBE over the limit is
        /// refused: 0x97 for MQTT 5, 0x80 for older clients.
        max_shared_groups: u16 = 10_000;
        /// Members of all shared groups together; a session counts once in each of its groups. A SUBSCRIBE over the
        /// limit is refused as for `max_shared_groups`.
        max_shared_members: u32 = 1_000_000, whole(1, 100_000_000);
        /// Subscriptions of all sessions together. One with a filter of 30 characters takes 300 bytes of memory, in a
        /// session that is stored 800. A SUBSCRIBE over the limit is refused as for `max_shared_groups`.
        max_total_subscriptions: u32 = 2_000_000, whole(1, 1_000_000_000);
        /// Time that a member of a shared group has to acknowledge a QoS 1 message before another member gets it. With
        /// 0 the message stays with its member until that disconnects.
        shared_redelivery_after: Age = secs(30), age(ms(0), days(1));
        /// Time that a new connection has for all of its handshakes (TLS, WebSocket) and its CONNECT.
        connect_timeout: Age = secs(10), age(ms(100), days(1));
        /// Largest CONNECT, and largest WebSocket upgrade request. It bounds what a client can send before it is
        /// authenticated.
        max_connect_bytes: ByteSize = kib(64), bytes(kib(1), kib(256));
        /// Longest time that the session of a disconnected client is kept.
        session_expiry_max: Age = days(30), age(ms(0), days(36_500));
        /// Encoded deliveries that wait for one socket.
        out_buffer_bytes: ByteSize = kib(256), bytes(kib(4), mib(64));
        /// Encoded deliveries that wait for all sockets together. Once half of it is used, each connection may use less
        /// than `out_buffer_bytes`, but always 16 KiB and one packet.
        send_budget_bytes: ByteSize = mib(256), bytes(mib(1), gib(64));
        /// Publishes per second that one client may send, with bursts of one second's worth. The broker reads from a
        /// faster client more slowly. Without a value there is no limit.
        max_messages_per_second: Option<u32> = None, whole(1, 10_000_000);
        /// Bytes per second that one client may send, with the same bursts. Without a value there is no limit.
        max_bytes_per_second: Option<ByteSize> = None, bytes(kib(1), gib(64));
        /// New topics that one client may add to the broker's topic table. A publish over the limit is refused: MQTT 5
        /// clients get 0x97; of older clients, QoS 0 is dropped and QoS 1 and 2 close the connection.
        max_topics: u32 = 50_000, whole(1, 1_000_000);
        /// Length of a topic or filter. For longer ones MQTT 5 clients get 0x90 (topic) or 0x8F (filter); of older
        /// clients, QoS 0 is dropped and anything else closes the connection.
        max_topic_bytes: u32 = 65_535, whole(1, 65_535);
        /// Highest QoS. A publish with a higher one is refused with 0x9B; a subscription is granted at most this one.
        max_qos: u8 = 2, whole(0, 2);
        /// Whether clients may publish retained messages. Otherwise such publishes are refused with 0x9A.
        retain_available: bool = true;
        /// Whether filters may contain wildcards. Otherwise such subscriptions are refused with 0xA2.
        wildcard_available: bool = true;
        /// Longest keep alive, imposed on MQTT 5 clients that ask for a longer one or for none. The protocol allows up
        /// to 65535 s. Without a value clients get the keep alive that they ask for.
        keep_alive_max: Option<Age> = None, age(secs(1), days(1));
        /// Server Reference that MQTT 5 clients get while this broker is drained, for example broker-2.example:1883.
        server_reference: Option<String> = None;
        /// Response Information for MQTT 5 clients that request it: the basis of their response topics.
        response_information: Option<String> = None;
    }
}

settings! {
    /// The process and its MQTT connections.
    pub struct BrokerSettings {
        /// Threads that serve MQTT connections. This version has one.
        loops: u16 = 1, whole(1, 1);
        /// MQTT connections at the same time.
        max_connections: u32 = 100_000, whole(1, 10_000_000);
        /// MQTT connections from one address at the same time. Without a value there is no such limit, because many
        /// devices may share an address.
        max_connections_per_ip: Option<u32> = None, whole(1, 10_000_000);
        /// Connections that have not sent their CONNECT. At most a quarter of them may be in a TLS handshake, and all
        /// of them use at most three quarters of the file descriptors. At the limit the oldest one is closed for a new
        /// one, but not within its first second; until then new connections wait in the backlog.
        max_pending_connections: u32 = 16_384, whole(1, 1_000_000);
        /// MQTT connections accepted per second. The others wait in the backlog.
        max_connect_rate: u32 = 10_000, whole(1, 1_000_000);
        /// Format of the messages on stderr.
        log_format: LogFormat = LogFormat::Text;
    }
}

settings! {
    /// The topics below `$SYS`.
    pub struct SysSettings {
        /// Time between two publications of the values below `$SYS`. 0s turns them off.
        interval: Age = secs(10), age(ms(0), days(1));
    }
}

choice! {
    /// How the broker logs on stderr.
    pub enum LogFormat {
        /// one line of text per message
        Text = "text",
        /// one JSON object per line
        Json = "json",
    }
}

impl MqttSettings {
    /// Whether clients are held to a rate.
    pub fn limits_rate(&self) -> bool {
        self.max_messages_per_second.is_some() || self.max_bytes_per_second.is_some()
    }

    pub fn qos_max(&self) -> QoS {
        QoS::from_u8(self.max_qos).unwrap_or(QoS::ExactlyOnce)
    }

    /// In seconds; 0 imposes nothing.
    pub fn keep_alive_max_s(&self) -> u16 {
        let seconds = self.keep_alive_max.map_or(0, |age| age.0.as_secs());
        u16::try_from(seconds).unwrap_or(u16::MAX)
    }

    pub fn session_expiry_max_s(&self) -> u32 {
        u32::try_from(self.session_expiry_max.0.as_secs()).unwrap_or(u32::MAX)
    }

    /// Largest first packet of a connection.
    pub fn connect_bytes_max(&self) -> usize {
        self.max_connect_bytes.min(self.max_packet_bytes).as_usize()
    }
}
