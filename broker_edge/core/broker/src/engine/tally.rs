//! What a turn counted. It is added to the shared metrics once a turn, so that no atomic is touched per message.

use crate::metrics::Metrics;

#[derive(Debug, Default)]
pub struct Tally {
    pub opened: u64,
    pub refused: u64,
    pub packets_received: u64,
    pub packets_sent: u64,
    pub bytes_received: u64,
    pub bytes_sent: u64,
    pub publishes_received: u64,
    pub publishes_acknowledged: u64,
    pub publishes_refused: u64,
    pub publishes_repeated: u64,
    pub sessions_refused: u64,
    pub retained_refused: u64,
    pub deliveries: u64,
    pub deliveries_dropped: u64,
    pub shared_returned: u64,
    pub receipts: u64,
}

/// Present numbers, set once a turn.
#[derive(Debug, Clone, Copy)]
pub struct Present {
    pub connections: usize,
    pub sessions: usize,
    pub subscriptions: usize,
    pub shared_groups: usize,
}

impl Tally {
    /// Adds the counts to the metrics and starts again from zero.
    pub fn publish(&mut self, metrics: &Metrics, present: Present) {
        let mqtt = &metrics.mqtt;
        let counters = [
            (&mqtt.connections_opened, self.opened),
            (&mqtt.connections_refused, self.refused),
            (&mqtt.packets_received, self.packets_received),
            (&mqtt.packets_sent, self.packets_sent),
            (&mqtt.bytes_received, self.bytes_received),
            (&mqtt.bytes_sent, self.bytes_sent),
            (&mqtt.publishes_received, self.publishes_received),
            (&mqtt.publishes_acknowledged, self.publishes_acknowledged),
            (&mqtt.publishes_refused, self.publishes_refused),
            (&mqtt.publishes_repeated, self.publishes_repeated),
            (&mqtt.sessions_refused, self.sessions_refused),
            (&mqtt.retained_refused, self.retained_refused),
            (&mqtt.deliveries, self.deliveries),
            (&mqtt.deliveries_dropped, self.deliveries_dropped),
            (&mqtt.shared_returned, self.shared_returned),
            (&mqtt.receipts, self.receipts),
        ];
        for (counter, count) in counters {
            if count > 0 {
                counter.inc_by(count);
            }
        }
        mqtt.turns.inc();
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        mqtt.connections.set(gauge(present.connections));
        mqtt.shared_groups.set(gauge(present.shared_groups));
        mqtt.sessions.set(gauge(present.sessions));
        mqtt.subscriptions.set(gauge(present.subscriptions));
        *self = Self::default();
    }
}
