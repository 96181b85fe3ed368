//! The promises of a partition, as a vector: the reference for random runs of the log.
//!
//! It knows no files. Records enter it when they get offsets, and become fixed when they are acknowledged or once
//! readable. What a later start shows must be a prefix of the assigned records that contains all fixed ones.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use headwater_log::{Batch, Epoch, Offset, Partition, PartitionReport, ReadError, RecordView};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub topic: String,
    pub payload: Vec<u8>,
    pub idempotency_key: Option<String>,
    pub retain: bool,
    pub time_us: i64,
    pub epoch: Epoch,
}

impl Entry {
    fn lost() -> Self {
        Self {
            topic: String::new(),
            payload: b"lost".to_vec(),
            idempotency_key: None,
            retain: false,
            time_us: 0,
            epoch: Epoch(0),
        }
    }

    fn assert_is(&self, record: &RecordView<'_>) {
        let found = Self {
            topic: record.topic.to_owned(),
            payload: record.payload.to_vec(),
            idempotency_key: record.idempotency_key.map(str::to_owned),
            retain: record.retain,
            time_us: record.time_us,
            epoch: record.epoch,
        };
        assert_eq!(&found, self, "the record at offset {}", record.offset);
    }
}

#[derive(Debug, Clone, Default)]
pub struct Reference {
    pub name: String,
    /// By offset, from 0 on, including removed ones.
    pub records: Vec<Entry>,
    /// Everything below was acknowledged or readable, and must not change.
    pub fixed: u64,
    pub log_start: u64,
    /// The log start that a crash may bring back: that of the segment removed last.
    pub may_come_back: u64,
    /// The newest epoch under which each offset was assigned.
    given_under: BTreeMap<u64, Epoch>,
    epoch: Epoch,
    /// Bytes have rotted: acknowledged records may be lost, but the loss must be reported.
    pub is_rotten: bool,
}

impl Reference {
    pub fn of(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }

    /// What must hold while the log is between two states.
    pub fn during(before: &Self, after: &Self) -> Self {
        let longer = if after.next() >= before.next() {
            after
        } else {
            before
        };
        Self {
            records: longer.records.clone(),
            given_under: longer.given_under.clone(),
            log_start: after.log_start.max(before.log_start),
            ..before.clone()
        }
    }

    pub fn next(&self) -> u64 {
        self.records.len() as u64
    }

    /// The log has assigned these records their offsets, or may have.
    pub fn give(&mut self, start: Offset, entries: Vec<Entry>) {
        assert_eq!(start.0, self.next(), "offsets of {} are dense", self.name);
        for entry in entries {
            let earlier = self.given_under.insert(self.next(), entry.epoch);
            assert!(
                earlier.is_none_or(|earlier| earlier <= entry.epoch),
                "offset {} was given under epoch {earlier:?}, and again under {}",
                self.next(),
                entry.epoch
            );
            self.records.push(entry);
        }
    }

    /// Bytes of the log are about to change: acknowledged records may be lost, but the loss must be reported.
    pub fn rot(&mut self) {
        self.is_rotten = true;
    }

    pub fn acknowledge(&mut self, high_watermark: Offset) {
        assert!(high_watermark.0 <= self.next(), "nobody appended that");
        assert!(
            high_watermark.0 >= self.fixed,
            "the high watermark went back"
        );
        self.fixed = high_watermark.0;
    }

    /// The offset of the newest record of a key, if one is stored or queued.
    pub fn find_key(&self, key: &str, topic: &str) -> Option<Offset> {
        let retained = &self.records[self.log_start as usize..];
        let is_repeat =
            |entry: &Entry| entry.idempotency_key.as_deref() == Some(key) && entry.topic == topic;
        let at = retained.iter().position(is_repeat)?;
        Some(Offset(self.log_start + at as u64))
    }

    /// The state after a start. From here on everything it shows is fixed.
    pub fn restarted(&mut self, partition: &Partition, report: &PartitionReport) {
        let high_watermark = partition.high_watermark().0;
        while self.is_rotten && self.next() < high_watermark {
            // Assigned to no record: skipped because their contents are unknown.
            self.records.push(Entry::lost());
        }
        let name = &self.name;
        assert_eq!(partition.next_offset().0, high_watermark, "{name}");
        assert!(
            high_watermark <= self.next(),
            "{name} shows what nobody appended"
        );
        if self.is_rotten {
            assert!(
                high_watermark >= self.fixed || report.torn_bytes > 0,
                "{name}: records are cut off, and nothing says so"
            );
        } else {
            assert!(
                high_watermark >= self.fixed,
                "{name} lost offsets {high_watermark} to {}",
                self.fixed
            );
            assert_eq!(report.gaps, [], "{name}");
        }
        let log_start = partition.log_start().0;
        assert!(
            (self.may_come_back..=self.log_start).contains(&log_start),
            "{name} begins at {log_start}, not between {} and {}",
            self.may_come_back,
            self.log_start
        );
        assert!(
            partition.epoch() > self.epoch,
            "{name}: an epoch came again"
        );
        assert_eq!(
            (report.high_watermark.0, report.log_start.0),
            (high_watermark, log_start)
        );
        self.epoch = partition.epoch();
        // Records that get these offsets from now on must be distinguishable from earlier ones.
        for (_, epoch) in self.given_under.range_mut(high_watermark..) {
            *epoch = Epoch(epoch.0 + 1);
        }
        self.records.truncate(high_watermark as usize);
        self.fixed = high_watermark;
        (self.log_start, self.may_come_back) = (log_start, log_start);
    }

    /// Reads everything in every way and compares.
    pub fn check(&self, partition: &Partition) {
        let (start, end) = (partition.log_start().0, partition.high_watermark().0);
        let lost = self.check_reads(partition, start, end);
        let is_lost = |offset: u64| lost.iter().any(|range| range.contains(&offset));
        let there = |offset: &u64| !is_lost(*offset);
        let topics: BTreeSet<&str> = (start..end)
            .filter(there)
            .map(|at| self.records[at as usize].topic.as_str())
            .collect();
        let listed = partition.topics().expect("topics");
        let names: BTreeSet<&str> = listed.iter().map(|topic| topic.topic.as_str()).collect();
        assert!(names.is_superset(&topics), "{names:?} of {topics:?}");
        for topic in &listed {
            let of_topic: Vec<u64> = (start..end)
                .filter(|at| there(at) && self.records[*at as usize].topic == topic.topic)
                .collect();
            let range = topic.first.0..topic.next.0;
            assert!(of_topic.iter().all(|at| range.contains(at)), "{topic:?}");
            let found = matching(partition, start, end, &topic.topic);
            assert_eq!(found, of_topic, "records of {}", topic.topic);
        }
        self.check_retained(partition, (start..end).filter(there));
        let times: BTreeSet<i64> = (start..end)
            .map(|at| self.records[at as usize].time_us)
            .collect();
        for time in times.iter().flat_map(|time| [*time, *time + 1]) {
            let first = (start..end)
                .filter(there)
                .find(|at| self.records[*at as usize].time_us >= time);
            let found = partition.offset_for_time(time).expect("an offset");
            assert_eq!(found.0, first.unwrap_or(end), "at time {time}");
        }
        for at in [start, start + (end - start) / 2, end] {
            let known = at > start && !is_lost(at - 1);
            let expected = known.then(|| self.records[at as usize - 1].epoch);
            let found = partition.epoch_before(Offset(at)).expect("an answer");
            assert_eq!(found, expected, "epoch before {at}");
        }
    }

    /// Every offset between log start and high watermark is read correctly or reported as lost; returns the lost ones.
    fn check_reads(&self, partition: &Partition, start: u64, end: u64) -> Vec<Range<u64>> {
        let (mut next, mut lost, mut epoch) = (start, Vec::new(), Epoch(0));
        while next < end {
            match partition.read(Offset(next), 8 << 10) {
                Ok(batches) => {
                    for record in batches.iter().flat_map(Batch::records) {
                        self.records[record.offset.0 as usize].assert_is(&record);
                        assert!(
                            record.offset < partition.high_watermark(),
                            "offset {} is shown and not durable",
                            record.offset
                        );
                        assert!(record.epoch >= epoch, "epochs go back at {}", record.offset);
                        epoch = record.epoch;
                    }
                    let first = batches.first().expect("a read below the end gives a batch");
                    assert!((first.base_offset().0..first.next_offset().0).contains(&next));
                    let is_dense = |pair: &[Batch]| pair[0].next_offset() == pair[1].base_offset();
                    assert!(batches.windows(2).all(is_dense));
                    next = batches.last().expect("not empty").next_offset().0;
                }
                Err(ReadError::Damaged { range }) if self.is_rotten => {
                    assert!(range.start.0 == next && range.end.0 > next, "{range:?}");
                    next = range.end.0;
                    lost.push(range.start.0..range.end.0);
                }
                Err(error) => panic!("{} at {next}: {error}", self.name),
            }
        }
        self.check_single_reads(partition, start..end, &lost);
        let gaps = partition.gaps();
        for range in &lost {
            let is_reported = |gap: &headwater_log::Gap| {
                gap.range.start.0 <= range.start && range.end <= gap.range.end.0
            };
            assert!(gaps.iter().any(is_reported), "{range:?} is not in {gaps:?}");
        }
        assert!(self.is_rotten || gaps.is_empty(), "{gaps:?}");
        lost
    }

    /// Reads some records singly, each twice: the second time from what the first has cached.
    fn check_single_reads(&self, partition: &Partition, range: Range<u64>, lost: &[Range<u64>]) {
        let step = ((range.end - range.start) / 20).max(1) as usize;
        let some: Vec<u64> = range.step_by(step).collect();
        for at in some.iter().chain(some.iter().rev()) {
            match partition.read(Offset(*at), 1) {
                Ok(batches) => {
                    let index = *at - batches[0].base_offset().0;
                    let record = batches[0].record(index as usize);
                    self.records[*at as usize].assert_is(&record);
                    assert!(!lost.iter().any(|range| range.contains(at)), "{at} is lost");
                }
                Err(ReadError::Damaged { range }) => {
                    assert!(range.contains(&Offset(*at)), "{range:?}");
                    assert!(lost.iter().any(|range| range.contains(at)), "{at} is not");
                }
                Err(error) => panic!("{} at {at}: {error}", self.name),
            }
        }
    }

    /// The newest retained record of each topic is among those that the partition returns.
    fn check_retained(&self, partition: &Partition, offsets: impl Iterator<Item = u64>) {
        let mut expected = BTreeMap::new();
        for at in offsets.filter(|at| self.records[*at as usize].retain) {
            expected.insert(self.records[at as usize].topic.clone(), at);
        }
        let mut found = BTreeMap::new();
        partition
            .for_each_retained(&mut |record| {
                self.records[record.offset.0 as usize].assert_is(record);
                found.insert(record.topic.to_owned(), record.offset.0);
            })
            .expect("retained records");
        assert_eq!(found, expected);
    }
}

fn matching(partition: &Partition, start: u64, end: u64, topic: &str) -> Vec<u64> {
    let (mut next, mut found) = (Offset(start), Vec::new());
    while next.0 < end {
        let read = partition.read_matching(next, Offset(end), 4 << 10, &|name| name == topic);
        let (batches, scanned) = match read {
            Ok(read) => read,
            Err(ReadError::Damaged { range }) => {
                next = range.end;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        assert!(scanned > next, "no progress at {next}");
        let records = batches.iter().flat_map(Batch::records);
        let wanted = records.filter(|record| record.topic == topic);
        found.extend(
            wanted
                .map(|record| record.offset.0)
                .filter(|at| (next.0..end).contains(at)),
        );
        next = scanned;
    }
    found
}
