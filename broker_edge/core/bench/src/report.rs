//! The result of a measurement, as text and as JSON.

use serde_json::{Value, json};

use crate::latency::Latency;
use crate::plan::{Pace, Plan, Scenario};

#[derive(Debug, Clone)]
pub struct Report {
    pub scenario: Scenario,
    pub pace: Pace,
    pub publishers: usize,
    pub subscribers: usize,
    /// Messages sent; connections begun.
    pub sent: u64,
    /// Acknowledgements received; in `connect`, connections accepted.
    pub acked: u64,
    pub acks_wanted: u64,
    /// Publishes that the broker answered with an error.
    pub refused: u64,
    pub delivered: u64,
    pub deliveries_wanted: u64,
    /// Total size of the payloads sent.
    pub payload_bytes: u64,
    pub seconds: f64,
    pub acks: Latency,
    pub deliveries: Latency,
    /// How much later than intended messages were sent; only in an open loop.
    pub lag: Option<Latency>,
    /// CPU time of this process during the run.
    pub own_cpu_ns: u64,
    pub broker_cpu_ns: Option<u64>,
    pub interrupted: bool,
}

impl Report {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            scenario: plan.scenario,
            pace: plan.pace,
            publishers: plan.publisher_count(),
            subscribers: plan.subscriber_count(),
            sent: 0,
            acked: 0,
            acks_wanted: 0,
            refused: 0,
            delivered: 0,
            deliveries_wanted: 0,
            payload_bytes: 0,
            seconds: 0.0,
            acks: Latency::new(),
            deliveries: Latency::new(),
            lag: None,
            own_cpu_ns: 0,
            broker_cpu_ns: None,
            interrupted: false,
        }
    }

    /// Whether expected acknowledgements or deliveries are missing. Deliveries of QoS 0 may be lost.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.acked < self.acks_wanted
            || self.refused > 0
            || (self.acks_wanted > 0 && self.delivered < self.deliveries_wanted)
    }

    /// What the rates count: deliveries, sent messages or connections.
    fn work(&self) -> (u64, &'static str) {
        match self.scenario {
            Scenario::Sub | Scenario::Pair => (self.delivered, "deliveries"),
            Scenario::Pub => (self.sent, "messages"),
            Scenario::Connect => (self.acked, "connections"),
        }
    }

    fn per_s(&self, count: u64) -> f64 {
        if self.seconds > 0.0 {
            count as f64 / self.seconds
        } else {
            0.0
        }
    }

    fn us_each(&self, cpu_ns: u64) -> f64 {
        cpu_ns as f64 / 1e3 / self.work().0.max(1) as f64
    }

    #[must_use]
    pub fn to_json(&self) -> Value {
        let latency = |of: &Latency| (of.count() > 0).then(|| of.to_json());
        let (pace, value) = match self.pace {
            Pace::Closed { window } => ("closed", json!(window)),
            Pace::Open { per_s } => ("open", json!(per_s)),
        };
        json!({
            "scenario": self.scenario.name(),
            "loop": pace,
            (if pace == "closed" { "window" } else { "rate_per_s" }): value,
            "publishers": self.publishers,
            "subscribers": self.subscribers,
            "sent": self.sent,
            "acked": self.acked,
            "acks_missing": self.acks_wanted.saturating_sub(self.acked),
            "refused": self.refused,
            "delivered": self.delivered,
            "deliveries_missing": self.deliveries_wanted.saturating_sub(self.delivered),
            "payload_bytes": self.payload_bytes,
            "seconds": self.seconds,
            "per_s": self.per_s(self.work().0),
            "ack_latency": latency(&self.acks),
            "delivery_latency": latency(&self.deliveries),
            "send_lag": self.lag.as_ref().and_then(latency),
            "own_cpu_us_each": self.us_each(self.own_cpu_ns),
            "broker_cpu_us_each": self.broker_cpu_ns.map(|ns| self.us_each(ns)),
            "interrupted": self.interrupted,
        })
    }

    #[must_use]
    pub fn to_text(&self) -> String {
        let mut lines = Vec::new();
        let (work, noun) = self.work();
        let pace = match self.pace {
            Pace::Closed { window } if self.scenario != Scenario::Connect => {
                format!("closed loop, window {window}")
            }
            Pace::Closed { .. } => "closed loop".to_owned(),
            Pace::Open { per_s } => format!("open loop, {per_s} per second"),
        };
        lines.push(format!("{}: {pace}", self.scenario.name()));
        lines.push(format!(
            "{work} {noun} in {:.2} s: {:.0} per second",
            self.seconds,
            self.per_s(work)
        ));
        if self.scenario.delivers() {
            let each = self.per_s(self.sent);
            lines.push(format!("{} messages sent: {each:.0} per second", self.sent));
        }
        if self.is_short() || self.delivered < self.deliveries_wanted {
            lines.push(format!(
                "missing: {} acknowledgements, {} deliveries; {} refused",
                self.acks_wanted.saturating_sub(self.acked),
                self.deliveries_wanted.saturating_sub(self.delivered),
                self.refused
            ));
        }
        let named = [
            ("acknowledged", Some(&self.acks)),
            ("delivered", Some(&self.deliveries)),
            ("sent late by", self.lag.as_ref()),
        ];
        let shown: Vec<(&str, &Latency)> = named
            .into_iter()
            .filter_map(|(name, latency)| Some((name, latency.filter(|of| of.count() > 0)?)))
            .collect();
        if !shown.is_empty() {
            lines.push(format!(
                "{:14}{:>10}{:>10}{:>10}{:>10}{:>10}",
                "ms", "p50", "p90", "p99", "p99.9", "max"
            ));
        }
        for (name, latency) in shown {
            let [p50, p90, p99, p999] = [0.5, 0.9, 0.99, 0.999].map(|q| latency.ms(q));
            let max = latency.max_ms();
            lines.push(format!(
                "{name:14}{p50:>10.3}{p90:>10.3}{p99:>10.3}{p999:>10.3}{max:>10.3}"
            ));
        }
        let mut cpu = format!(
            "CPU time of the load generator: {:.2} µs each",
            self.us_each(self.own_cpu_ns)
        );
        if let Some(ns) = self.broker_cpu_ns {
            cpu = format!("{cpu}, of the broker: {:.2} µs each", self.us_each(ns));
        }
        lines.push(cpu);
        lines.push(String::new());
        lines.join("\n")
    }
}
