//! A log on a simulated computer with a reference for each partition: runs steps and compares.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use headwater_log::{
    AppendError, Log, Offset, Partition, PartitionState, RecordMeta, Records, RemovalGuard, Seams,
    Watcher,
};
use parking_lot::Mutex;

use super::reference::{Entry, Reference};
use super::sim::SimFiles;
use super::{HandClock, await_that};

pub use super::settings::{Crash, NAMES, START_US, Settings, Spec};

/// Up to where a partition was written when its watcher was told: by then the writer has synced, or has decided not to.
struct Told {
    written: Arc<AtomicU64>,
    _watcher: Watcher,
}

impl Told {
    fn watch(partition: &Partition) -> Self {
        let written = Arc::new(AtomicU64::new(partition.written().0));
        let (told, watched) = (Arc::clone(&written), partition.clone());
        let watcher: Watcher = Arc::new(move || told.store(watched.written().0, Ordering::SeqCst));
        partition.watch(&watcher);
        Self {
            written,
            _watcher: watcher,
        }
    }
}

pub struct Machine {
    pub files: SimFiles,
    pub clock: Arc<HandClock>,
    pub settings: Settings,
    pub references: Vec<Reference>,
    log: Option<Log>,
    /// Ranges that were removed in this life, per partition.
    removed: Vec<Arc<Mutex<Vec<Range<Offset>>>>>,
    guards: Vec<RemovalGuard>,
    payloads: usize,
    told: Vec<Told>,
    /// One call will fail: a start may be refused once, and missing space comes back.
    pub is_faulty: bool,
    /// High watermark of the partitions that have stopped in this life.
    stopped_at: Vec<Option<Offset>>,
    /// A partition has stopped.
    pub has_stopped: bool,
    /// The number of starts interrupted by a crash, and of completed ones.
    pub interrupted: usize,
    pub starts: usize,
}

impl Machine {
    /// A computer with this disk, and what its log must contain.
    pub fn new(files: SimFiles, settings: Settings, references: Vec<Reference>) -> Self {
        Self {
            files,
            clock: HandClock::at(START_US),
            settings,
            references,
            log: None,
            removed: Vec::new(),
            guards: Vec::new(),
            payloads: 0,
            told: Vec::new(),
            is_faulty: false,
            stopped_at: Vec::new(),
            has_stopped: false,
            interrupted: 0,
            starts: 0,
        }
    }

    pub fn created(files: SimFiles, settings: Settings) -> Self {
        let mut machine = Self::new(files, settings, NAMES.map(Reference::of).into());
        machine.start(&[]);
        machine
    }

    /// A computer without a log, on which one call will fail.
    pub fn new_faulty(files: SimFiles, settings: Settings) -> Self {
        let references = NAMES.map(Reference::of).into();
        Self {
            is_faulty: true,
            ..Self::new(files, settings, references)
        }
    }

    pub fn log(&self) -> &Log {
        self.log.as_ref().expect("the log is open")
    }

    pub fn partition(&self, at: usize) -> &Partition {
        &self.log().partitions()[at]
    }

    fn seams(&self) -> Seams {
        self.files.seams_with(self.clock.clone())
    }

    /// Opens the log, after starts that the crashes interrupt before their n-th call; then everything is compared.
    pub fn start(&mut self, crashes: &[(u64, Crash)]) {
        for (nth, crash) in crashes {
            self.files.cut_before(*nth);
            let half = Log::open(self.settings.config(), self.seams());
            let is_off = self.files.is_off();
            if is_off {
                self.interrupted += 1;
            }
            match crash {
                Crash::Power => self.files.power_cut(),
                Crash::Kill => self.files.kill(),
            }
            if let (Ok((log, report)), false) = (&half, is_off) {
                // The start completed: what it showed counts, although nobody read it.
                for (partition, report) in log.partitions().iter().zip(&report.partitions) {
                    self.references[partition.id().0 as usize].restarted(partition, report);
                }
            }
            drop(half);
        }
        self.files.cancel_cut();
        let mut opened = Log::open(self.settings.config(), self.seams());
        if self.is_faulty && opened.is_err() {
            self.files.kill();
            opened = Log::open(self.settings.config(), self.seams());
        }
        self.stopped_at = vec![None; self.references.len()];
        let (log, report) = opened.unwrap_or_else(|error| panic!("the log does not open: {error}"));
        self.starts += 1;
        self.removed.clear();
        for (partition, report) in log.partitions().iter().zip(&report.partitions) {
            let reference = &mut self.references[partition.id().0 as usize];
            reference.restarted(partition, report);
            self.told.push(Told::watch(partition));
            let removed = Arc::new(Mutex::new(Vec::new()));
            self.removed.push(Arc::clone(&removed));
            let files = self.files.clone();
            let guard = partition.before_delete(Arc::new(move |range| {
                if !files.is_off() {
                    removed.lock().push(range);
                }
                true
            }));
            self.guards.push(guard);
        }
        self.log = Some(log);
        self.check();
    }

    /// Ends this life of the process, unless it has ended by itself, and begins the next.
    pub fn crash(&mut self, crash: Crash, crashes: &[(u64, Crash)]) {
        self.crash_with(crash, crashes, |_| {});
    }

    /// As `crash`; `meanwhile` happens to the disk before the next start.
    pub fn crash_with(
        &mut self,
        crash: Crash,
        crashes: &[(u64, Crash)],
        meanwhile: impl FnOnce(&SimFiles),
    ) {
        match crash {
            Crash::Power => self.files.power_cut(),
            Crash::Kill => self.files.kill(),
        }
        self.leave();
        meanwhile(&self.files);
        self.start(crashes);
    }

    pub fn stop(&mut self, crash: Option<Crash>, crashes: &[(u64, Crash)]) {
        self.log().shutdown();
        let is_whole =
            !self.files.is_off() && (0..self.references.len()).all(|at| !self.is_stopped(at));
        if is_whole {
            for (partition, reference) in self.log().partitions().iter().zip(&self.references) {
                assert_eq!(
                    partition.high_watermark().0,
                    reference.next(),
                    "a clean stop keeps all"
                );
            }
        }
        match crash {
            Some(Crash::Power) => self.files.power_cut(),
            Some(Crash::Kill) | None => self.files.kill(),
        }
        self.leave();
        self.start(crashes);
    }

    /// Notes what the past life has acknowledged and removed.
    fn leave(&mut self) {
        self.observe();
        let log = self.log.take().expect("the log is open");
        assert_eq!(self.files.retried_syncs(), [""; 0], "synced again");
        self.told.clear();
        self.guards.clear();
        drop(log);
    }

    /// Notes the present state of the log.
    pub fn observe(&mut self) {
        let log = self.log.as_ref().expect("the log is open");
        for (at, partition) in log.partitions().iter().enumerate() {
            let reference = &mut self.references[at];
            reference.acknowledge(partition.high_watermark());
            if matches!(partition.state(), PartitionState::Stopped(_)) {
                self.has_stopped = true;
                let stopped_at = *self.stopped_at[at].get_or_insert(partition.high_watermark());
                assert_eq!(
                    partition.high_watermark(),
                    stopped_at,
                    "{} acknowledges after it has stopped",
                    reference.name
                );
            }
            reference.log_start = partition.log_start().0;
            if let Some(range) = self.removed[at].lock().last() {
                reference.may_come_back = range.start.0;
            }
        }
    }

    pub fn is_stopped(&self, at: usize) -> bool {
        matches!(self.partition(at).state(), PartitionState::Stopped(_))
    }

    fn build(&mut self, at: usize, specs: &[Spec]) -> (Records, Vec<Entry>) {
        let mut records = Records::new();
        let client = records.client("client").expect("room");
        let mut entries = Vec::new();
        for spec in specs {
            let topic = format!("devices/{}/telemetry", spec.topic);
            let index = records.topic(&topic, 8..9).expect("room");
            self.payloads += 1;
            let text = format!("{} of {at}, ", self.payloads);
            let payload: Vec<u8> = text.bytes().cycle().take(spec.bytes).collect();
            let key = spec.key.map(|key| format!("key {key}"));
            let meta = RecordMeta {
                retain: spec.retain,
                idempotency_key: key.as_deref(),
                ..RecordMeta::new(index, client, 1)
            };
            records.push(meta, &payload).expect("room");
            entries.push(Entry {
                topic,
                payload,
                idempotency_key: key,
                retain: spec.retain,
                time_us: headwater_log::Clock::now_us(&*self.clock),
                epoch: self.partition(at).epoch(),
            });
        }
        (records, entries)
    }

    /// Appends, and waits until the records are written or cannot be.
    pub fn append(&mut self, at: usize, specs: &[Spec], inline: bool) {
        if self.queue(at, specs, inline) {
            self.settle(at);
        }
    }

    /// Appends without waiting. False when the records were refused.
    pub fn queue(&mut self, at: usize, specs: &[Spec], inline: bool) -> bool {
        let was_stopped = self.is_stopped(at);
        let (records, entries) = self.build(at, specs);
        let start = self.partition(at).next_offset();
        let result = if inline {
            self.partition(at).append_inline(records)
        } else {
            self.partition(at).append(records)
        };
        match result {
            Ok(range) => {
                assert_eq!(range.end.0 - range.start.0, specs.len() as u64);
                self.references[at].give(range.start, entries);
                true
            }
            // The write may have happened all the same.
            Err(AppendError::ReadOnly { .. }) if inline && !was_stopped => {
                self.references[at].give(start, entries);
                false
            }
            Err(AppendError::ReadOnly { .. } | AppendError::Full { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Waits until the writer has finished all appends, or cannot.
    pub fn settle(&mut self, at: usize) {
        let end = self.references[at].next();
        await_that("the records to be written", || {
            let partition = self.partition(at);
            self.told[at].written.load(Ordering::SeqCst) >= end
                || match partition.state() {
                    PartitionState::Running => false,
                    PartitionState::Full => !self.is_faulty,
                    PartitionState::Stopped(_) => true,
                    PartitionState::Following => unreachable!("it is alone"),
                }
        });
        self.observe();
    }

    /// Advances both clocks.
    pub fn pass(&mut self, time: Duration) {
        (0..self.references.len()).for_each(|at| self.settle(at));
        self.clock.pass(time);
    }

    pub fn append_unique(&mut self, at: usize, key: u8, bytes: usize) {
        let spec = Spec {
            topic: key % 4,
            bytes,
            retain: false,
            key: Some(key),
        };
        let (records, mut entries) = self.build(at, &[spec.clone(), spec]);
        let known = self.references[at].find_key(&format!("key {key}"), &entries[0].topic);
        let start = Offset(self.references[at].next());
        let placed = match self.partition(at).append_unique(records) {
            Ok(placed) => placed,
            Err(AppendError::ReadOnly { .. } | AppendError::Full { .. }) => return,
            Err(AppendError::Unverified { .. }) if self.files.is_off() || self.is_faulty => return,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(placed.len(), 2);
        assert_eq!(
            (placed[0].offset, placed[0].duplicate),
            (known.unwrap_or(start), known.is_some()),
            "key {key}"
        );
        assert_eq!(
            (placed[1].offset, placed[1].duplicate),
            (placed[0].offset, true)
        );
        if known.is_none() {
            entries.truncate(1);
            self.references[at].give(start, entries);
            self.settle(at);
        }
    }

    /// Removes segments below a part of the log.
    pub fn remove(&mut self, at: usize, percent: u64) {
        let to = self.references[at].fixed * percent / 100;
        self.partition(at).advance_log_start(Offset(to));
        assert!(self.partition(at).log_start().0 <= to.max(self.references[at].log_start));
        self.observe();
    }

    pub fn maintain(&mut self) {
        self.log().maintain();
        self.observe();
    }

    /// Reads everything in every partition; nothing fails meanwhile.
    pub fn check(&mut self) {
        (0..self.references.len()).for_each(|at| self.settle(at));
        if !self.files.is_off() {
            self.files.aside(|| {
                for (partition, reference) in self.log().partitions().iter().zip(&self.references) {
                    reference.check(partition);
                }
            });
        }
    }
}
