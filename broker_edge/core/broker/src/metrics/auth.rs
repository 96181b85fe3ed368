//! Metrics of refusals. Labels are fixed words; nothing that a client sends becomes a label.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::auth::Denied;

#[derive(Default)]
pub struct AuthMetrics {
    denied: Family<Reason, Counter>,
    ended: Family<Reason, Counter>,
    reloads: Family<Outcome, Counter>,
    /// Publishes refused for lack of rights; they also count as refused.
    pub publishes_denied: Counter,
    pub subscriptions_denied: Counter,
    /// Calls of Flight and admin HTTP refused for lack of rights.
    pub calls_denied: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

impl AuthMetrics {
    /// Counts a client or caller that was not admitted.
    pub fn deny(&self, denied: Denied) {
        let reason = denied.label();
        self.denied.get_or_create(&Reason { reason }).inc();
    }

    /// Counts the end of an admitted connection: `revoked` or `expired`.
    pub fn end(&self, reason: &'static str) {
        self.ended.get_or_create(&Reason { reason }).inc();
    }

    pub fn count_reload(&self, is_done: bool) {
        let outcome = if is_done { "done" } else { "refused" };
        self.reloads.get_or_create(&Outcome { outcome }).inc();
    }

    pub fn register(&self, registry: &mut Registry) {
        // Initialized so that it is 0 rather than missing before the first event.
        let reason = Denied::BadCredentials.label();
        self.denied.get_or_create(&Reason { reason }).inc_by(0);
        for reason in ["revoked", "expired"] {
            self.ended.get_or_create(&Reason { reason }).inc_by(0);
        }
        for outcome in ["done", "refused"] {
            self.reloads.get_or_create(&Outcome { outcome }).inc_by(0);
        }
        registry.register(
            "denied",
            "Clients and callers that were not admitted",
            self.denied.clone(),
        );
        registry.register(
            "connections_ended",
            "Connections ended because rights were revoked or credentials expired",
            self.ended.clone(),
        );
        registry.register(
            "reloads",
            "Reloads of users, token keys and the ACL, by outcome",
            self.reloads.clone(),
        );
        registry.register(
            "publishes_denied",
            "Publishes refused for lack of rights",
            self.publishes_denied.clone(),
        );
        registry.register(
            "subscriptions_denied",
            "Subscriptions refused for lack of rights",
            self.subscriptions_denied.clone(),
        );
        registry.register(
            "calls_denied",
            "Calls of Flight and admin HTTP refused for lack of rights",
            self.calls_denied.clone(),
        );
    }
}
