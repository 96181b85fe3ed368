//! What the console shows of now and of the last 15 minutes: a task takes a sample of the metrics each second.
//!
//! While nobody looks it does no more than that. What a page is sent is made for the pages that look, once a second for
//! all of them.

pub mod alerts;
pub mod growth;
pub mod sample;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::sync::{Semaphore, watch};
use tokio::time::{MissedTickBehavior, interval};

use super::shared::{Shared, stopped};
use crate::clock::now_us;
use alerts::Alert;
use growth::Growth;
use sample::{NAMES, Sample, Totals};

const EVERY: Duration = Duration::from_secs(1);
/// 15 minutes.
const SAMPLES_MAX: usize = 900;
/// How often alerts are looked for while somebody looks: it reads records of groups that are behind.
const ALERTS_EVERY: Duration = Duration::from_secs(5);
/// The most partitions in an event, which is to stay small.
const OFFSETS_MAX: usize = 100;

/// The samples, and who looks at them.
pub struct Live {
    started: Instant,
    samples: Mutex<Samples>,
    growth: Mutex<Growth>,
    alerts: Mutex<Option<(Instant, Arc<[Alert]>)>>,
    /// Changes with each sample.
    seconds: watch::Sender<u64>,
    /// What the pages are sent for a sample.
    event: Mutex<(u64, Arc<str>)>,
    /// Permits of the streams to pages.
    pub streams: Arc<Semaphore>,
}

#[derive(Default)]
struct Samples {
    /// The newest last.
    all: VecDeque<Sample>,
    end_ms: i64,
}

impl Live {
    /// `streams_max`: of streams to pages, all together.
    pub fn new(streams_max: u16) -> Live {
        Live {
            started: Instant::now(),
            samples: Mutex::default(),
            growth: Mutex::default(),
            alerts: Mutex::default(),
            seconds: watch::Sender::new(0),
            event: Mutex::new((0, Arc::from(""))),
            streams: Arc::new(Semaphore::new(usize::from(streams_max))),
        }
    }

    /// Tells of each new sample.
    pub fn seconds(&self) -> watch::Receiver<u64> {
        self.seconds.subscribe()
    }

    /// How fast a partition has grown in the last minutes, in bytes a second.
    pub fn bytes_per_s(&self, partition: &headwater_log::Partition) -> f64 {
        self.growth
            .lock()
            .bytes_per_s(self.started.elapsed(), partition)
    }

    /// The means of a number over the last samples, at most `seconds` of them; None before the first.
    fn mean(&self, name: &str, seconds: usize) -> Option<f64> {
        let place = NAMES.iter().position(|one| *one == name)?;
        let samples = self.samples.lock();
        let last: Vec<f64> = samples
            .all
            .iter()
            .rev()
            .take(seconds)
            .map(|one| f64::from(one[place]))
            .collect();
        let count = last.len();
        (count > 0).then(|| last.iter().sum::<f64>() / count as f64)
    }

    fn push(&self, sample: Sample) {
        let mut samples = self.samples.lock();
        if samples.all.len() == SAMPLES_MAX {
            samples.all.pop_front();
        }
        samples.all.push_back(sample);
        samples.end_ms = now_us() / 1_000;
    }

    /// The answer of `/api/v1/live/history`.
    pub fn history(&self) -> Value {
        let samples = self.samples.lock();
        let series = NAMES.iter().enumerate().map(|(place, name)| {
            let numbers: Vec<Value> = samples
                .all
                .iter()
                .map(|sample| number(sample[place]))
                .collect();
            ((*name).to_owned(), Value::from(numbers))
        });
        let series: Map<String, Value> = series.collect();
        json!({"every_s": EVERY.as_secs(), "end_ms": samples.end_ms, "series": series})
    }
}

/// JSON has no NaN. Six digits are more than a page shows.
fn number(value: f32) -> Value {
    if value.is_nan() {
        return Value::Null;
    }
    let value = f64::from(value);
    if value.fract() == 0.0 {
        return Value::from(value as i64);
    }
    Value::from((value * 1e6).round() / 1e6)
}

/// Takes samples until the broker stops.
pub async fn sample(shared: Arc<Shared>, stopping: watch::Receiver<bool>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut before, mut at) = (Totals::of(&shared), Instant::now());
    let stop = stopped(stopping);
    tokio::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => return,
            _ = ticks.tick() => {}
        }
        let live = &shared.live;
        let now = Totals::of(&shared);
        live.push(now.since(&before, at.elapsed()));
        (before, at) = (now, Instant::now());
        live.growth
            .lock()
            .note(live.started.elapsed(), shared.log.partitions());
        if live.seconds.receiver_count() > 0 {
            refresh_alerts(&shared).await;
        }
        live.seconds.send_modify(|second| *second += 1);
    }
}

/// Looks for alerts, on a thread that may wait for the disk, if the last look was a while ago.
async fn refresh_alerts(shared: &Arc<Shared>) {
    let is_fresh = |(at, _): &(Instant, Arc<[Alert]>)| at.elapsed() < ALERTS_EVERY;
    if shared.live.alerts.lock().as_ref().is_some_and(is_fresh) {
        return;
    }
    let by = Arc::clone(shared);
    if let Ok(found) = tokio::task::spawn_blocking(move || alerts::find(&by)).await {
        *shared.live.alerts.lock() = Some((Instant::now(), found.into()));
    }
}

#[derive(Serialize)]
struct Stats<'a> {
    at_ms: i64,
    sample: Map<String, Value>,
    offsets: Vec<(u64, u64)>,
    alerts: &'a [Alert],
}

/// The data of the event `stats` for the newest sample.
pub fn event(shared: &Shared) -> Arc<str> {
    let live = &shared.live;
    let mut made = live.event.lock();
    let second = *live.seconds.borrow();
    if made.0 == second && !made.1.is_empty() {
        return Arc::clone(&made.1);
    }
    let (at_ms, newest) = {
        let samples = live.samples.lock();
        (samples.end_ms, samples.all.back().copied())
    };
    let sample = newest.map(|sample| {
        NAMES
            .iter()
            .zip(sample)
            .map(|(name, value)| ((*name).to_owned(), number(value)))
    });
    let bounds = |partition: &headwater_log::Partition| {
        (partition.log_start().0, partition.high_watermark().0)
    };
    let alerts = live
        .alerts
        .lock()
        .as_ref()
        .map(|(_, alerts)| Arc::clone(alerts));
    let stats = Stats {
        at_ms,
        sample: sample.map(Iterator::collect).unwrap_or_default(),
        offsets: shared
            .log
            .partitions()
            .iter()
            .take(OFFSETS_MAX)
            .map(bounds)
            .collect(),
        alerts: alerts.as_deref().unwrap_or_default(),
    };
    let text: Arc<str> = serde_json::to_string(&stats)
        .expect("names and numbers are JSON")
        .into();
    *made = (second, Arc::clone(&text));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_keeps_a_quarter_of_an_hour_and_says_what_is_missing() {
        let live = Live::new(1);
        assert_eq!(live.mean("refused", 10), None);
        for second in 0..SAMPLES_MAX + 10 {
            let mut sample = [0.0; NAMES.len()];
            sample[0] = second as f32;
            sample[7] = if second % 2 == 0 { f32::NAN } else { 0.001 };
            live.push(sample);
        }
        let history = live.history();
        let series = |name: &str| history["series"][name].as_array().unwrap().clone();
        assert_eq!(series("publishes_in").len(), SAMPLES_MAX);
        assert_eq!(series("publishes_in")[0], 10);
        assert_eq!(series("ack_p99_s")[..2], [Value::Null, json!(0.001)]);
        assert_eq!(live.mean("publishes_in", 2), Some(908.5));
    }
}
