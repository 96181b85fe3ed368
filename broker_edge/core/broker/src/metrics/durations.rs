//! A histogram of durations in fixed buckets of plain atomics. Observing takes no lock, so the event loop can use it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use headwater_log::SYNC_BOUNDS_US;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

#[derive(Debug, Clone, Default)]
pub struct Durations(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    counts: [AtomicU64; SYNC_BOUNDS_US.len() + 1],
    sum_ns: AtomicU64,
}

impl Durations {
    pub fn observe(&self, duration: Duration) {
        self.observe_many(duration, 1);
    }

    /// Observes the same duration `count` times.
    pub fn observe_many(&self, duration: Duration, count: u64) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = SYNC_BOUNDS_US.partition_point(|bound| *bound < us);
        self.0.counts[bucket].fetch_add(count, Relaxed);
        self.0.sum_ns.fetch_add(ns.saturating_mul(count), Relaxed);
    }

    /// Replaces the counts by those of another histogram with the same buckets.
    pub fn set(&self, counts: &[u64; SYNC_BOUNDS_US.len() + 1], sum_ns: u64) {
        for (held, count) in self.0.counts.iter().zip(counts) {
            held.store(*count, Relaxed);
        }
        self.0.sum_ns.store(sum_ns, Relaxed);
    }

    /// The sum of all observed durations in seconds.
    pub fn total_s(&self) -> f64 {
        self.0.sum_ns.load(Relaxed) as f64 / 1e9
    }

    /// How many durations were observed in each bucket, the last for those above all bounds.
    pub fn counts(&self) -> [u64; SYNC_BOUNDS_US.len() + 1] {
        std::array::from_fn(|bucket| self.0.counts[bucket].load(Relaxed))
    }

    #[cfg(test)]
    pub fn count(&self) -> u64 {
        self.0.counts.iter().map(|count| count.load(Relaxed)).sum()
    }
}

impl TypedMetric for Durations {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Durations {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let bounds = SYNC_BOUNDS_US.iter().map(|us| *us as f64 / 1e6);
        let buckets: Vec<(f64, u64)> = bounds
            .chain([f64::INFINITY])
            .zip(&self.0.counts)
            .map(|(bound, count)| (bound, count.load(Relaxed)))
            .collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(self.total_s(), count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_that_holds_it() {
        let durations = Durations::default();
        durations.observe(Duration::from_micros(100));
        durations.observe_many(Duration::from_micros(101), 2);
        durations.observe(Duration::from_secs(60));
        assert_eq!(durations.count(), 4);
        let mut registry = Registry::default();
        registry.register("x_seconds", "X", durations);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "x_seconds_bucket{le=\"0.00005\"} 0",
            "x_seconds_bucket{le=\"0.0001\"} 1",
            "x_seconds_bucket{le=\"0.00025\"} 3",
            "x_seconds_bucket{le=\"10.0\"} 3",
            "x_seconds_bucket{le=\"+Inf\"} 4",
            "x_seconds_count 4",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
