//! The counts of a turn. They are added to the shared metrics once per turn, so that no atomic is touched per message.

use headwater_mqtt::ReasonCode;

use crate::metrics::Metrics;

#[derive(Debug, Default)]
pub struct TurnMetrics {
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
    pub shared_rights_checks: u64,
    pub catch_up_read_bytes: u64,
    pub receipts: u64,
    pub clients_accepted: u64,
    pub sessions_expired: u64,
    pub topics_refused: u64,
    pub publish_received_bytes: u64,
    pub publish_sent_bytes: u64,
    /// By packet and code; few kinds occur in a turn.
    refusals: Vec<(&'static str, ReasonCode, u64)>,
    pauses: [u64; PauseCause::ALL.len()],
}

/// Why reading of a connection is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseCause {
    /// Too many acknowledgements are pending.
    Acks,
    /// The client does not read what it is sent.
    Out,
    /// The budget for large packets is used up.
    Budget,
    /// The append queue of a partition is full.
    Queue,
    MessageRate,
    ByteRate,
}

impl PauseCause {
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Acks, "acks"),
        (Self::Out, "out"),
        (Self::Budget, "budget"),
        (Self::Queue, "queue"),
        (Self::MessageRate, "message_rate"),
        (Self::ByteRate, "byte_rate"),
    ];
}

/// Current values, set once per turn.
#[derive(Debug, Clone, Copy)]
pub struct Gauges {
    pub connections: usize,
    pub sessions: usize,
    pub session_bytes: u64,
    pub subscriptions: usize,
    pub shared_groups: usize,
}

impl TurnMetrics {
    pub fn paused(&mut self, cause: PauseCause) {
        self.pauses[cause as usize] += 1;
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
    pub fn publish(&mut self, metrics: &Metrics, present: Gauges) {
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
            (&mqtt.shared_rights_checks, self.shared_rights_checks),
            (&mqtt.catch_up_read_bytes, self.catch_up_read_bytes),
            (&mqtt.receipts, self.receipts),
            (&metrics.detail.clients_accepted, self.clients_accepted),
            (&metrics.detail.sessions_expired, self.sessions_expired),
            (&metrics.detail.topics_refused, self.topics_refused),
            (
                &metrics.detail.publish_received_bytes,
                self.publish_received_bytes,
            ),
            (&metrics.detail.publish_sent_bytes, self.publish_sent_bytes),
        ];
        for (counter, count) in counters {
            if count > 0 {
                counter.inc_by(count);
            }
        }
        for (packet, reason, count) in self.refusals.drain(..) {
            metrics.detail.refused(packet, reason, count);
        }
        for ((_, cause), count) in PauseCause::ALL.into_iter().zip(self.pauses) {
            if count > 0 {
                metrics.detail.paused(cause, count);
            }
        }
        mqtt.turns.inc();
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        mqtt.connections.set(gauge(present.connections));
        mqtt.shared_groups.set(gauge(present.shared_groups));
        mqtt.sessions.set(gauge(present.sessions));
        let bytes = i64::try_from(present.session_bytes);
        mqtt.session_bytes.set(bytes.unwrap_or(i64::MAX));
        mqtt.subscriptions.set(gauge(present.subscriptions));
        let refusals = std::mem::take(&mut self.refusals);
        *self = Self {
            refusals,
            ..Self::default()
        };
    }
}
