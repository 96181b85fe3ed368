//! DoPut: rows become records, acknowledged after the sync.
//!
//! A batch of rows is checked as a whole before any row is appended. The rows then go to their partitions in order, in
//! appends of a bounded size; a full queue slows the producer down.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use headwater_log::{
    AppendError, ClientIndex, Offset, Partition, PartitionId, RecordMeta, Records, Route,
    TopicIndex,
};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::ask::ask;
use super::rows::Rows;
use super::weigh::{self, Weights};
use crate::engine::{MESSAGES_MAX, RetainRequest};
use crate::event_loop::Command;
use crate::service::callers::caller::Caller;
use crate::service::error::Refusal;
use crate::service::office::Office;
use crate::service::shared::Shared;

/// How long to wait for a full queue before the producer is told to try again.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(30);
/// Topics of one append.
const APPEND_TOPICS_MAX: usize = 256;
/// Empty, because a producer is not an MQTT client.
const CLIENT_ID: &str = "";

/// Appends the rows and waits until they are durable. Must run on a blocking thread.
pub fn produce(
    shared: &Arc<Shared>,
    caller: &Caller,
    batch: &RecordBatch,
    runtime: &Handle,
) -> Result<Value, Refusal> {
    let office = shared.office.get()?;
    let rows = Rows::of(batch, &shared.limits)?;
    let renewed = caller.renewed(&shared.auth)?;
    let caller = renewed.as_ref().unwrap_or(caller);
    rows.check_rights(caller)?;
    claim_retained(shared, caller, &rows, runtime)?;
    let weights = weigh::weigh(shared, &rows, runtime)?;
    let mut appends = Appends::new(shared, office, rows.len(), runtime, weights);
    for row in 0..rows.len() {
        appends.push(&rows, row)?;
    }
    appends.finish()
}

/// Charges the retained messages among the rows to their user's quota, as an MQTT publish does.
fn claim_retained(
    shared: &Arc<Shared>,
    caller: &Caller,
    rows: &Rows<'_>,
    runtime: &Handle,
) -> Result<(), Refusal> {
    let Some(rights) = caller.rights() else {
        return Ok(());
    };
    let retained: Vec<usize> = (0..rows.len())
        .filter(|row| rows.retain(*row) && !rows.value.value(*row).is_empty())
        .collect();
    for part in retained.chunks(MESSAGES_MAX) {
        let message = |row: &usize| {
            let topic = rows.topic.value(*row).to_owned();
            (topic, rows.value.value(*row).len())
        };
        let claimed = ask(&shared.commands, runtime, |answer| {
            Command::Retain(RetainRequest {
                rights: Arc::clone(rights),
                messages: part.iter().map(message).collect(),
                answer,
            })
        })?;
        claimed.map_err(|limit| {
            Refusal::exhausted(format!(
                "the limit of retained messages is reached ({limit}): remove some, or raise the limit"
            ))
        })?;
    }
    Ok(())
}

/// The appends of one batch of rows, and the offset of each row.
struct Appends<'a> {
    shared: &'a Arc<Shared>,
    office: Arc<Office>,
    runtime: &'a Handle,
    open: HashMap<PartitionId, Open<'a>>,
    routes: HashMap<&'a str, Route>,
    weights: Weights<'a>,
    partitions: Vec<u32>,
    offsets: Vec<u64>,
    duplicates: Vec<bool>,
    /// For each partition, the end offset that must become durable before the answer.
    ends: HashMap<PartitionId, Offset>,
    produced: u64,
}

/// Records of one partition that are not appended yet.
struct Open<'a> {
    records: Records,
    rows: Vec<usize>,
    topics: HashMap<&'a str, TopicIndex>,
    /// The work of finding the receivers of these topics.
    work: u64,
    client: Option<ClientIndex>,
    is_keyed: bool,
}

impl<'a> Appends<'a> {
    fn new(
        shared: &'a Arc<Shared>,
        office: Arc<Office>,
        rows: usize,
        runtime: &'a Handle,
        weights: Weights<'a>,
    ) -> Appends<'a> {
        Appends {
            shared,
            office,
            runtime,
            open: HashMap::new(),
            routes: HashMap::new(),
            weights,
            partitions: vec![0; rows],
            offsets: vec![0; rows],
            duplicates: vec![false; rows],
            ends: HashMap::new(),
            produced: 0,
        }
    }

    fn push(&mut self, rows: &Rows<'a>, row: usize) -> Result<(), Refusal> {
        let topic = rows.topic.value(row);
        let route = self
            .routes
            .entry(topic)
            .or_insert_with(|| self.shared.log.route(topic))
            .clone();
        self.partitions[row] = route.partition.0;
        let partition = self.shared.partition(route.partition.0)?.clone();
        let bytes_max = self.shared.limits.append_bytes;
        let open = self
            .open
            .entry(route.partition)
            .or_insert_with(|| Open::new(&partition));
        let is_large = open.records.bytes() + rows.value.value(row).len() > bytes_max
            && !open.records.is_empty();
        let work = self.weights.of(topic);
        let is_new = !open.topics.contains_key(topic);
        let has_many_topics = open.topics.len() >= APPEND_TOPICS_MAX;
        let is_costly = open.work > 0 && open.work + work > weigh::APPEND_WORK_MAX;
        let is_full = is_large || (is_new && (has_many_topics || is_costly));
        if is_full || open.add(rows, row, (topic, work), &route).is_err() {
            self.append(&partition)?;
            let open = self
                .open
                .entry(route.partition)
                .or_insert_with(|| Open::new(&partition));
            open.add(rows, row, (topic, work), &route).map_err(|_| {
                Refusal::invalid("value", format!("row {row} is too large for a record"))
            })?;
        }
        Ok(())
    }

    /// Appends the open records of `partition`.
    fn append(&mut self, partition: &Partition) -> Result<(), Refusal> {
        let Some(open) = self.open.remove(&partition.id()) else {
            return Ok(());
        };
        let (shared, runtime, records) = (self.shared, self.runtime, open.records);
        // Appends of several producers share a batch: of costly ones there is one at a time.
        let alone = (open.work > weigh::SHARED_WORK_MAX).then(|| shared.costly_appends.lock());
        let end = self.ends.entry(partition.id()).or_default();
        if open.is_keyed {
            let append = Partition::append_unique;
            let placed = shared.wait_for_room(runtime, partition, records, append)?;
            for (row, placed) in open.rows.into_iter().zip(placed) {
                self.offsets[row] = placed.offset.0;
                self.duplicates[row] = placed.duplicate;
                *end = (*end).max(placed.offset.plus(1));
                self.produced += u64::from(!placed.duplicate);
            }
        } else {
            let range = shared.wait_for_room(runtime, partition, records, Partition::append)?;
            for (row, offset) in open.rows.into_iter().zip(range.start.0..) {
                self.offsets[row] = offset;
                self.produced += 1;
            }
            *end = (*end).max(range.end);
        }
        if alone.is_some() {
            let progress = &shared.progress[partition.id().0 as usize];
            runtime.block_on(self.office.tenure.reach(progress, *end))?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Value, Refusal> {
        for number in self.open.keys().copied().collect::<Vec<_>>() {
            let partition = self.shared.partition(number.0)?.clone();
            self.append(&partition)?;
        }
        for (number, end) in &self.ends {
            let progress = &self.shared.progress[number.0 as usize];
            self.runtime
                .block_on(self.office.tenure.reach(progress, *end))?;
        }
        let metrics = &self.shared.metrics.flight;
        metrics.records_produced.inc_by(self.produced);
        let duplicates = self.duplicates.iter().filter(|duplicate| **duplicate);
        metrics.records_duplicate.inc_by(duplicates.count() as u64);
        Ok(
            json!({"partitions": self.partitions, "offsets": self.offsets, "duplicates": self.duplicates}),
        )
    }
}

impl<'a> Open<'a> {
    fn new(partition: &Partition) -> Open<'a> {
        Open {
            records: partition.take_records(),
            rows: Vec::new(),
            topics: HashMap::new(),
            work: 0,
            client: None,
            is_keyed: false,
        }
    }

    fn add(
        &mut self,
        rows: &Rows<'a>,
        row: usize,
        (topic, work): (&'a str, u64),
        route: &Route,
    ) -> Result<(), headwater_log::RecordsFull> {
        let client = match self.client {
            Some(client) => client,
            None => *self.client.insert(self.records.client(CLIENT_ID)?),
        };
        let topic = match self.topics.get(topic) {
            Some(index) => *index,
            None => {
                let index = self.records.topic(topic, route.key.clone())?;
                self.topics.insert(topic, index);
                self.work += work;
                index
            }
        };
        let mut headers = Vec::new();
        rows.for_each_header(row, |name, value| headers.push((name, value)));
        let idempotency_key = rows.idempotency_key(row);
        let meta = RecordMeta {
            key: rows.key(row),
            retain: rows.retain(row),
            idempotency_key,
            headers: &headers,
            ..RecordMeta::new(topic, client, rows.qos(row).cast_unsigned())
        };
        self.records.push(meta, rows.value.value(row))?;
        self.rows.push(row);
        self.is_keyed |= idempotency_key.is_some();
        Ok(())
    }
}

impl Shared {
    /// Appends; while the queue is full, waits until the partition's high watermark or state changes.
    pub fn wait_for_room<T>(
        &self,
        runtime: &Handle,
        partition: &Partition,
        records: Records,
        append: impl Fn(&Partition, Records) -> Result<T, AppendError>,
    ) -> Result<T, Refusal> {
        let deadline = std::time::Instant::now() + QUEUE_TIMEOUT;
        let mut records = records;
        loop {
            let mut moves = self.progress[partition.id().0 as usize].moves();
            let error = match append(partition, records) {
                Ok(appended) => return Ok(appended),
                Err(error) => error,
            };
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            records = match error {
                AppendError::QueueFull { records, .. } if !left.is_zero() => *records,
                error => return Err(Refusal::from_append(partition, error)),
            };
            // Retry after a change or at the deadline; the next attempt finds out which.
            let _ = runtime.block_on(async { tokio::time::timeout(left, moves.changed()).await });
        }
    }
}
