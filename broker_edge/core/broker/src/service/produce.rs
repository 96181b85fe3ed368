//! DoPut: rows become records, acknowledged after the sync.
//!
//! A batch of rows is checked as a whole before anything of it is appended. It then goes to the partitions in order of
//! rows, in appends of a bounded size; a full queue slows the producer down.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int8Type;
use arrow_array::{
    Array, BinaryArray, BooleanArray, Int8Array, ListArray, RecordBatch, StringArray,
};
use arrow_schema::DataType;
use headwater_log::{
    AppendError, ClientIndex, Offset, Partition, PartitionId, RecordMeta, Records, Route,
    TopicIndex,
};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::Shared;
use super::caller::Caller;
use super::error::Refusal;
use crate::auth::Access;

/// How long a full queue is waited for before the producer is told to come back.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(30);
const TOPIC_BYTES_MAX: usize = 65_535;
/// A producer is not an MQTT client.
const CLIENT_ID: &str = "";
const DEFAULT_QOS: i8 = 1;

/// Appends the rows and waits until they are durable. Call it on a blocking thread.
pub(super) fn produce(
    shared: &Arc<Shared>,
    caller: &Caller,
    batch: &RecordBatch,
    runtime: &Handle,
) -> Result<Value, Refusal> {
    let rows = Rows::of(batch)?;
    if caller.is_current(shared) {
        rows.check_rights(caller)?;
    } else {
        rows.check_rights(&caller.renew(shared)?)?;
    }
    let mut appends = Appends::new(shared, rows.len(), runtime);
    for row in 0..rows.len() {
        appends.push(&rows, row)?;
    }
    appends.finish()
}

/// The columns of a batch, by name, with what is optional.
struct Rows<'a> {
    topic: &'a StringArray,
    value: &'a BinaryArray,
    key: Option<&'a BinaryArray>,
    headers: Option<&'a ListArray>,
    qos: Option<&'a Int8Array>,
    retain: Option<&'a BooleanArray>,
    idempotency_key: Option<&'a StringArray>,
}

impl<'a> Rows<'a> {
    fn of(batch: &'a RecordBatch) -> Result<Rows<'a>, Refusal> {
        for field in batch.schema_ref().fields() {
            let known = [
                "topic",
                "value",
                "key",
                "headers",
                "qos",
                "retain",
                "idempotency_key",
            ];
            if !known.contains(&field.name().as_str()) {
                let message = format!(
                    "unknown column `{}`; known are {}",
                    field.name(),
                    known.join(", ")
                );
                return Err(Refusal::invalid(field.name(), message));
            }
        }
        let rows = Rows {
            topic: required(batch, "topic", "string", |column| column.as_string_opt())?,
            value: required(batch, "value", "binary", |column| column.as_binary_opt())?,
            key: optional(batch, "key", "binary", |column| column.as_binary_opt())?,
            headers: optional(
                batch,
                "headers",
                "list<struct<key: string, value: binary>>",
                as_headers,
            )?,
            qos: optional(batch, "qos", "int8", |column| {
                column.as_primitive_opt::<Int8Type>()
            })?,
            retain: optional(batch, "retain", "bool", |column| column.as_boolean_opt())?,
            idempotency_key: optional(batch, "idempotency_key", "string", |column| {
                column.as_string_opt()
            })?,
        };
        (0..rows.len()).try_for_each(|row| rows.check(row))?;
        Ok(rows)
    }

    fn len(&self) -> usize {
        self.topic.len()
    }

    /// Nothing of a batch is appended when a row of it may not be.
    fn check_rights(&self, caller: &Caller) -> Result<(), Refusal> {
        if caller.restricting_rights().is_none() {
            return Ok(());
        }
        let mut allowed = "";
        for topic in self.topic.iter().flatten() {
            if topic != allowed && !caller.may(Access::Publish, topic) {
                let message = format!("this user may not publish to `{topic}`");
                return Err(Refusal::not_allowed(message));
            }
            allowed = topic;
        }
        Ok(())
    }

    fn check(&self, row: usize) -> Result<(), Refusal> {
        if self.topic.is_null(row) || self.value.is_null(row) {
            let field = if self.topic.is_null(row) {
                "topic"
            } else {
                "value"
            };
            return Err(Refusal::invalid(field, format!("row {row} has no {field}")));
        }
        let topic = self.topic.value(row);
        let reason = match topic {
            "" => "an empty topic",
            _ if topic.starts_with('$') => {
                "a topic that begins with `$`, which only the broker writes"
            }
            _ if topic.contains(['+', '#']) => "a topic with a wildcard",
            _ if topic.contains('\0') => "a topic with a null character",
            _ if topic.len() > TOPIC_BYTES_MAX => "a topic of more than 65,535 bytes",
            _ => return self.check_qos(row),
        };
        Err(Refusal::invalid(
            "topic",
            format!("row {row} has {reason}: `{:.80}`", topic),
        ))
    }

    fn check_qos(&self, row: usize) -> Result<(), Refusal> {
        match self.qos(row) {
            0..=2 => Ok(()),
            qos => Err(Refusal::invalid(
                "qos",
                format!("row {row} has QoS {qos}, which is not in 0 to 2"),
            )),
        }
    }

    fn qos(&self, row: usize) -> i8 {
        self.qos
            .filter(|column| column.is_valid(row))
            .map_or(DEFAULT_QOS, |column| column.value(row))
    }

    fn retain(&self, row: usize) -> bool {
        self.retain
            .is_some_and(|column| column.is_valid(row) && column.value(row))
    }

    fn key(&self, row: usize) -> Option<&'a [u8]> {
        self.key
            .filter(|column| column.is_valid(row))
            .map(|column| column.value(row))
    }

    /// An empty key is no key.
    fn idempotency_key(&self, row: usize) -> Option<&'a str> {
        let column = self.idempotency_key.filter(|column| column.is_valid(row))?;
        Some(column.value(row)).filter(|key| !key.is_empty())
    }

    fn for_each_header(&self, row: usize, mut add: impl FnMut(&'a str, &'a [u8])) {
        let Some(lists) = self.headers.filter(|lists| lists.is_valid(row)) else {
            return;
        };
        let items = lists.values().as_struct();
        let (names, values) = (
            items.column(0).as_string::<i32>(),
            items.column(1).as_binary::<i32>(),
        );
        let (start, end) = (lists.value_offsets()[row], lists.value_offsets()[row + 1]);
        for item in usize::try_from(start).unwrap_or(0)..usize::try_from(end).unwrap_or(0) {
            if items.is_valid(item) && names.is_valid(item) {
                add(
                    names.value(item),
                    if values.is_valid(item) {
                        values.value(item)
                    } else {
                        &[]
                    },
                );
            }
        }
    }
}

fn required<'a, T>(
    batch: &'a RecordBatch,
    name: &str,
    kind: &str,
    cast: impl FnOnce(&'a dyn Array) -> Option<&'a T>,
) -> Result<&'a T, Refusal> {
    optional(batch, name, kind, cast)?
        .ok_or_else(|| Refusal::invalid(name, format!("the column `{name}` is missing")))
}

fn optional<'a, T>(
    batch: &'a RecordBatch,
    name: &str,
    kind: &str,
    cast: impl FnOnce(&'a dyn Array) -> Option<&'a T>,
) -> Result<Option<&'a T>, Refusal> {
    let Some(column) = batch.column_by_name(name) else {
        return Ok(None);
    };
    match cast(column.as_ref()) {
        Some(column) => Ok(Some(column)),
        None => Err(Refusal::invalid(
            name,
            format!("the column `{name}` is {}, not {kind}", column.data_type()),
        )),
    }
}

fn as_headers(column: &dyn Array) -> Option<&ListArray> {
    let lists = column.as_list_opt::<i32>()?;
    let DataType::Struct(fields) = lists.values().data_type() else {
        return None;
    };
    let kinds: Vec<&DataType> = fields.iter().map(|field| field.data_type()).collect();
    (kinds == [&DataType::Utf8, &DataType::Binary]).then_some(lists)
}

/// The appends of one batch of rows, and where each row went.
struct Appends<'a> {
    shared: &'a Arc<Shared>,
    runtime: &'a Handle,
    open: HashMap<PartitionId, Open<'a>>,
    routes: HashMap<&'a str, Route>,
    partitions: Vec<u32>,
    offsets: Vec<u64>,
    duplicates: Vec<bool>,
    /// By partition, the offset that must become durable before the answer.
    ends: HashMap<PartitionId, Offset>,
    produced: u64,
}

/// Records for one partition that are not appended yet.
struct Open<'a> {
    records: Records,
    rows: Vec<usize>,
    topics: HashMap<&'a str, TopicIndex>,
    client: Option<ClientIndex>,
    is_keyed: bool,
}

impl<'a> Appends<'a> {
    fn new(shared: &'a Arc<Shared>, rows: usize, runtime: &'a Handle) -> Appends<'a> {
        Appends {
            shared,
            runtime,
            open: HashMap::new(),
            routes: HashMap::new(),
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
        let bytes_max = self.shared.config.append_bytes;
        let open = self
            .open
            .entry(route.partition)
            .or_insert_with(|| Open::new(&partition));
        let is_full = open.records.bytes() + rows.value.value(row).len() > bytes_max
            && !open.records.is_empty();
        if is_full || open.add(rows, row, topic, &route).is_err() {
            self.append(&partition)?;
            let open = self
                .open
                .entry(route.partition)
                .or_insert_with(|| Open::new(&partition));
            open.add(rows, row, topic, &route).map_err(|_| {
                Refusal::invalid("value", format!("row {row} is too large for a record"))
            })?;
        }
        Ok(())
    }

    /// Appends what is open for `partition`.
    fn append(&mut self, partition: &Partition) -> Result<(), Refusal> {
        let Some(open) = self.open.remove(&partition.id()) else {
            return Ok(());
        };
        let end = self.ends.entry(partition.id()).or_default();
        if open.is_keyed {
            let placed = self.shared.wait_for_room(
                self.runtime,
                partition,
                open.records,
                Partition::append_unique,
            )?;
            for (row, placed) in open.rows.into_iter().zip(placed) {
                self.offsets[row] = placed.offset.0;
                self.duplicates[row] = placed.duplicate;
                *end = (*end).max(placed.offset.plus(1));
                self.produced += u64::from(!placed.duplicate);
            }
        } else {
            let range = self.shared.wait_for_room(
                self.runtime,
                partition,
                open.records,
                Partition::append,
            )?;
            for (row, offset) in open.rows.into_iter().zip(range.start.0..) {
                self.offsets[row] = offset;
                self.produced += 1;
            }
            *end = (*end).max(range.end);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Value, Refusal> {
        for number in self.open.keys().copied().collect::<Vec<_>>() {
            let partition = self.shared.partition(number.0)?.clone();
            self.append(&partition)?;
        }
        for (number, end) in &self.ends {
            self.runtime
                .block_on(self.shared.progress[number.0 as usize].reach(*end))?;
        }
        let metrics = &self.shared.metrics.flight;
        metrics.records_produced.inc_by(self.produced);
        metrics.records_duplicate.inc_by(
            self.duplicates
                .iter()
                .filter(|duplicate| **duplicate)
                .count() as u64,
        );
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
            client: None,
            is_keyed: false,
        }
    }

    fn add(
        &mut self,
        rows: &Rows<'a>,
        row: usize,
        topic: &'a str,
        route: &Route,
    ) -> Result<(), headwater_log::RecordsFull> {
        let client = match self.client {
            Some(client) => client,
            None => *self.client.insert(self.records.client(CLIENT_ID)?),
        };
        let topic = match self.topics.get(topic) {
            Some(index) => *index,
            None => *self
                .topics
                .entry(topic)
                .or_insert(self.records.topic(topic, route.key.clone())?),
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
    /// Appends, and while the queue is full waits for the partition to move.
    pub(super) fn wait_for_room<T>(
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
            // Whether it moved or the time is over, the next try tells.
            let _ = runtime.block_on(async { tokio::time::timeout(left, moves.changed()).await });
        }
    }
}
