//! Latencies in nanoseconds in an HDR histogram: three digits over the whole range, for any number of values.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// One hour; longer latencies count as one hour.
const MAX_NS: u64 = 3_600_000_000_000;

#[derive(Debug, Clone)]
pub struct Latency(Histogram<u64>);

impl Latency {
    pub fn new() -> Self {
        Self(Histogram::new_with_bounds(1_000, MAX_NS, 3).expect("the bounds are in order"))
    }

    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns.min(MAX_NS));
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }

    pub fn ms(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1e6
    }

    pub fn max_ms(&self) -> f64 {
        self.0.max() as f64 / 1e6
    }

    pub fn to_json(&self) -> Value {
        json!({
            "count": self.count(),
            "mean_ms": self.0.mean() / 1e6,
            "p50_ms": self.ms(0.5),
            "p90_ms": self.ms(0.9),
            "p99_ms": self.ms(0.99),
            "p99.9_ms": self.ms(0.999),
            "max_ms": self.max_ms(),
        })
    }
}
