//! Metrics of refusals. Labels are fixed words; nothing that a client sends becomes a label.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::Label;
use crate::auth::Denied;

metrics! {
    pub struct AuthMetrics {
        "auth" {
            denied: Family<Label, Counter> = "denied", "Clients and callers that were not admitted";
            ended: Family<Label, Counter> =
                "connections_ended", "Connections ended because rights were revoked or credentials expired";
            reloads: Family<Label, Counter> =
                "reloads", "Reloads of users, token keys and the ACL, by outcome";
            /// Publishes refused for lack of rights; they also count as refused.
            pub publishes_denied: Counter = "publishes_denied", "Publishes refused for lack of rights";
            pub subscriptions_denied: Counter =
                "subscriptions_denied", "Subscriptions refused for lack of rights";
            pub calls_denied: Counter =
                "calls_denied", "Calls of Flight and admin HTTP refused for lack of rights";
        }
    }
}

impl AuthMetrics {
    /// Counts a client or caller that was not admitted.
    pub fn deny(&self, denied: Denied) {
        let label = [("reason", denied.label())];
        self.denied.get_or_create(&label).inc();
    }

    /// Counts the end of an admitted connection: `revoked` or `expired`.
    pub fn end(&self, reason: &'static str) {
        self.ended.get_or_create(&[("reason", reason)]).inc();
    }

    pub fn count_reload(&self, is_done: bool) {
        let outcome = if is_done { "done" } else { "refused" };
        self.reloads.get_or_create(&[("outcome", outcome)]).inc();
    }

    pub(super) fn start_at_zero(&self) {
        for denied in Denied::ALL {
            let reason = denied.label();
            drop(self.denied.get_or_create(&[("reason", reason)]));
        }
        for reason in ["revoked", "expired"] {
            drop(self.ended.get_or_create(&[("reason", reason)]));
        }
        for outcome in ["done", "refused"] {
            drop(self.reloads.get_or_create(&[("outcome", outcome)]));
        }
    }
}
