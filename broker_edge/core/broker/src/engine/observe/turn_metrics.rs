//! The counts of a turn. They are added to the shared metrics once per turn, so that no atomic is touched per message.

use headwater_mqtt::ReasonCode;

use crate::engine::Connection;
use crate::engine::session::pauses::Pause;
use crate::metrics::Metrics;

/// The counts, each with the metric that it is added to.
macro_rules! counts {
    ($($count:ident: $part:ident,)*) => {
        #[derive(Debug, Default)]
        pub struct TurnMetrics {
            $(pub $count: u64,)*
            /// By packet and code; few kinds occur in a turn.
            refusals: Vec<(&'static str, ReasonCode, u64)>,
            pauses: [u64; Pause::CAUSES.len()],
        }

        impl TurnMetrics {
            fn publish_counts(&mut self, metrics: &Metrics) {
                $(if self.$count > 0 {
                    metrics.$part.$count.inc_by(std::mem::take(&mut self.$count));
                })*
            }
        }
    };
}

counts! {
    connections_opened: mqtt,
    connections_refused: mqtt,
    packets_received: mqtt,
    packets_sent: mqtt,
    bytes_received: mqtt,
    bytes_sent: mqtt,
    publishes_received: mqtt,
    publishes_acknowledged: mqtt,
    publishes_refused: mqtt,
    publishes_repeated: mqtt,
    sessions_refused: mqtt,
    retained_refused: mqtt,
    deliveries: mqtt,
    deliveries_dropped: mqtt,
    shared_returned: mqtt,
    shared_rights_checks: mqtt,
    catch_up_read_bytes: mqtt,
    receipts: mqtt,
    clients_accepted: detail,
    sessions_expired: detail,
    topics_refused: detail,
    publish_received_bytes: detail,
    publish_sent_bytes: detail,
}

impl TurnMetrics {
    /// Begins a pause of reading.
    pub fn pause(&mut self, conn: &mut Connection, pause: Pause) {
        conn.pauses.begin(pause);
        self.pauses[pause.number()] += 1;
    }

    /// Counts a reason code if it is an error.
    pub fn refuse(&mut self, packet: &'static str, reason: ReasonCode) {
        self.refuse_several(packet, reason, 1);
    }

    pub fn refuse_several(&mut self, packet: &'static str, reason: ReasonCode, times: u64) {
        if !reason.is_error() || times == 0 {
            return;
        }
        let same = |(of, code, _): &&mut (&str, ReasonCode, u64)| *of == packet && *code == reason;
        match self.refusals.iter_mut().find(same) {
            Some((_, _, count)) => *count += times,
            None => self.refusals.push((packet, reason, times)),
        }
    }

    /// Adds the counts to the metrics and resets them.
    pub fn publish(&mut self, metrics: &Metrics) {
        self.publish_counts(metrics);
        for (packet, reason, count) in self.refusals.drain(..) {
            metrics.detail.refused(packet, reason, count);
        }
        for (cause, count) in Pause::CAUSES.into_iter().zip(&mut self.pauses) {
            if *count > 0 {
                metrics.detail.paused(cause, std::mem::take(count));
            }
        }
        metrics.mqtt.turns.inc();
    }
}
