//! Who was refused what. Labels are fixed words: nothing that a client sends becomes one.

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
    /// Publishes that their clients had no right to; also among those refused.
    pub publishes_denied: Counter,
    pub subscriptions_denied: Counter,
    /// Calls of Flight and admin HTTP that their callers had no right to.
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
    /// Counts somebody who was not let in.
    pub fn deny(&self, denied: Denied) {
        let reason = denied.label();
        self.denied.get_or_create(&Reason { reason }).inc();
    }

    /// Counts a connection that was let in once and ended: `revoked` or `expired`.
    pub fn end(&self, reason: &'static str) {
        self.ended.get_or_create(&Reason { reason }).inc();
    }

    pub fn count_reload(&self, is_done: bool) {
        let outcome = if is_done { "done" } else { "refused" };
        self.reloads.get_or_create(&Outcome { outcome }).inc();
    }

    pub fn register(&self, registry: &mut Registry) {
        // What has not happened yet is 0, not unknown.
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
            "Clients and callers that were not let in",
            self.denied.clone(),
        );
        registry.register(
            "connections_ended",
            "Connections ended because rights were revoked or credentials expired",
            self.ended.clone(),
        );
        registry.register(
            "reloads",
            "Reloads of users, tokens' keys and ACL, by outcome",
            self.reloads.clone(),
        );
        registry.register(
            "publishes_denied",
            "Publishes that their clients had no right to",
            self.publishes_denied.clone(),
        );
        registry.register(
            "subscriptions_denied",
            "Subscriptions that their clients had no right to",
            self.subscriptions_denied.clone(),
        );
        registry.register(
            "calls_denied",
            "Calls of Flight and admin HTTP that their callers had no right to",
            self.calls_denied.clone(),
        );
    }
}
