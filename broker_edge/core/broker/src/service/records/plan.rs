//! The action `plan`: how far a reader may read from given offsets, within limits on matching records.
//!
//! A limit is split over the partitions in proportion to their waiting offsets; the unused part of one goes to the
//! others. If every record matches and only their number is limited, offsets are counted instead of read. A plan ends
//! at the high watermarks of its start.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use headwater_log::{Batch, Offset, Partition, ReadError};
use serde_json::{Map, Value, json};

use super::offsets::epoch_of_record_before;
use super::plan_budget::{Budget, shares};
use crate::auth::Access;
use crate::filter::Filters;
use crate::service::callers::caller::Caller;
use crate::service::error::Refusal;
use crate::service::request;
use crate::service::shared::Shared;

const READ_BYTES: usize = 4 << 20;
/// From this many records on, listing the topics costs less than reading the records.
const LISTED_FROM: u64 = 65_536;

/// The growing plan of one partition.
struct PartitionPlan<'a> {
    partition: &'a Partition,
    log_start: Offset,
    high_watermark: Offset,
    /// No record in `[end, scanned)` matches.
    scanned: Offset,
    end: Offset,
    records: u64,
    bytes: u64,
    /// Whether the record at `scanned` matches but was over the budget.
    is_stopped: bool,
    /// Whether all topics of the partition are wanted; `None` before the lookup.
    wants_all: Option<bool>,
}

pub fn plan(
    shared: &Shared,
    caller: &Caller,
    body: request::Plan,
    stop: &Arc<AtomicBool>,
) -> Result<Value, Refusal> {
    let filters = request::filters(body.filters, body.pattern, caller, Access::Replay, stop)?;
    for (field, limit) in [
        ("max_records", body.max_records),
        ("max_bytes", body.max_bytes),
    ] {
        if limit == Some(0) {
            return Err(Refusal::invalid(
                field,
                format!("{field} must be at least 1"),
            ));
        }
    }
    shared.check_partitions("from", body.from.len())?;
    let mut places = Vec::with_capacity(body.from.len());
    for (text, from) in &body.from {
        places.push(PartitionPlan::new(
            shared.partition(request::number("from", text)?)?,
            *from,
        )?);
    }
    let budget = Budget {
        records: body.max_records.unwrap_or(u64::MAX),
        bytes: body.max_bytes.unwrap_or(u64::MAX),
    };
    fill(&mut places, &filters, budget)?;
    let mut rows = Map::new();
    for place in &places {
        rows.insert(place.partition.id().to_string(), place.row()?);
    }
    Ok(json!({"log_id": shared.log_id, "partitions": rows}))
}

/// Takes records from the partitions until the budget is spent or all are scanned.
fn fill(
    places: &mut [PartitionPlan<'_>],
    filters: &Filters,
    budget: Budget,
) -> Result<(), Refusal> {
    let mut left = budget;
    let mut open: Vec<usize> = (0..places.len()).collect();
    while !open.is_empty() && !left.is_spent() {
        let waiting: Vec<u64> = open.iter().map(|index| places[*index].waiting()).collect();
        let records = shares(&waiting, left.records);
        let bytes = shares(&waiting, left.bytes);
        let before = left;
        for (slot, index) in open.iter().enumerate() {
            let place = &mut places[*index];
            let used = place.take(
                filters,
                Budget {
                    records: records[slot],
                    bytes: bytes[slot],
                },
            )?;
            left = left.less(used.records, used.bytes);
        }
        open.retain(|index| places[*index].is_stopped);
        if left == before {
            // Each share is too small for the next record of its partition; all that is left may still fit one of them.
            let Some(used) = take_first_that_fits(places, &open, filters, left)? else {
                break;
            };
            left = left.less(used.records, used.bytes);
        }
    }
    // At least one record is always taken, or a reader with a small limit would never advance.
    if places.iter().all(|place| place.records == 0) {
        let waits_most = open
            .into_iter()
            .filter(|index| places[*index].is_stopped)
            .max_by_key(|index| places[*index].waiting());
        if let Some(index) = waits_most {
            // Practically unlimited bytes. Any limit below `MAX` makes `take` read the records instead of estimating
            // their size.
            let one = Budget {
                records: 1,
                bytes: u64::MAX - 1,
            };
            places[index].take(filters, one)?;
        }
    }
    Ok(())
}

fn take_first_that_fits(
    places: &mut [PartitionPlan<'_>],
    open: &[usize],
    filters: &Filters,
    left: Budget,
) -> Result<Option<Budget>, Refusal> {
    for index in open {
        let used = places[*index].take(filters, Budget { records: 1, ..left })?;
        if used.records > 0 {
            return Ok(Some(used));
        }
    }
    Ok(None)
}

impl<'a> PartitionPlan<'a> {
    fn new(partition: &'a Partition, from: u64) -> Result<PartitionPlan<'a>, Refusal> {
        let high_watermark = partition.high_watermark();
        let log_start = partition.log_start();
        let offset = Offset(from);
        if offset < log_start || offset > high_watermark {
            return Err(Refusal::out_of_range(partition, from));
        }
        Ok(PartitionPlan {
            partition,
            log_start,
            high_watermark,
            scanned: offset,
            end: offset,
            records: 0,
            bytes: 0,
            is_stopped: false,
            wants_all: None,
        })
    }

    fn waiting(&self) -> u64 {
        self.high_watermark.0 - self.scanned.0
    }

    /// Continues up to the budget or the high watermark; returns what it took.
    fn take(&mut self, filters: &Filters, budget: Budget) -> Result<Budget, Refusal> {
        let (records, bytes) = (self.records, self.bytes);
        self.is_stopped = false;
        if budget.bytes == u64::MAX
            && self.has_no_gaps()
            && self.all_match(filters, budget.records)?
        {
            self.count(budget.records);
        } else {
            let mut left = budget;
            while self.scanned < self.high_watermark && !self.is_stopped {
                self.scan(filters, &mut left)?;
            }
        }
        Ok(Budget {
            records: self.records - records,
            bytes: self.bytes - bytes,
        })
    }

    /// Whether every record matches. Returns false when finding out costs more than reading `limit` records.
    fn all_match(&mut self, filters: &Filters, limit: u64) -> Result<bool, Refusal> {
        if filters.want_all() {
            return Ok(true);
        }
        if let Some(known) = self.wants_all {
            return Ok(known);
        }
        if self.waiting().min(limit) < LISTED_FROM {
            return Ok(false);
        }
        // The high watermark was read before, so the list has the topics of all records below it.
        let all = self.partition.every_topic(&|topic| filters.wants(topic));
        let all = all.map_err(|error| Refusal::from_read(self.partition, error))?;
        request::check_work(filters)?;
        self.wants_all = Some(all);
        Ok(all)
    }

    /// Every offset is a matching record, so nothing is read.
    fn count(&mut self, limit: u64) {
        let taken = self.waiting().min(limit);
        // The size of a record is estimated from the size of the partition.
        let kept = u128::from((self.high_watermark.0 - self.log_start.0).max(1));
        let estimate = u128::from(self.partition.size_bytes()) * u128::from(taken) / kept;
        self.records += taken;
        self.bytes += u64::try_from(estimate).unwrap_or(u64::MAX);
        self.end = self.scanned.plus(taken);
        self.scanned = self.end;
        self.is_stopped = self.scanned < self.high_watermark;
    }

    fn has_no_gaps(&self) -> bool {
        self.partition
            .gaps()
            .iter()
            .all(|gap| gap.range.end <= self.scanned || gap.range.start >= self.high_watermark)
    }

    /// Reads and scans one piece of the log.
    fn scan(&mut self, filters: &Filters, left: &mut Budget) -> Result<(), Refusal> {
        let wanted = |topic: &str| filters.wants(topic);
        let found =
            self.partition
                .read_matching(self.scanned, self.high_watermark, READ_BYTES, &wanted);
        let (batches, looked_at) = match found {
            Ok(found) => found,
            // Lost offsets hold no records. DoGet reports them to the reader.
            Err(ReadError::Damaged { range }) => {
                self.scanned = range.end.min(self.high_watermark).max(self.scanned.plus(1));
                return Ok(());
            }
            Err(error) => return Err(Refusal::from_read(self.partition, error)),
        };
        request::check_work(filters)?;
        for batch in &batches {
            self.scan_batch(batch, filters, left);
            request::check_work(filters)?;
            if self.is_stopped {
                return Ok(());
            }
        }
        self.scanned = looked_at.min(self.high_watermark).max(self.scanned);
        Ok(())
    }

    fn scan_batch(&mut self, batch: &Batch, filters: &Filters, left: &mut Budget) {
        let base = batch.base_offset().0;
        let first = usize::try_from(self.scanned.0.saturating_sub(base)).unwrap_or(usize::MAX);
        let last = usize::try_from(self.high_watermark.0.saturating_sub(base))
            .unwrap_or(usize::MAX)
            .min(batch.len());
        if first >= last {
            return;
        }
        let wanted: Vec<bool> = batch
            .topics()
            .map(|topic| filters.wants(topic.topic))
            .collect();
        let bytes_of = |index: usize| batch.payload(index).len() as u64;
        if wanted.iter().all(|wanted| *wanted) && !batch.holds_purged() {
            let records = (last - first) as u64;
            let after_first = batch.payload_end(last - 1) - batch.payload_end(first);
            let bytes = bytes_of(first) + u64::from(after_first);
            if left.covers(records, bytes) {
                self.took(base + last as u64, records, bytes, left);
                return;
            }
        }
        let is_wanted = |index: &usize| {
            wanted[usize::from(batch.topic_index(*index))]
                && !(batch.holds_purged() && batch.record(*index).purged)
        };
        for index in (first..last).filter(is_wanted) {
            let bytes = bytes_of(index);
            if !left.covers(1, bytes) {
                self.scanned = Offset(base + index as u64);
                self.is_stopped = true;
                return;
            }
            self.took(base + index as u64 + 1, 1, bytes, left);
        }
        self.scanned = Offset(base + last as u64);
    }

    fn took(&mut self, end: u64, records: u64, bytes: u64, left: &mut Budget) {
        self.records += records;
        self.bytes += bytes;
        self.end = Offset(end);
        self.scanned = self.end;
        *left = left.less(records, bytes);
    }

    fn row(&self) -> Result<Value, Refusal> {
        Ok(json!({
            "end": self.end.0,
            "scanned": self.scanned.0,
            "records": self.records,
            "bytes": self.bytes,
            "epoch": epoch_of_record_before(self.partition, self.end)?,
            "log_start": self.log_start.0,
            "high_watermark": self.high_watermark.0,
        }))
    }
}
