//! Every key with its limits and its meaning, in the order of `conf/broker.yaml`.

use std::time::Duration;

use super::{Key, Kind};
use crate::config::units::{Age, ByteSize};

const fn bytes(min: ByteSize, max: ByteSize) -> Kind {
    Kind::Bytes { min, max }
}
const fn whole(min: u64, max: u64) -> Kind {
    Kind::Whole { min, max }
}
const fn age(min_ms: u64, max_days: u64) -> Kind {
    Kind::Age {
        min: Age(Duration::from_millis(min_ms)),
        max: Age::from_days(max_days),
    }
}
const fn key(path: &'static str, kind: Kind, meaning: &'static str) -> Key {
    Key {
        path,
        kind,
        optional: false,
        meaning,
    }
}
const fn optional(path: &'static str, kind: Kind, meaning: &'static str) -> Key {
    Key {
        path,
        kind,
        optional: true,
        meaning,
    }
}

pub const KEYS: &[Key] = &[
    key(
        "data_dir",
        Kind::Folder,
        "Folder of the log. A relative one is taken from where the broker is started.",
    ),
    key(
        "listeners.<mqtt>.bind",
        Kind::Addresses,
        "Address of the listener, or a list of them; port 0 picks a free one. Without an address there is no such \
         listener, but `mqtt` needs one.",
    ),
    key(
        "listeners.<mqtt>.proxy_protocol",
        Kind::Bool,
        "Whether every connection begins with a header of PROXY protocol v2, which names the client; without it a \
         connection is closed.",
    ),
    key(
        "listeners.<ws>.origins",
        Kind::Origins,
        "Pages of other hosts that may act as those of this host do, such as https://app.example.com. A page of any other \
         host is let in with a password or token only.",
    ),
    optional(
        "listeners.<tls>.tls.cert",
        Kind::File,
        "PEM file of the certificate, followed by those between it and the root. Relative to where the broker is \
         started, like all of these. SIGHUP reads the files again.",
    ),
    optional(
        "listeners.<tls>.tls.key",
        Kind::File,
        "PEM file of the certificate's key.",
    ),
    optional(
        "listeners.<tls>.tls.client_ca",
        Kind::File,
        "PEM file of those who sign the certificates of clients.",
    ),
    key(
        "listeners.<tls>.tls.client_auth",
        Kind::Choice(&["none", "optional", "required"]),
        "Whether clients show a certificate: `optional` takes those without one, too.",
    ),
    key(
        "listeners.<tls>.tls.min_version",
        Kind::Choice(&["1.2", "1.3"]),
        "Oldest version of TLS that is spoken.",
    ),
    key(
        "listeners.flight.bind",
        Kind::Address,
        "Address of the Arrow Flight listener.",
    ),
    key(
        "listeners.admin.bind",
        Kind::Address,
        "Address of health, metrics and status over HTTP.",
    ),
    optional(
        "log.id",
        Kind::LogId,
        "The log id that the folder must have; a new folder gets it.",
    ),
    key(
        "log.sync",
        Kind::Choice(&["always", "interval", "never"]),
        "When records are synced: before each acknowledgement, each `sync_interval`, or never (benchmarks only: loses \
         acknowledged records).",
    ),
    key(
        "log.sync_interval",
        age(1, 1),
        "Time between syncs with `sync: interval`.",
    ),
    key(
        "log.ack",
        Kind::Choice(&["synced", "written"]),
        "With `sync: interval`, when MQTT acknowledges: `synced` waits for the next sync, `written` does not, and a power \
         cut loses what it acknowledged since the last one. Flight always waits for the sync.",
    ),
    optional(
        "log.group_idle",
        age(60_000, 36_500),
        "A consumer group that has committed nothing for so long holds no records any more; without it a group holds \
         until it is removed.",
    ),
    optional(
        "log.disk.budget",
        bytes(ByteSize::mib(64), ByteSize(1 << 50)),
        "Size that all files of the log may have together; without it, what they have plus what the file system has \
         left.",
    ),
    key(
        "log.disk.warn_at",
        whole(1, 99),
        "Percent of the budget from which the broker warns.",
    ),
    key(
        "log.disk.act_at",
        whole(1, 99),
        "Percent of the budget from which `action` is taken.",
    ),
    key(
        "log.disk.action",
        Kind::Choice(&["refuse", "trim"]),
        "What is done at `act_at`: `refuse` takes no more telemetry, `trim` removes the oldest telemetry, also what \
         retention would keep.",
    ),
    key(
        "log.segment_bytes",
        bytes(ByteSize::kib(64), ByteSize::gib(4)),
        "Size of a segment file.",
    ),
    key(
        "log.tail_bytes",
        bytes(ByteSize::mib(1), ByteSize::gib(64)),
        "Newest bytes kept in memory, all partitions.",
    ),
    key(
        "log.heads_bytes",
        bytes(ByteSize(0), ByteSize::gib(64)),
        "Memory for finding single records of large batches again without reading the batch, all partitions.",
    ),
    key(
        "log.queue_bytes",
        bytes(ByteSize::kib(64), ByteSize::gib(1)),
        "Records waiting to be written, per partition.",
    ),
    optional(
        "log.backup_dir",
        Kind::Folder,
        "Folder for the backups that are asked for over Flight, apart from `data_dir`; without it they are refused.",
    ),
    key(
        "log.classes.*.partitions",
        whole(1, 1024),
        "Partitions of the class; fixed when the log is created.",
    ),
    key(
        "log.classes.*.filters",
        Kind::Filters,
        "Topics of the class; `control` is asked first, `telemetry` last.",
    ),
    optional(
        "log.classes.*.template",
        Kind::Template,
        "The level that names the partition; without it the topic does.",
    ),
    optional(
        "log.classes.*.retention.bytes",
        bytes(ByteSize::kib(128), ByteSize(1 << 50)),
        "Size of a partition above which its oldest segments go; without it they stay.",
    ),
    optional(
        "log.classes.*.retention.age",
        age(1_000, 36_500),
        "Age at which a segment goes; without it it stays.",
    ),
    key(
        "log.classes.*.retention.hold_for_groups",
        Kind::Bool,
        "Whether a segment that a consumer group has not finished stays in spite of `bytes` and `age`.",
    ),
    optional(
        "log.classes.*.retention.hard_bytes",
        bytes(ByteSize::kib(128), ByteSize(1 << 50)),
        "Size of a partition above which its oldest segments go although a group holds them; without it the group wins \
         until the disk is full.",
    ),
    key(
        "mqtt.max_packet_bytes",
        bytes(ByteSize::kib(1), ByteSize(268_435_460)),
        "Largest packet taken from a client.",
    ),
    key(
        "mqtt.receive_budget_bytes",
        bytes(ByteSize::kib(64), ByteSize::gib(64)),
        "Memory for packets that are being received, all connections together.",
    ),
    key(
        "mqtt.max_inflight",
        whole(1, 65_535),
        "Unacknowledged deliveries to a client that names no limit itself.",
    ),
    key(
        "mqtt.receive_maximum",
        whole(1, 65_535),
        "Unacknowledged publishes taken from an MQTT 5 client.",
    ),
    key(
        "mqtt.topic_alias_maximum",
        whole(0, 65_535),
        "Topic aliases that an MQTT 5 client may set.",
    ),
    key(
        "mqtt.max_subscriptions",
        whole(1, 1_000_000),
        "Subscriptions of one session.",
    ),
    key(
        "mqtt.max_filter_bytes",
        bytes(ByteSize::kib(1), ByteSize::mib(64)),
        "Filters of one session, all together.",
    ),
    key(
        "mqtt.max_sessions",
        whole(1, 10_000_000),
        "Sessions that outlive their connection. One more is refused: MQTT 5 with 0x97, older clients with code 3.",
    ),
    key(
        "mqtt.max_retained",
        whole(1, 10_000_000),
        "Topics with a retained message. One more is refused: MQTT 5 with 0x97; of older clients QoS 0 is dropped and the connection closed otherwise.",
    ),
    key(
        "mqtt.max_retained_bytes",
        bytes(ByteSize::kib(64), ByteSize::gib(64)),
        "Retained messages with their topics, all together; refused as with `max_retained`.",
    ),
    key(
        "mqtt.max_session_bytes",
        bytes(ByteSize::kib(64), ByteSize::gib(64)),
        "Filters, wills (of clients that are connected, and those that wait) and client ids of all sessions together, without the \
         first 256 bytes of each. More is refused: MQTT 5 with 0x97, older clients with code 3 (CONNECT) or 0x80 (SUBSCRIBE). It \
         takes up to four times as much memory.",
    ),
    key(
        "mqtt.max_topic_levels",
        whole(1, 1_024),
        "Levels of a topic or filter.",
    ),
    key(
        "mqtt.delivery_aliases",
        whole(0, 65_535),
        "Topics that get an alias in deliveries to an MQTT 5 client that allows as many.",
    ),
    key(
        "mqtt.max_shared_groups",
        whole(0, 65_535),
        "Shared groups ($share/<name>/<filter>), all together. One more is refused: MQTT 5 with 0x97, older clients with 0x80.",
    ),
    key(
        "mqtt.max_shared_members",
        whole(1, 100_000_000),
        "Members of shared groups, all together; a session counts in each of its groups. One more is refused as with `max_shared_groups`.",
    ),
    key(
        "mqtt.max_total_subscriptions",
        whole(1, 1_000_000_000),
        "Subscriptions of all sessions together. One more is refused as with `max_shared_groups`.",
    ),
    key(
        "mqtt.shared_redelivery_after",
        age(0, 1),
        "How long a member of a shared group may owe the acknowledgement of QoS 1 before the record goes to another; 0 for as long as it is connected.",
    ),
    key(
        "mqtt.connect_timeout",
        age(100, 1),
        "Time that a new connection has for its handshakes and its CONNECT together.",
    ),
    key(
        "mqtt.max_connect_bytes",
        bytes(ByteSize::kib(1), ByteSize::kib(256)),
        "Largest CONNECT, and largest request that opens a WebSocket: who is not known may claim no more.",
    ),
    key(
        "mqtt.session_expiry_max",
        age(0, 36_500),
        "How long the session of a client that is away is kept at most.",
    ),
    key(
        "mqtt.out_buffer_bytes",
        bytes(ByteSize::kib(4), ByteSize::mib(64)),
        "Encoded deliveries waiting for one socket.",
    ),
    optional(
        "mqtt.max_messages_per_second",
        whole(1, 10_000_000),
        "Publishes taken from one client per second, with bursts of a second's worth; a faster one is read more slowly. Without it \
         there is no limit.",
    ),
    optional(
        "mqtt.max_bytes_per_second",
        bytes(ByteSize::kib(1), ByteSize::gib(64)),
        "Bytes taken from one client per second, likewise.",
    ),
    key(
        "mqtt.max_topics",
        whole(1, 1_000_000),
        "Topics that one client may bring into the broker's table of topics. One more is refused: MQTT 5 with 0x97; of \
         older clients QoS 0 is dropped and the connection closed otherwise.",
    ),
    key(
        "mqtt.max_topic_bytes",
        whole(1, 65_535),
        "Length of a topic or filter. MQTT 5 hears 0x90 or 0x8F; of older clients QoS 0 is dropped and the connection closed \
         otherwise.",
    ),
    key(
        "mqtt.max_qos",
        whole(0, 2),
        "Highest QoS; a publish above it is refused with 0x9B, a subscription is granted less.",
    ),
    key(
        "mqtt.retain_available",
        Kind::Bool,
        "Whether clients may publish retained messages; otherwise they are refused with 0x9A.",
    ),
    key(
        "mqtt.wildcard_available",
        Kind::Bool,
        "Whether filters may have wildcards; otherwise they are refused with 0xA2.",
    ),
    optional(
        "mqtt.keep_alive_max",
        age(1_000, 1),
        "Longest keep alive, imposed on MQTT 5 clients that ask for a longer one or none. Up to 65535 s.",
    ),
    optional(
        "mqtt.server_reference",
        Kind::Text,
        "Where MQTT 5 clients are sent while this broker is drained, for example broker-2.example:1883.",
    ),
    optional(
        "mqtt.response_information",
        Kind::Text,
        "What MQTT 5 clients that ask are told as the basis of their response topics.",
    ),
    key(
        "flight.threads",
        whole(1, 64),
        "Threads of the service runtime: Flight and admin HTTP.",
    ),
    key(
        "flight.max_reads",
        whole(1, 1_024),
        "Reads that run at the same time, following ones included.",
    ),
    optional(
        "flight.max_reads_per_user",
        whole(1, 1_024),
        "Of these, how many one user may have; without it half of `max_reads`. The users of a tenant count as one, and so do \
         clients without a name.",
    ),
    key(
        "flight.read_budget_bytes",
        bytes(ByteSize::mib(16), ByteSize::gib(64)),
        "Memory for rows that readers have not taken yet and for what is read of the log for them, all together; one user may \
         have half of it.",
    ),
    key(
        "flight.stall_timeout",
        age(1_000, 1),
        "A reader that takes nothing for so long loses its place; it may go on with a new read.",
    ),
    key(
        "flight.max_message_bytes",
        bytes(ByteSize::mib(1), ByteSize::gib(1)),
        "Largest message over Flight.",
    ),
    optional(
        "flight.max_record_bytes",
        bytes(ByteSize::kib(1), ByteSize(268_435_460)),
        "Largest record that is taken over Flight, with topic and headers; without it `mqtt.max_packet_bytes`, and for \
         artifacts at least 1MiB.",
    ),
    key(
        "flight.max_groups",
        whole(1, 1_000_000),
        "Consumer groups of the broker.",
    ),
    optional(
        "flight.max_groups_per_user",
        whole(1, 1_000_000),
        "Of these, how many one user or tenant may own; without it half of `max_groups`.",
    ),
    key(
        "flight.max_streams",
        whole(1, 10_000),
        "Calls of one connection at the same time.",
    ),
    key(
        "flight.max_connections",
        whole(1, 60_000),
        "Connections at the same time, and a quarter of the file descriptors at most; more wait.",
    ),
    optional(
        "flight.max_connections_per_ip",
        whole(1, 60_000),
        "Connections of one address (IPv6: of one /64) that have shown no user; without it there is no such limit.",
    ),
    optional(
        "flight.max_connections_per_user",
        whole(1, 60_000),
        "Connections of one user, wherever they come from; without it half of `max_connections`. Calls on one more are \
         refused.",
    ),
    key(
        "flight.max_pending_connections",
        whole(1, 60_000),
        "Connections that have not made an authenticated call. For one more the oldest is closed, of the address that has \
         the most of them.",
    ),
    key(
        "flight.connect_timeout",
        age(100, 1),
        "Time that a connection has for its handshakes and its first authenticated call together.",
    ),
    key(
        "broker.loops",
        whole(1, 1),
        "Threads that serve MQTT connections; this version has one.",
    ),
    key(
        "broker.max_connections",
        whole(1, 10_000_000),
        "MQTT connections at the same time.",
    ),
    optional(
        "broker.max_connections_per_ip",
        whole(1, 10_000_000),
        "MQTT connections of one address at the same time; without it there is no such limit, because many devices may \
         share an address.",
    ),
    key(
        "broker.max_pending_connections",
        whole(1, 1_000_000),
        "Connections that have not sent their CONNECT; at most a quarter of them in a TLS handshake, and three quarters of \
         the file descriptors. For one more the oldest is closed, if it had a second; until then new ones wait in the \
         backlog.",
    ),
    key(
        "broker.max_connect_rate",
        whole(1, 1_000_000),
        "MQTT connections accepted in a second; the others wait in the backlog.",
    ),
    key(
        "broker.log_format",
        Kind::Choice(&["text", "json"]),
        "How the broker talks on stderr: a line of text, or one JSON object a line.",
    ),
    key(
        "admin.max_connections",
        whole(1, 10_000),
        "HTTP connections at the same time, and a sixteenth of the file descriptors at most; more wait.",
    ),
    optional(
        "admin.max_connections_per_ip",
        whole(1, 10_000),
        "Connections of one address, as `flight.max_connections_per_ip`.",
    ),
    optional(
        "admin.max_connections_per_user",
        whole(1, 10_000),
        "Connections of one user, as `flight.max_connections_per_user`.",
    ),
    key(
        "admin.max_pending_connections",
        whole(1, 10_000),
        "Connections that have not made an authenticated request, as `flight.max_pending_connections`.",
    ),
    key(
        "admin.connect_timeout",
        age(100, 1),
        "Time that a connection has until its first authenticated request.",
    ),
    key(
        "admin.hosts",
        Kind::Hosts,
        "Names by which this listener may be called, such as broker.example.com or *.example.com, beside addresses, \
         localhost and the machine's own name. A request by another name is refused with 421, except for /healthz, /readyz \
         and /metrics.",
    ),
    key(
        "admin.max_body_bytes",
        bytes(ByteSize(0), ByteSize::mib(16)),
        "Largest body of an HTTP request.",
    ),
    key(
        "admin.request_timeout",
        age(100, 1),
        "Time that an HTTP client has to send the head of a request, and the broker to answer it.",
    ),
    key(
        "sys.interval",
        age(0, 1),
        "Time between the values of `$SYS`; 0s turns it off.",
    ),
    key(
        "auth.allow_anonymous",
        Kind::Bool,
        "Lets in who has no credentials. Without any way to authenticate, needed to bind beyond loopback.",
    ),
    optional(
        "auth.password_file",
        Kind::File,
        "Users with their passwords, as `headwater users add` writes them; Mosquitto's files are read too.",
    ),
    optional(
        "auth.acl_file",
        Kind::File,
        "Who may do what, in Mosquitto's syntax; what it does not allow is denied. Without it whoever was let in \
         may use every topic.",
    ),
    key(
        "auth.operators",
        Kind::Names,
        "Users who are operators, beside those whom the ACL makes one. An operator may remove groups, take backups, reload \
         files and use all of `/api/v1`.",
    ),
    key(
        "auth.client_ids",
        Kind::Choice(&["auto", "any"]),
        "Which client ids a rule with `%c` believes: with `auto`, of a user with a name only the user's name, the ids of \
         its `client-id` lines and those in its certificate; `any` believes what the client says.",
    ),
    key(
        "auth.threads",
        whole(1, 64),
        "Threads that check passwords and tokens; each needs 19 MiB while it checks a password.",
    ),
    key(
        "auth.max_waiting",
        whole(1, 1_000_000),
        "Clients that wait to be checked. One more is refused: MQTT 5 with 0x89, older clients with code 3.",
    ),
    key(
        "auth.open_metrics",
        Kind::Bool,
        "Whether `/metrics` needs no credentials.",
    ),
    optional(
        "auth.token.keys_file",
        Kind::File,
        "Public keys of who signs tokens, a JWKS or a PEM file; without it tokens (JWT) are refused.",
    ),
    optional(
        "auth.token.issuer",
        Kind::Text,
        "What the claim `iss` of a token must be.",
    ),
    optional(
        "auth.token.audience",
        Kind::Text,
        "What the claim `aud` of a token must be or contain.",
    ),
    key(
        "auth.token.user_claim",
        Kind::Text,
        "The claim of a token that names the user.",
    ),
    key(
        "auth.token.leeway",
        age(0, 1),
        "How far the clocks of broker and issuer may be apart.",
    ),
    key(
        "auth.certificate.user",
        Kind::Choice(&["ignored", "common_name", "alternative_name"]),
        "Where a client certificate names the user; who has one needs no password then.",
    ),
    key(
        "auth.certificate.bind_client_id",
        Kind::Bool,
        "Whether the client id must be the user that the certificate names.",
    ),
    optional(
        "quotas.<who>.sessions",
        whole(1, 10_000_000),
        "Sessions that outlive their connection, of one tenant (of one user). Without a value a tenant has half of \
         `mqtt.max_sessions`, and a user what its tenant has. Only where clients have rights (`auth`) are users counted; one \
         without a tenant is a tenant of its own, and so are all that are anonymous together. One more is refused: MQTT 5 \
         with 0x97, older clients with code 3.",
    ),
    optional(
        "quotas.<who>.connections",
        whole(1, 10_000_000),
        "Connections, likewise; half of `broker.max_connections`.",
    ),
    optional(
        "quotas.<who>.subscriptions",
        whole(1, 1_000_000_000),
        "Subscriptions, likewise; half of `mqtt.max_total_subscriptions`. Older clients are told 0x80.",
    ),
    optional(
        "quotas.<who>.shared_groups",
        whole(0, 65_535),
        "Shared groups with a member of the tenant (of the user), likewise; half of `mqtt.max_shared_groups`.",
    ),
    optional(
        "quotas.<who>.shared_members",
        whole(1, 100_000_000),
        "Members of shared groups, likewise; half of `mqtt.max_shared_members`.",
    ),
    optional(
        "quotas.<who>.retained",
        whole(1, 10_000_000),
        "Topics with a retained message that the tenant (the user) has set since the broker started, likewise; half of \
         `mqtt.max_retained`.",
    ),
    optional(
        "quotas.<who>.retained_bytes",
        bytes(ByteSize::kib(1), ByteSize::gib(64)),
        "Those messages with their topics, likewise; half of `mqtt.max_retained_bytes`.",
    ),
    optional(
        "quotas.<who>.session_bytes",
        bytes(ByteSize::kib(1), ByteSize::gib(64)),
        "Filters, wills and client ids of sessions, likewise; half of `mqtt.max_session_bytes`.",
    ),
    optional(
        "quotas.<who>.topics",
        whole(1, 10_000_000),
        "Topics that the tenant (the user) may bring into the broker's table of topics before that is emptied, beside \
         `mqtt.max_topics` of each client. Without a value there is no limit.",
    ),
];
