//! The counts of a turn. They are added to the shared metrics once per turn, so that no atomic is touched per message.

use headwater_mqtt::ReasonCode;
use prometheus_client::metrics::counter::Counter;

use crate::engine::Connection;
use crate::engine::session::pauses::Pause;
use crate::metrics::Metrics;

use super::Observe;

/// What is counted, each with the metric that it is added to.
macro_rules! counts {
    ($($count:ident: $part:ident.$metric:ident,)*) => {
        #[derive(Debug, Clone, Copy)]
        pub enum Count {
            $($count,)*
        }

        impl Count {
            const ALL: [Self; [$(Self::$count),*].len()] = [$(Self::$count),*];

            fn metric(self, metrics: &Metrics) -> &Counter {
                match self {
                    $(Self::$count => &metrics.$part.$metric,)*
                }
            }
        }
    };
}

counts! {
    ConnectionsOpened: mqtt.connections_opened,
    ConnectionsRefused: mqtt.connections_refused,
    PacketsReceived: mqtt.packets_received,
    PacketsSent: mqtt.packets_sent,
    BytesReceived: mqtt.bytes_received,
    BytesSent: mqtt.bytes_sent,
    PublishesReceived: mqtt.publishes_received,
    PublishesAcknowledged: mqtt.publishes_acknowledged,
    PublishesRefused: mqtt.publishes_refused,
    PublishesRepeated: mqtt.publishes_repeated,
    SessionsRefused: mqtt.sessions_refused,
    RetainedRefused: mqtt.retained_refused,
    Deliveries: mqtt.deliveries,
    DeliveriesDropped: mqtt.deliveries_dropped,
    SharedReturned: mqtt.shared_returned,
    SharedRightsChecks: mqtt.shared_rights_checks,
    CatchUpReadBytes: mqtt.catch_up_read_bytes,
    Receipts: mqtt.receipts,
    ClientsAccepted: detail.clients_accepted,
    SessionsExpired: detail.sessions_expired,
    TopicsRefused: detail.topics_refused,
    PublishReceivedBytes: detail.publish_received_bytes,
    PublishSentBytes: detail.publish_sent_bytes,
}

/// The counts since they were last published.
#[derive(Debug, Default)]
pub struct TurnMetrics {
    counts: [u64; Count::ALL.len()],
    /// By packet and code; few kinds occur in a turn.
    refusals: Vec<(&'static str, ReasonCode, u64)>,
    pauses: [u64; Pause::CAUSES.len()],
}

impl TurnMetrics {
    /// Adds the counts to the metrics and resets them.
    pub fn publish(&mut self, metrics: &Metrics) {
        for (count, value) in Count::ALL.into_iter().zip(&mut self.counts) {
            if *value > 0 {
                count.metric(metrics).inc_by(std::mem::take(value));
            }
        }
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

impl Observe {
    #[inline]
    pub fn count(&mut self, what: Count, more: u64) {
        self.turn_metrics.counts[what as usize] += more;
    }

    /// What was counted in this turn.
    #[inline]
    pub fn counted(&self, what: Count) -> u64 {
        self.turn_metrics.counts[what as usize]
    }

    /// Begins a pause of reading.
    pub fn pause(&mut self, conn: &mut Connection, pause: Pause) {
        conn.pauses.begin(pause);
        self.turn_metrics.pauses[pause.number()] += 1;
    }

    /// Counts a reason code if it is an error.
    pub fn refuse(&mut self, packet: &'static str, reason: ReasonCode) {
        self.refuse_several(packet, reason, 1);
    }

    pub fn refuse_several(&mut self, packet: &'static str, reason: ReasonCode, times: u64) {
        if !reason.is_error() || times == 0 {
            return;
        }
        let refusals = &mut self.turn_metrics.refusals;
        let same = |(of, code, _): &&mut (&str, ReasonCode, u64)| *of == packet && *code == reason;
        match refusals.iter_mut().find(same) {
            Some((_, _, count)) => *count += times,
            None => refusals.push((packet, reason, times)),
        }
    }
}
