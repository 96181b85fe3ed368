//! What `$SYS` remembers: the averages, the values sent last, and the new subscriptions that wait for theirs. The
//! values themselves are in `operate/sys`.

use crate::engine::ConnKey;
use crate::engine::env::Env;

use super::Observe;

/// Limit on new subscriptions whose values wait for their SUBACK, over all connections. Beyond it a subscription only
/// gets the values that change, at the next interval.
const PENDING_MAX: usize = 4096;

/// A total that is averaged over one, five and fifteen minutes, and its name.
pub type Total = (&'static str, u64);

/// Per minute, over these minutes.
const SPANS: [(&str, f64); 3] = [("1min", 60.0), ("5min", 300.0), ("15min", 900.0)];

#[derive(Debug, Default)]
pub struct SysTree {
    started_ms: u64,
    averaged_ms: u64,
    loads: Vec<LoadAverage>,
    /// The topics and values sent last, always in the same order.
    sent: Vec<(String, String)>,
    /// New subscriptions.
    pending: Vec<(ConnKey, Box<str>)>,
}

#[derive(Debug)]
struct LoadAverage {
    name: &'static str,
    seen: u64,
    averages: [f64; 3],
}

/// Whether a filter can match `$SYS` topics.
pub fn is_sys(filter: &str) -> bool {
    filter == "$SYS" || filter.starts_with("$SYS/")
}

impl Observe {
    /// What `$SYS` remembers.
    pub fn sys(&self) -> &SysTree {
        &self.sys
    }

    /// Averages the totals over the time since the last call.
    pub fn average_sys(&mut self, totals: &[Total], now_ms: u64) {
        self.sys.average(totals, now_ms);
    }

    /// Replaces the values sent last, and returns those that differ from them.
    pub fn take_changed_sys(&mut self, values: Vec<(String, String)>) -> Vec<(String, String)> {
        let before = std::mem::replace(&mut self.sys.sent, values);
        let now = self.sys.sent.iter().enumerate();
        let changed = now.filter(|(index, value)| before.get(*index) != Some(value));
        changed.map(|(_, value)| value.clone()).collect()
    }

    /// Notes that a new subscription gets the current values once its SUBACK has left, unless `$SYS` is off or too many
    /// wait for them.
    pub fn await_sys(&mut self, conn: ConnKey, filter: &str, env: &Env) {
        if env.settings.sys_interval_ms > 0 && self.sys.pending.len() < PENDING_MAX {
            self.sys.pending.push((conn, filter.into()));
        }
    }

    /// Takes the subscriptions that wait for the values.
    pub fn take_pending_sys(&mut self) -> Vec<(ConnKey, Box<str>)> {
        std::mem::take(&mut self.sys.pending)
    }

    /// Puts back the subscriptions that still wait.
    pub fn put_back_sys(&mut self, pending: Vec<(ConnKey, Box<str>)>) {
        self.sys.pending = pending;
    }
}

impl SysTree {
    pub fn new(now_ms: u64) -> Self {
        Self {
            started_ms: now_ms,
            averaged_ms: now_ms,
            ..Self::default()
        }
    }

    pub fn uptime_s(&self, now_ms: u64) -> u64 {
        (now_ms - self.started_ms) / 1000
    }

    /// Each average, with the name of its total and its span.
    pub fn averages(&self) -> impl Iterator<Item = (&'static str, &'static str, f64)> {
        self.loads.iter().flat_map(|load| {
            let spans = SPANS.iter().zip(load.averages);
            spans.map(|((span, _), average)| (load.name, *span, average))
        })
    }

    /// Mosquitto's averages: per minute, exponentially weighted.
    fn average(&mut self, totals: &[Total], now_ms: u64) {
        let seconds = now_ms.saturating_sub(self.averaged_ms) as f64 / 1000.0;
        self.averaged_ms = now_ms;
        if self.loads.is_empty() {
            self.loads = totals
                .iter()
                .map(|(name, _)| LoadAverage {
                    name,
                    seen: 0,
                    averages: [0.0; 3],
                })
                .collect();
        }
        if seconds <= 0.0 {
            return;
        }
        for (load, (_, total)) in self.loads.iter_mut().zip(totals) {
            let per_minute = total.saturating_sub(load.seen) as f64 * 60.0 / seconds;
            load.seen = *total;
            for (average, (_, span_s)) in load.averages.iter_mut().zip(SPANS) {
                let keeps = (-seconds / span_s).exp();
                *average = per_minute + keeps * (*average - per_minute);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_come_to_a_steady_rate_and_fall_when_it_ends() {
        let mut tree = SysTree::default();
        let mut total = 0;
        for step in 1..=60 {
            total += 100;
            tree.average(&[("x", total)], step * 10_000);
        }
        let [one, five, fifteen] = tree.loads[0].averages;
        assert!((one - 600.0).abs() < 1.0, "{one}");
        assert!(five < one && fifteen < five, "{five} {fifteen}");
        for step in 61..=120 {
            tree.average(&[("x", total)], step * 10_000);
        }
        assert!(tree.loads[0].averages[0] < 1.0);
    }
}
