//! Settings of what is served beside MQTT: Flight and the admin listener.

use super::declare::{Kind, age, bytes, days, gib, kib, mib, ms, secs, settings, whole};
use super::units::{Age, ByteSize};

settings! {
    /// Limits of Arrow Flight.
    pub struct FlightSettings {
        /// Threads of the service runtime, for Flight and admin HTTP together.
        threads: u16 = 2, whole(1, 64);
        /// Reads that run at the same time, including those that follow the log.
        max_reads: u16 = 32, whole(1, 1_024);
        /// Reads of one user at the same time. The users of a tenant count as one, and so do clients without a name.
        /// Without a value it is half of `max_reads`.
        max_reads_per_user: Option<u16> = None, whole(1, 1_024);
        /// Memory for rows that readers have not fetched yet and for log reads on their behalf, all together. One user
        /// may have half of it.
        read_budget_bytes: ByteSize = mib(128), bytes(mib(16), gib(64));
        /// Time after which a read ends whose client fetches nothing. The client may continue with a new read.
        stall_timeout: Age = secs(60), age(secs(1), days(1));
        /// Largest message over Flight.
        max_message_bytes: ByteSize = mib(64), bytes(mib(1), gib(1));
        /// Concurrent calls of one connection.
        max_streams: u16 = 128, whole(1, 10_000);
        /// Connections at the same time; they use at most a quarter of the file descriptors. Further connections wait.
        max_connections: u16 = 256, whole(1, 60_000);
        /// Connections from one address (IPv6: one /64) that have not authenticated as a user. Without a value there is
        /// no such limit.
        max_connections_per_ip: Option<u16> = None, whole(1, 60_000);
        /// Connections of one user, from any address. Calls on further connections are refused. Without a value it is
        /// half of `max_connections`.
        max_connections_per_user: Option<u16> = None, whole(1, 60_000);
        /// Connections that have not made an authenticated call. At the limit a new connection replaces the oldest one of
        /// the address that has the most of them.
        max_pending_connections: u16 = 128, whole(1, 60_000);
        /// Time that a connection has for all of its handshakes and its first authenticated call.
        connect_timeout: Age = secs(10), age(ms(100), days(1));
        /// Largest record that is accepted over Flight, with topic and headers. Without a value it is
        /// `mqtt.max_packet_bytes`, and at least 1MiB for artifacts.
        max_record_bytes: Option<ByteSize> = None, bytes(kib(1), ByteSize(268_435_460));
        /// Consumer groups of the broker.
        max_groups: u32 = 1_000, whole(1, 1_000_000);
        /// Consumer groups that one user or tenant may own. Without a value it is half of `max_groups`.
        max_groups_per_user: Option<u32> = None, whole(1, 1_000_000);
    }
}

settings! {
    /// Limits of the admin listener.
    pub struct AdminSettings {
        /// HTTP connections at the same time; they use at most a sixteenth of the file descriptors. Further connections
        /// get answers to health probes (/healthz, /readyz), and wait with other requests.
        max_connections: u16 = 64, whole(1, 10_000);
        /// Connections from one address, as `flight.max_connections_per_ip`.
        max_connections_per_ip: Option<u16> = None, whole(1, 10_000);
        /// Connections of one user, as `flight.max_connections_per_user`.
        max_connections_per_user: Option<u16> = None, whole(1, 10_000);
        /// Streams to pages of the console at the same time. Each holds one connection.
        max_streams: u16 = 16, whole(1, 1_000);
        /// Connections that have not made an authenticated request, as `flight.max_pending_connections`.
        max_pending_connections: u16 = 32, whole(1, 10_000);
        /// Time that a connection has until its first authenticated request.
        connect_timeout: Age = secs(10), age(ms(100), days(1));
        /// Host names by which this listener may be called, for example broker.example.com or *.example.com, in addition
        /// to addresses, localhost and the name of the machine. A request for another host is refused with 421, except
        /// for /healthz, /readyz and /metrics.
        hosts: Vec<String> = Vec::new(), Kind::Hosts;
        /// Largest body of an HTTP request.
        max_body_bytes: ByteSize = kib(64), bytes(ByteSize(0), mib(16));
        /// Time that an HTTP client has to send the head of a request, and that the broker has to answer it.
        request_timeout: Age = secs(10), age(ms(100), days(1));
    }
}
