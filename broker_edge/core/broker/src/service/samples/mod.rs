//! What the console shows of now and of the last 15 minutes: a sample of the metrics each second, and what is made of the
//! newest for the pages that look. `live` takes the samples.

pub mod alert;
pub mod growth;
mod marks;
pub mod pace;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use headwater_log::Partition;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::{Semaphore, watch};

use crate::clock::now_us;
use alert::Alert;
use growth::Growth;
use pace::{Paces, Place, Places};

/// How often a sample is taken.
pub const EVERY: Duration = Duration::from_secs(1);
/// 15 minutes.
const SAMPLES_MAX: usize = 900;
/// How often alerts are looked for while somebody looks: it reads records of groups that are behind.
const ALERTS_EVERY: Duration = Duration::from_secs(5);

/// The names of a sample's numbers, in their order.
pub const NAMES: [&str; 14] = [
    "publishes_in",
    "publishes_out",
    "bytes_in",
    "bytes_out",
    "refused",
    "dropped",
    "flight_records",
    "ack_p99_s",
    "sync_p99_s",
    "loop_busy",
    "connections",
    "sessions",
    "subscriptions",
    "disk_used_bytes",
];

/// A number for each of [`NAMES`]; NaN if nothing was measured.
pub type Sample = [f32; NAMES.len()];

/// The samples, and who looks at them.
pub struct Samples {
    started: Instant,
    ring: Mutex<Ring>,
    growth: Mutex<Growth>,
    paces: Mutex<Paces>,
    alerts: Mutex<Option<(Instant, Arc<[Alert]>)>>,
    /// Counts the samples.
    seconds: watch::Sender<u64>,
    /// What the pages are sent for a sample, and for which.
    event: Mutex<Option<(u64, Arc<str>)>>,
    /// Permits of the streams to pages.
    pub streams: Arc<Semaphore>,
}

#[derive(Default)]
struct Ring {
    /// The newest last.
    samples: VecDeque<Sample>,
    end_ms: i64,
}

impl Samples {
    /// `streams_max`: of streams to pages, all together.
    pub fn new(streams_max: u16) -> Samples {
        Samples {
            started: Instant::now(),
            ring: Mutex::default(),
            growth: Mutex::default(),
            paces: Mutex::default(),
            alerts: Mutex::default(),
            seconds: watch::Sender::new(0),
            event: Mutex::default(),
            streams: Arc::new(Semaphore::new(usize::from(streams_max))),
        }
    }

    /// Tells of each new sample.
    pub fn seconds(&self) -> watch::Receiver<u64> {
        self.seconds.subscribe()
    }

    pub fn is_watched(&self) -> bool {
        self.seconds.receiver_count() > 0
    }

    /// Tells those who watch of the newest sample.
    pub fn tell(&self) {
        self.seconds.send_modify(|second| *second += 1);
    }

    pub fn push(&self, sample: Sample) {
        let mut ring = self.ring.lock();
        if ring.samples.len() == SAMPLES_MAX {
            ring.samples.pop_front();
        }
        ring.samples.push_back(sample);
        ring.end_ms = now_us() / 1_000;
    }

    /// The newest sample, with its time.
    pub fn newest(&self) -> (i64, Option<Sample>) {
        let ring = self.ring.lock();
        (ring.end_ms, ring.samples.back().copied())
    }

    /// The mean of a number over the last samples, at most `count` of them; None before the first.
    pub fn mean(&self, name: &str, count: usize) -> Option<f64> {
        let (sum, count) = self.sum(name, count)?;
        (count > 0).then(|| sum / count as f64)
    }

    /// The sum of a number over the last samples, and how many there are, at most `count`.
    pub fn sum(&self, name: &str, count: usize) -> Option<(f64, usize)> {
        let place = NAMES.iter().position(|one| *one == name)?;
        let ring = self.ring.lock();
        let last = ring.samples.iter().rev().take(count);
        let count = last.len();
        Some((last.map(|sample| f64::from(sample[place])).sum(), count))
    }

    /// The answer of `/api/v1/live/history`.
    pub fn history(&self) -> Value {
        let ring = self.ring.lock();
        let series = NAMES.iter().enumerate().map(|(place, name)| {
            let numbers = ring.samples.iter().map(|sample| number(sample[place]));
            ((*name).to_owned(), numbers.collect::<Value>())
        });
        let series: Map<String, Value> = series.collect();
        json!({"every_s": EVERY.as_secs(), "end_ms": ring.end_ms, "series": series})
    }

    /// Notes how large the partitions are, now and then.
    pub fn note_growth(&self, partitions: &[Partition]) {
        let now = self.started.elapsed();
        self.growth.lock().note(now, partitions);
    }

    /// Notes where the groups are, now and then.
    pub fn note_places(&self, places: impl FnOnce() -> Vec<(String, Places)>) {
        let now = self.started.elapsed();
        self.paces.lock().note(now, places);
    }

    /// How fast a group goes on in a partition, as [`Paces::of`].
    pub fn pace(&self, group: &str, number: u32, place: Place) -> Option<f64> {
        let now = self.started.elapsed();
        self.paces.lock().of(now, group, number, place)
    }

    /// How fast a partition has grown in the last minutes, in bytes a second; None in the first minute.
    pub fn bytes_per_s(&self, partition: &Partition) -> Option<f64> {
        let now = self.started.elapsed();
        self.growth.lock().bytes_per_s(now, partition)
    }

    /// The alerts that were found last.
    pub fn alerts(&self) -> Option<Arc<[Alert]>> {
        let found = self.alerts.lock();
        found.as_ref().map(|(_, alerts)| Arc::clone(alerts))
    }

    pub fn needs_alerts(&self) -> bool {
        let found = self.alerts.lock();
        found
            .as_ref()
            .is_none_or(|(at, _)| at.elapsed() >= ALERTS_EVERY)
    }

    pub fn set_alerts(&self, found: Vec<Alert>) {
        *self.alerts.lock() = Some((Instant::now(), found.into()));
    }

    /// What the pages are sent for the newest sample; the first of them has it made.
    pub fn event(&self, make: impl FnOnce() -> String) -> Arc<str> {
        let mut event = self.event.lock();
        let second = *self.seconds.borrow();
        match &*event {
            Some((of, text)) if *of == second => Arc::clone(text),
            _ => {
                let text: Arc<str> = make().into();
                *event = Some((second, Arc::clone(&text)));
                text
            }
        }
    }
}

/// JSON has no NaN. Four digits are as many as a page shows, and a history of them is a third of its size.
pub fn number(value: f32) -> Value {
    if value.is_nan() {
        return Value::Null;
    }
    let value = f64::from(value);
    if value.fract() == 0.0 || value.abs() >= 1_000.0 {
        return Value::from(value.round() as i64);
    }
    let scale = 10f64.powf(3.0 - value.abs().log10().floor());
    Value::from((value * scale).round() / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_four_digits_or_is_whole() {
        for (value, expected) in [
            (f32::NAN, Value::Null),
            (0.0, json!(0)),
            (12_345.678, json!(12_346)),
            (4.963_274, json!(4.963)),
            (0.009_917_4, json!(0.009_917)),
            (-0.5, json!(-0.5)),
        ] {
            assert_eq!(number(value), expected, "{value}");
        }
    }

    #[test]
    fn history_keeps_a_quarter_of_an_hour_and_says_what_is_missing() {
        let samples = Samples::new(1);
        assert_eq!(samples.mean("refused", 10), None);
        for second in 0..SAMPLES_MAX + 10 {
            let mut sample = [0.0; NAMES.len()];
            sample[0] = second as f32;
            sample[7] = if second % 2 == 0 { f32::NAN } else { 0.001 };
            samples.push(sample);
        }
        let history = samples.history();
        let series = |name: &str| history["series"][name].as_array().unwrap().clone();
        assert_eq!(series("publishes_in").len(), SAMPLES_MAX);
        assert_eq!(series("publishes_in")[0], 10);
        assert_eq!(series("ack_p99_s")[..2], [Value::Null, json!(0.001)]);
        assert_eq!(samples.mean("publishes_in", 2), Some(908.5));
    }
}
