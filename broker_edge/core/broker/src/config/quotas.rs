//! Quotas of tenants and users: their settings. What applies where nothing is set is in `data_plane`, and what is
//! counted in `engine/quotas/kinds`. They are the same for every tenant.

use super::declare::{bytes, gib, kib, settings, whole};
use super::units::ByteSize;

settings! {
    /// The share of the global limits that one tenant and one user may have.
    pub struct QuotaSettings {}
    sections {
        /// Limits of one tenant. They apply only where clients have rights (`auth`). A user without a tenant is a tenant
        /// of its own, and all anonymous clients together are one tenant.
        tenant: Quota;
        /// Limits of one user. Without a value a user may have as much as its tenant.
        user: Quota;
    }
}

settings! {
    /// Limits of one tenant or one user.
    pub struct Quota {
        /// Sessions that outlive their connection. Without a value a tenant may have half of `mqtt.max_sessions`. A
        /// CONNECT over the limit is refused: reason code 0x97 for MQTT 5, return code 3 for older clients.
        sessions: Option<u32> = None, whole(1, 10_000_000);
        /// Connections. Without a value a tenant may have half of `broker.max_connections`. A CONNECT over the limit is
        /// refused as for `sessions`.
        connections: Option<u32> = None, whole(1, 10_000_000);
        /// Subscriptions. Without a value a tenant may have half of `mqtt.max_total_subscriptions`. A SUBSCRIBE over the
        /// limit is refused: 0x97 for MQTT 5, 0x80 for older clients.
        subscriptions: Option<u32> = None, whole(1, 1_000_000_000);
        /// Shared groups with a member of the tenant or user. Without a value a tenant may have half of
        /// `mqtt.max_shared_groups`.
        shared_groups: Option<u32> = None, whole(0, 65_535);
        /// Members of shared groups. Without a value a tenant may have half of `mqtt.max_shared_members`.
        shared_members: Option<u32> = None, whole(1, 100_000_000);
        /// Topics with a retained message that the tenant or user has set since the broker started. Without a value a
        /// tenant may have half of `mqtt.max_retained`.
        retained: Option<u32> = None, whole(1, 10_000_000);
        /// Total size of those retained messages and their topics. Without a value a tenant may have half of
        /// `mqtt.max_retained_bytes`.
        retained_bytes: Option<ByteSize> = None, bytes(kib(1), gib(64));
        /// Total size of the filters, wills and client ids of sessions. Without a value a tenant may have half of
        /// `mqtt.max_session_bytes`.
        session_bytes: Option<ByteSize> = None, bytes(kib(1), gib(64));
        /// New topics that the tenant or user may add to the broker's topic table before the table is emptied, in
        /// addition to the limit of each client (`mqtt.max_topics`). Without a value there is no limit.
        topics: Option<u32> = None, whole(1, 10_000_000);
    }
}
