//! The counters and gauges that a sample is made of: what the broker did in a second are differences of them.

use std::time::Duration;

use headwater_log::SYNC_BOUNDS_US;

use crate::service::samples::{NAMES, Sample};
use crate::service::shared::Shared;

const BUCKETS: usize = SYNC_BOUNDS_US.len() + 1;
const COUNTERS: usize = 7;

/// Counters and gauges at one moment.
pub struct Totals {
    counters: [u64; COUNTERS],
    acks: [u64; BUCKETS],
    syncs: [u64; BUCKETS],
    busy_s: f64,
    gauges: [f32; 4],
}

impl Totals {
    pub fn of(shared: &Shared) -> Totals {
        let (mqtt, detail) = (&shared.metrics.mqtt, &shared.metrics.detail);
        let mut syncs = [0; BUCKETS];
        for partition in shared.log.partitions() {
            let counts = partition.stats().sync_counts;
            syncs
                .iter_mut()
                .zip(counts)
                .for_each(|(sum, count)| *sum += count);
        }
        Totals {
            counters: [
                mqtt.publishes_received.get(),
                mqtt.deliveries.get(),
                detail.publish_received_bytes.get(),
                detail.publish_sent_bytes.get(),
                mqtt.publishes_refused.get(),
                mqtt.deliveries_dropped.get(),
                shared.metrics.flight.records_read.get(),
            ],
            acks: detail.ack_latency.counts(),
            syncs,
            busy_s: detail.turns.total_s(),
            gauges: [
                mqtt.connections.get() as f32,
                mqtt.sessions.get() as f32,
                mqtt.subscriptions.get() as f32,
                // Not measured yet.
                Some(shared.log.disk_use().used_bytes as f32)
                    .filter(|bytes| *bytes > 0.0)
                    .unwrap_or(f32::NAN),
            ],
        }
    }

    /// What happened since `before`, which was `elapsed` ago.
    pub fn since(&self, before: &Totals, elapsed: Duration) -> Sample {
        let seconds = elapsed.as_secs_f64().max(0.001);
        let rates = self.counters.iter().zip(before.counters);
        let rates = rates.map(|(now, before)| (now.saturating_sub(before) as f64 / seconds) as f32);
        let p99s = [(self.acks, before.acks), (self.syncs, before.syncs)];
        let p99s = p99s.map(|(now, before)| p99_s(&now, &before));
        let busy = ((self.busy_s - before.busy_s) / seconds) as f32;
        let mut sample = [f32::NAN; NAMES.len()];
        let numbers = rates.chain(p99s).chain([busy]).chain(self.gauges);
        sample
            .iter_mut()
            .zip(numbers)
            .for_each(|(at, number)| *at = number);
        sample
    }
}

/// The 99th percentile of what was observed between two counts of a histogram, in seconds: as Prometheus does, a
/// straight line through the bucket. NaN if nothing was; the highest bound for what is above it.
fn p99_s(now: &[u64; BUCKETS], before: &[u64; BUCKETS]) -> f32 {
    let counts: Vec<u64> = now
        .iter()
        .zip(before)
        .map(|(now, before)| now.saturating_sub(*before))
        .collect();
    let wanted = counts.iter().sum::<u64>() as f64 * 0.99;
    if wanted == 0.0 {
        return f32::NAN;
    }
    let mut below = 0.0;
    let mut low_us = 0;
    for (count, high_us) in counts.iter().zip(SYNC_BOUNDS_US) {
        let count = *count as f64;
        if below + count >= wanted {
            let part = (wanted - below) / count;
            return ((low_us as f64 + part * (high_us - low_us) as f64) / 1e6) as f32;
        }
        below += count;
        low_us = high_us;
    }
    (low_us as f64 / 1e6) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_of_what_came_since_and_lies_within_its_bucket() {
        let (mut before, mut now) = ([0; BUCKETS], [0; BUCKETS]);
        assert!(p99_s(&now, &before).is_nan());
        // Old slow ones do not count.
        (before[15], now[15]) = (1_000, 1_000);
        now[3] = 100;
        let found = p99_s(&now, &before);
        assert!((0.000_25..=0.000_5).contains(&found), "{found}");
        now[16] += 100;
        assert_eq!(p99_s(&now, &before), 10.0);
    }

    #[test]
    fn a_sample_has_rates_by_the_time_that_passed() {
        let totals = |count: u64, busy_s: f64| Totals {
            counters: [count; COUNTERS],
            acks: [0; BUCKETS],
            syncs: [0; BUCKETS],
            busy_s,
            gauges: [1.0, 2.0, 3.0, 4.0],
        };
        let sample = totals(30, 1.5).since(&totals(10, 0.5), Duration::from_secs(2));
        assert_eq!(sample[..7], [10.0; 7]);
        assert!(sample[7].is_nan() && sample[8].is_nan());
        assert_eq!(sample[9..], [0.5, 1.0, 2.0, 3.0, 4.0]);
        // A restart of a counter is no negative rate.
        assert_eq!(
            totals(0, 0.0).since(&totals(9, 0.0), Duration::from_secs(1))[0],
            0.0
        );
    }
}
