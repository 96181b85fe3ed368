//! Connections of Flight and admin HTTP, and why the broker closed or refused them.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::auth::ListenerKind;

/// Why the broker closed or refused a connection, or refused a call on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Closed {
    /// It was closed for another connection before it had authenticated.
    Pending,
    Timeout,
    PerAddress,
    PerUser,
    Descriptors,
    /// Its TLS handshake failed.
    Tls,
}

impl Closed {
    const ALL: [Closed; 6] = [
        Closed::Pending,
        Closed::Timeout,
        Closed::PerAddress,
        Closed::PerUser,
        Closed::Descriptors,
        Closed::Tls,
    ];

    fn name(self) -> &'static str {
        match self {
            Closed::Pending => "pending",
            Closed::Timeout => "timeout",
            Closed::PerAddress => "per_ip",
            Closed::PerUser => "per_user",
            Closed::Descriptors => "descriptors",
            Closed::Tls => "tls",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfListener {
    listener: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfReason {
    listener: &'static str,
    reason: &'static str,
}

#[derive(Default)]
pub struct ListenerMetrics {
    connections: Family<OfListener, Gauge>,
    pending: Family<OfListener, Gauge>,
    closed: Family<OfReason, Counter>,
}

impl ListenerMetrics {
    pub fn set(&self, kind: ListenerKind, connections: usize, pending: usize) {
        let label = OfListener {
            listener: kind.name(),
        };
        for (family, count) in [(&self.connections, connections), (&self.pending, pending)] {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            family.get_or_create(&label).set(count);
        }
    }

    pub fn count_closed(&self, kind: ListenerKind, why: Closed) {
        let (listener, reason) = (kind.name(), why.name());
        self.closed
            .get_or_create(&OfReason { listener, reason })
            .inc();
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        // Initialized so that it is 0 rather than missing before the first event.
        for kind in [ListenerKind::Flight, ListenerKind::Admin] {
            let listener = kind.name();
            for family in [&self.connections, &self.pending] {
                drop(family.get_or_create(&OfListener { listener }));
            }
            for why in Closed::ALL {
                let reason = why.name();
                let label = OfReason { listener, reason };
                self.closed.get_or_create(&label).inc_by(0);
            }
        }
        let service = registry.sub_registry_with_prefix("service");
        service.register(
            "connections",
            "Connections of Flight and admin HTTP",
            self.connections.clone(),
        );
        service.register(
            "pending_connections",
            "Connections without an authenticated call yet",
            self.pending.clone(),
        );
        service.register(
            "connections_closed",
            "Connections that the broker closed early or refused",
            self.closed.clone(),
        );
    }
}
