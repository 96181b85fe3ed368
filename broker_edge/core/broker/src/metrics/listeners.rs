//! Connections of Flight and admin HTTP, and why the broker closed or refused them.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Label;
use crate::auth::ListenerKind;
use crate::words::words;

words! {
    /// Why the broker closed or refused a connection, or refused a call on it.
    pub enum Closed {
        /// It was closed for another connection before it had authenticated.
        Pending = "pending",
        Timeout = "timeout",
        PerAddress = "per_ip",
        PerUser = "per_user",
        Descriptors = "descriptors",
        /// Its TLS handshake failed.
        Tls = "tls",
    }
}

metrics! {
    pub struct ListenerMetrics {
        "service" {
            connections: Family<Label, Gauge> = "connections", "Connections of Flight and admin HTTP";
            pending: Family<Label, Gauge> =
                "pending_connections", "Connections without an authenticated call yet";
            closed: Family<Label<2>, Counter> =
                "connections_closed", "Connections that the broker closed early or refused";
        }
    }
}

impl ListenerMetrics {
    pub fn set(&self, kind: ListenerKind, connections: usize, pending: usize) {
        let label = [("listener", kind.name())];
        for (family, count) in [(&self.connections, connections), (&self.pending, pending)] {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            family.get_or_create(&label).set(count);
        }
    }

    pub fn count_closed(&self, kind: ListenerKind, why: Closed) {
        let label = [("listener", kind.name()), ("reason", why.name())];
        self.closed.get_or_create(&label).inc();
    }

    pub(super) fn start_at_zero(&self) {
        for kind in [ListenerKind::Flight, ListenerKind::Admin] {
            for family in [&self.connections, &self.pending] {
                drop(family.get_or_create(&[("listener", kind.name())]));
            }
            for why in Closed::ALL {
                let label = [("listener", kind.name()), ("reason", why.name())];
                drop(self.closed.get_or_create(&label));
            }
        }
    }
}
