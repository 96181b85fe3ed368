//! Rows of the canonical schema (docs/protocols.md, section 3), built from batches of the log by bulk copies.
//!
//! Payloads of a batch are contiguous, so a run of wanted records is one copy and a list of offsets. Columns that are
//! constant within a partition are built once and sliced.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use arrow_array::builder::BooleanBufferBuilder;
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Int8Array, Int32Array, Int64Array, ListArray, RecordBatch,
    StringArray, StructArray, TimestampMicrosecondArray,
};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use headwater_log::{Batch, RecordView};

use super::headers;

const LOG_APPEND_TIME: i32 = 1;

fn header_fields() -> Fields {
    Fields::from(vec![
        Field::new("key", DataType::Utf8, true),
        Field::new("value", DataType::Binary, true),
    ])
}

pub fn header_item() -> Arc<Field> {
    Arc::new(Field::new("item", DataType::Struct(header_fields()), true))
}

/// Spark depends on these names, types and their order.
pub static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let utc: Arc<str> = "UTC".into();
    let fields = [
        ("key", DataType::Binary),
        ("value", DataType::Binary),
        ("topic", DataType::Utf8),
        ("partition", DataType::Int32),
        ("offset", DataType::Int64),
        (
            "timestamp",
            DataType::Timestamp(TimeUnit::Microsecond, Some(utc)),
        ),
        ("timestampType", DataType::Int32),
        ("headers", DataType::List(header_item())),
        ("log_id", DataType::Utf8),
        ("epoch", DataType::Int64),
        ("qos", DataType::Int8),
        ("retain", DataType::Boolean),
        ("client_id", DataType::Utf8),
    ];
    Arc::new(Schema::new(
        fields
            .map(|(name, kind)| Field::new(name, kind, true))
            .to_vec(),
    ))
});

/// Bytes and end offsets, the layout of Arrow's binary and string columns.
struct Bytes {
    bytes: Vec<u8>,
    ends: Vec<i32>,
}

impl Bytes {
    fn with_capacity(rows: usize, bytes: usize) -> Bytes {
        let mut ends = Vec::with_capacity(rows + 1);
        ends.push(0);
        Bytes {
            bytes: Vec::with_capacity(bytes),
            ends,
        }
    }

    fn push(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.end_row();
    }

    fn end_row(&mut self) {
        // A batch of rows is cut long before 2 GiB, and a single record is smaller too.
        self.ends
            .push(i32::try_from(self.bytes.len()).expect("a batch of rows stays below 2 GiB"));
    }

    fn memory(&self) -> usize {
        self.bytes.capacity() + 4 * self.ends.capacity()
    }

    fn parts(self) -> (OffsetBuffer<i32>, Buffer) {
        (
            OffsetBuffer::new(ScalarBuffer::from(self.ends)),
            Buffer::from_vec(self.bytes),
        )
    }

    fn into_binary(self) -> Result<ArrayRef, ArrowError> {
        let (offsets, bytes) = self.parts();
        Ok(Arc::new(BinaryArray::try_new(offsets, bytes, None)?))
    }

    fn into_string(self) -> Result<ArrayRef, ArrowError> {
        let (offsets, bytes) = self.parts();
        Ok(Arc::new(StringArray::try_new(offsets, bytes, None)?))
    }
}

/// Header lists, created with the first record that has headers, because most have none.
struct Headers {
    names: Bytes,
    values: Bytes,
    /// Ends of the lists, in headers.
    ends: Vec<i32>,
    present: BooleanBufferBuilder,
}

impl Headers {
    /// The lists of `rows` rows without headers.
    fn after_rows_without(rows: usize) -> Headers {
        let mut present = BooleanBufferBuilder::new(rows + 1);
        present.append_n(rows, false);
        Headers {
            names: Bytes::with_capacity(0, 0),
            values: Bytes::with_capacity(0, 0),
            ends: vec![0; rows + 1],
            present,
        }
    }

    fn bytes(&self) -> usize {
        self.names.bytes.len() + self.values.bytes.len() + 4 * self.names.ends.len()
    }

    fn memory(&self) -> usize {
        self.names.memory() + self.values.memory() + 4 * self.ends.capacity()
    }

    fn push(&mut self, record: &RecordView<'_>) {
        headers::for_each_header(record, &mut |name, value| {
            self.names.push(name.as_bytes());
            self.values.push(value);
        });
        let before = *self.ends.last().expect("the list of ends begins with one");
        let end =
            i32::try_from(self.names.ends.len() - 1).expect("headers are fewer than their bytes");
        self.ends.push(end);
        self.present.append(end > before);
    }

    fn into_list(mut self) -> Result<ArrayRef, ArrowError> {
        let columns = vec![self.names.into_string()?, self.values.into_binary()?];
        let items = Arc::new(StructArray::try_new(header_fields(), columns, None)?);
        let present = NullBuffer::new(self.present.finish());
        let ends = OffsetBuffer::new(ScalarBuffer::from(self.ends));
        Ok(Arc::new(ListArray::try_new(
            header_item(),
            ends,
            items,
            Some(present),
        )?))
    }
}

/// Columns with one value for the whole log, as long as the largest batch of rows. All reads share them.
pub struct Constants {
    timestamp_type: ArrayRef,
    log_id: ArrayRef,
    no_headers: ArrayRef,
}

impl Constants {
    pub fn new(log_id: &str, rows: usize) -> Constants {
        Constants {
            timestamp_type: Arc::new(Int32Array::from_value(LOG_APPEND_TIME, rows)),
            log_id: Arc::new(StringArray::from_iter_values(std::iter::repeat_n(
                log_id, rows,
            ))),
            no_headers: Arc::new(ListArray::new_null(header_item(), rows)),
        }
    }
}

/// The variable columns of the rows so far.
struct Columns {
    key: Bytes,
    value: Bytes,
    topic: Bytes,
    client_id: Bytes,
    offset: Vec<i64>,
    timestamp: Vec<i64>,
    epoch: Vec<i64>,
    qos: Vec<i8>,
    retain: BooleanBufferBuilder,
    headers: Option<Headers>,
}

impl Columns {
    fn with_capacity(rows: usize, payload_bytes: usize) -> Columns {
        Columns {
            key: Bytes::with_capacity(rows, rows * 16),
            value: Bytes::with_capacity(rows, payload_bytes),
            topic: Bytes::with_capacity(rows, rows * 32),
            client_id: Bytes::with_capacity(rows, rows * 16),
            offset: Vec::with_capacity(rows),
            timestamp: Vec::with_capacity(rows),
            epoch: Vec::with_capacity(rows),
            qos: Vec::with_capacity(rows),
            retain: BooleanBufferBuilder::new(rows),
            headers: None,
        }
    }

    fn bytes(&self) -> usize {
        let texts = [&self.key, &self.value, &self.topic, &self.client_id];
        let texts: usize = texts.iter().map(|column| column.bytes.len()).sum();
        let headers = self.headers.as_ref().map_or(0, Headers::bytes);
        texts + headers + ROW_BYTES * self.offset.len()
    }

    fn memory(&self) -> usize {
        let texts = [&self.key, &self.value, &self.topic, &self.client_id];
        let texts: usize = texts.iter().map(|column| column.memory()).sum();
        let headers = self.headers.as_ref().map_or(0, Headers::memory);
        let numbers = [&self.offset, &self.timestamp, &self.epoch];
        let numbers: usize = numbers.iter().map(|column| 8 * column.capacity()).sum();
        texts + headers + numbers + self.qos.capacity()
    }
}

/// Bytes of a row's fixed-width columns.
const ROW_BYTES: usize = 4 * 4 + 3 * 8 + 2;
/// Bytes allocated in advance per row, without its payload.
const CAPACITY_BYTES: usize = ROW_BYTES + 64;

/// Collects rows of one partition into record batches of a bounded size.
pub struct Rows {
    constants: Arc<Constants>,
    partition: i32,
    columns: Columns,
    /// Rows and payload bytes of the last batch: the next will be about as large.
    last: (usize, usize),
    rows_max: usize,
    /// A batch of rows is cut at this size; a single record may be larger.
    pub bytes_max: usize,
}

impl Rows {
    pub fn new(partition: u32, constants: Arc<Constants>, rows_max: usize) -> Rows {
        Rows {
            constants,
            partition: i32::try_from(partition).expect("partitions are few"),
            columns: Columns::with_capacity(0, 0),
            last: (0, 0),
            rows_max,
            bytes_max: usize::MAX,
        }
    }

    /// Memory held by the rows so far.
    pub fn memory(&self) -> usize {
        self.columns.memory()
    }

    pub fn len(&self) -> usize {
        self.columns.offset.len()
    }

    pub fn payload_bytes(&self) -> usize {
        self.columns.value.bytes.len()
    }

    pub fn is_full(&self) -> bool {
        self.len() >= self.rows_max || self.columns.bytes() >= self.bytes_max
    }

    /// Adds the records `range` of `batch`, all of them wanted, while there is room; returns how many it added.
    pub fn push_run(&mut self, batch: &Batch, range: Range<usize>) -> usize {
        let start_of = |index: usize| {
            if index == 0 {
                0
            } else {
                batch.payload_end(index - 1) as usize
            }
        };
        let first_byte = start_of(range.start);
        let mut end = range.start;
        if self.len() == 0 {
            // Allocated only now: a read that waits for its reader holds no memory.
            let rows = self.last.0.min(self.bytes_max / CAPACITY_BYTES);
            let payloads = (self.last.1 + self.last.1 / 8).min(self.bytes_max);
            self.columns = Columns::with_capacity(rows, payloads);
        }
        let columns = &mut self.columns;
        let base =
            i32::try_from(columns.value.bytes.len()).expect("a batch of rows stays below 2 GiB");
        let last_row = range
            .end
            .min(range.start + self.rows_max.saturating_sub(columns.offset.len()));
        while end < last_row {
            let record = batch.record(end);
            let payloads = start_of(end) - first_byte + record.payload.len();
            if columns.bytes() + payloads > self.bytes_max && !columns.offset.is_empty() {
                break;
            }
            push_fields(columns, &record);
            let within = batch.payload_end(end) as usize - first_byte;
            columns
                .value
                .ends
                .push(base + i32::try_from(within).expect("a batch of rows stays below 2 GiB"));
            end += 1;
        }
        columns
            .value
            .bytes
            .extend_from_slice(&batch.payloads()[first_byte..start_of(end).max(first_byte)]);
        end - range.start
    }

    /// Returns the rows so far as a record batch and starts an empty one.
    pub fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        let rows = self.len();
        if rows > 0 {
            self.last = (rows, self.payload_bytes());
        }
        let mut columns = std::mem::replace(&mut self.columns, Columns::with_capacity(0, 0));
        let headers = match columns.headers {
            Some(headers) => headers.into_list()?,
            None => self.constants.no_headers.slice(0, rows),
        };
        let arrays: Vec<ArrayRef> = vec![
            columns.key.into_binary()?,
            columns.value.into_binary()?,
            columns.topic.into_string()?,
            Arc::new(Int32Array::from_value(self.partition, rows)),
            Arc::new(Int64Array::from(columns.offset)),
            Arc::new(TimestampMicrosecondArray::from(columns.timestamp).with_timezone("UTC")),
            self.constants.timestamp_type.slice(0, rows),
            headers,
            self.constants.log_id.slice(0, rows),
            Arc::new(Int64Array::from(columns.epoch)),
            Arc::new(Int8Array::from(columns.qos)),
            Arc::new(BooleanArray::new(columns.retain.finish(), None)),
            columns.client_id.into_string()?,
        ];
        RecordBatch::try_new(Arc::clone(&SCHEMA), arrays)
    }
}

fn push_fields(columns: &mut Columns, record: &RecordView<'_>) {
    if headers::has_headers(record) || columns.headers.is_some() {
        let rows = columns.offset.len();
        columns
            .headers
            .get_or_insert_with(|| Headers::after_rows_without(rows))
            .push(record);
    }
    columns.key.push(record.key);
    columns.topic.push(record.topic.as_bytes());
    columns.client_id.push(record.client_id.as_bytes());
    columns.offset.push(signed(record.offset.0));
    columns.timestamp.push(record.time_us);
    columns.epoch.push(signed(record.epoch.0));
    columns.qos.push(record.qos.cast_signed());
    columns.retain.append(record.retain);
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
