//! Takes the samples that the console shows, and makes what its pages are sent.
//!
//! While nobody looks it does no more than one sample a second. What a page is sent is made for the pages that look, once
//! a second for all of them.

mod alerts;
pub mod removal;
pub mod standing;
mod totals;

use std::sync::Arc;
use std::time::Instant;

use headwater_log::Partition;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::samples::alert::Alert;
use super::samples::{EVERY, NAMES, number};
use super::shared::{Shared, stopped};
use totals::Totals;

/// The most partitions in an event, which is to stay small.
const OFFSETS_MAX: usize = 100;

/// Takes samples until the broker stops.
pub async fn sample(shared: Arc<Shared>, stopping: watch::Receiver<bool>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut before, mut at) = (Totals::of(&shared), Instant::now());
    let mut search: Option<JoinHandle<()>> = None;
    let stop = stopped(stopping);
    tokio::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => return,
            _ = ticks.tick() => {}
        }
        let samples = &shared.samples;
        let now = Totals::of(&shared);
        samples.push(now.since(&before, at.elapsed()));
        (before, at) = (now, Instant::now());
        samples.note_growth(shared.log.partitions());
        samples.note_places(|| standing::all_places(&shared));
        // Not awaited: where the disk hangs, the page is to show that the rest goes on.
        let is_over = search.as_ref().is_none_or(JoinHandle::is_finished);
        if samples.is_watched() && samples.needs_alerts() && is_over {
            search = Some(find_alerts(&shared));
        }
        samples.tell();
    }
}

/// Looks for alerts on a thread that may wait for the disk.
fn find_alerts(shared: &Arc<Shared>) -> JoinHandle<()> {
    let by = Arc::clone(shared);
    tokio::task::spawn_blocking(move || by.samples.set_alerts(alerts::find(&by)))
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
    shared.samples.event(|| {
        let (at_ms, newest) = shared.samples.newest();
        let numbers = newest
            .into_iter()
            .flat_map(|sample| NAMES.into_iter().zip(sample));
        let partitions = shared.log.partitions().iter().take(OFFSETS_MAX);
        let bounds =
            |partition: &Partition| (partition.log_start().0, partition.high_watermark().0);
        let alerts = shared.samples.alerts();
        let stats = Stats {
            at_ms,
            sample: numbers
                .map(|(name, value)| (name.to_owned(), number(value)))
                .collect(),
            offsets: partitions.map(bounds).collect(),
            alerts: alerts.as_deref().unwrap_or_default(),
        };
        serde_json::to_string(&stats).expect("names and numbers are JSON")
    })
}
