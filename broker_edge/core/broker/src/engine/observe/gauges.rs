//! The values of an engine now. Engines share the gauges, so each adds only what has changed. `commit_late` reads the
//! values each turn; name and help are in `crate::metrics`.

use crate::metrics::Metrics;

/// The values, each with the part of the metrics that has its gauge.
macro_rules! gauges {
    ($($gauge:ident: $part:ident,)*) => {
        #[derive(Debug, Clone, Copy, Default)]
        pub struct Gauges {
            $(pub $gauge: i64,)*
        }

        impl Gauges {
            /// Replaces these values in the gauges.
            pub fn replace(&mut self, present: Self, metrics: &Metrics) {
                $(if present.$gauge != self.$gauge {
                    metrics.$part.$gauge.inc_by(present.$gauge - self.$gauge);
                })*
                *self = present;
            }
        }
    };
}

gauges! {
    connections: mqtt,
    sessions: mqtt,
    session_bytes: mqtt,
    subscriptions: mqtt,
    send_waiting_bytes: mqtt,
    shared_groups: mqtt,
    draining: detail,
}
