//! Arrow IPC of DoPut, from messages to a record batch.
//!
//! All metadata of a message is checked before Arrow's decoder sees it: the columns, the number of rows, and that each
//! buffer lies within the body and is long enough for its rows. Arrow's decoder panics on inconsistent input. A
//! remaining panic ends only the call.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_flight::FlightData;
use arrow_ipc::reader::read_record_batch;
use arrow_ipc::{Endianness, Message, MessageHeader, Type, root_as_message};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use super::columns::header_item;
use crate::service::error::Refusal;

/// The most rows of one batch: each row costs memory beside its bytes, and an offset in the answer.
pub const ROWS_MAX: usize = 262_144;
const HEADER_BYTES_MAX: usize = 64 << 10;

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Bytes,
    Int8,
    Bool,
    Headers,
}

/// The columns that DoPut accepts.
const COLUMNS: [(&str, Kind); 7] = [
    ("topic", Kind::Text),
    ("value", Kind::Bytes),
    ("key", Kind::Bytes),
    ("headers", Kind::Headers),
    ("qos", Kind::Int8),
    ("retain", Kind::Bool),
    ("idempotency_key", Kind::Text),
];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Text => "string",
            Kind::Bytes => "binary",
            Kind::Int8 => "int8",
            Kind::Bool => "bool",
            Kind::Headers => "list<struct<key: string, value: binary>>",
        }
    }

    fn data_type(self) -> DataType {
        match self {
            Kind::Text => DataType::Utf8,
            Kind::Bytes => DataType::Binary,
            Kind::Int8 => DataType::Int8,
            Kind::Bool => DataType::Boolean,
            Kind::Headers => DataType::List(header_item()),
        }
    }

    fn is(self, field: &arrow_ipc::Field<'_>) -> bool {
        if field.dictionary().is_some() {
            return false;
        }
        let children = children_of(field);
        match self {
            Kind::Text => field.type_type() == Type::Utf8,
            Kind::Bytes => field.type_type() == Type::Binary,
            Kind::Bool => field.type_type() == Type::Bool,
            Kind::Int8 => field
                .type_as_int()
                .is_some_and(|int| int.bitWidth() == 8 && int.is_signed()),
            Kind::Headers => {
                let [item] = &children[..] else { return false };
                let pair = children_of(item);
                let [key, value] = &pair[..] else {
                    return false;
                };
                field.type_type() == Type::List
                    && item.type_type() == Type::Struct_
                    && item.dictionary().is_none()
                    && Kind::Text.is(key)
                    && Kind::Bytes.is(value)
            }
        }
    }
}

/// The children of a field, at most three.
fn children_of<'a>(field: &arrow_ipc::Field<'a>) -> Vec<arrow_ipc::Field<'a>> {
    let children = field.children().into_iter().flatten();
    children.take(3).collect()
}

/// Decodes the messages of one DoPut, in order.
#[derive(Default)]
pub struct Decoder {
    columns: Option<(Vec<Kind>, SchemaRef)>,
}

impl Decoder {
    /// The rows of a message; `None` for the schema message and for empty ones.
    pub fn decode(&mut self, data: &FlightData) -> Result<Option<RecordBatch>, Refusal> {
        if data.data_header.len() > HEADER_BYTES_MAX {
            return Err(unreadable("the header of a message is too long"));
        }
        let guarded = catch_unwind(AssertUnwindSafe(|| self.decode_checked(data)));
        guarded.unwrap_or_else(|_| Err(unreadable("a message is not Arrow IPC")))
    }

    pub fn decode_checked(&mut self, data: &FlightData) -> Result<Option<RecordBatch>, Refusal> {
        let message = root_as_message(&data.data_header)
            .map_err(|error| unreadable(&format!("a message is not Arrow IPC: {error}")))?;
        match message.header_type() {
            MessageHeader::NONE => Ok(None),
            MessageHeader::Schema if self.columns.is_none() => {
                self.columns = Some(columns_of(&message)?);
                Ok(None)
            }
            MessageHeader::Schema => Err(unreadable("a second schema is not allowed")),
            MessageHeader::RecordBatch => {
                let (kinds, schema) = self
                    .columns
                    .as_ref()
                    .ok_or_else(|| unreadable("rows came before the schema"))?;
                batch_of(data, &message, kinds, schema).map(Some)
            }
            MessageHeader::DictionaryBatch => Err(unreadable(
                "dictionaries are not supported: send columns without dictionary encoding",
            )),
            other => Err(unreadable(&format!(
                "a message of type `{}` is not allowed",
                other.variant_name().unwrap_or("unknown")
            ))),
        }
    }
}

fn unreadable(reason: &str) -> Refusal {
    Refusal::invalid("", format!("the rows are unreadable: {reason}"))
}

/// The columns of a schema. Only their names and types are used.
fn columns_of(message: &Message<'_>) -> Result<(Vec<Kind>, SchemaRef), Refusal> {
    let schema = message
        .header_as_schema()
        .ok_or_else(|| unreadable("the schema is missing"))?;
    if schema.endianness() != Endianness::Little {
        return Err(unreadable("the schema is not little-endian"));
    }
    let known = COLUMNS.map(|(name, _)| name).join(", ");
    let mut kinds = Vec::new();
    let mut fields: Vec<Field> = Vec::new();
    for field in schema.fields().into_iter().flatten() {
        let name = field.name().unwrap_or_default();
        let Some((_, kind)) = COLUMNS.iter().find(|(column, _)| *column == name) else {
            let name: String = name.chars().take(80).collect();
            let message = format!(
                "unknown column `{}`; the known columns are {known}",
                name.escape_debug()
            );
            return Err(Refusal::invalid(&name, message));
        };
        if fields.iter().any(|field| field.name() == name) {
            return Err(Refusal::invalid(
                name,
                format!("the column `{name}` appears twice"),
            ));
        }
        if !kind.is(&field) {
            let given = match field.dictionary() {
                Some(_) => "dictionary-encoded",
                None => field.type_type().variant_name().unwrap_or("unknown"),
            };
            let message = format!(
                "the column `{name}` has type {given}; it must be {}",
                kind.name()
            );
            return Err(Refusal::invalid(name, message));
        }
        kinds.push(*kind);
        fields.push(Field::new(name, kind.data_type(), true));
    }
    Ok((kinds, Arc::new(Schema::new(fields))))
}

fn batch_of(
    data: &FlightData,
    message: &Message<'_>,
    kinds: &[Kind],
    schema: &SchemaRef,
) -> Result<RecordBatch, Refusal> {
    let batch = message
        .header_as_record_batch()
        .ok_or_else(|| unreadable("a message has no record batch"))?;
    if batch.compression().is_some() {
        return Err(unreadable(
            "compressed buffers are not supported: send them without compression",
        ));
    }
    let rows = usize::try_from(batch.length()).unwrap_or(usize::MAX);
    if rows > ROWS_MAX {
        return Err(unreadable(&format!(
            "a batch has {} rows; the limit is {ROWS_MAX}: send several batches",
            batch.length()
        )));
    }
    let mut cursor =
        Cursor::new(&batch, &data.data_body).ok_or_else(|| unreadable("a batch has no buffers"))?;
    let fits = kinds
        .iter()
        .try_for_each(|kind| cursor.column(*kind, Some(rows)))
        .is_some_and(|()| cursor.is_at_end());
    if !fits {
        return Err(unreadable("a buffer does not fit the rows or the body"));
    }
    // Arrow needs aligned buffers, and those of a message may lie at any address.
    let body = Buffer::from(data.data_body.as_ref());
    read_record_batch(
        &body,
        batch,
        Arc::clone(schema),
        &HashMap::new(),
        None,
        &message.version(),
    )
    .map_err(|error| unreadable(&error.to_string()))
}

/// Walks the nodes and buffers of a batch as Arrow's decoder does; its methods return `None` if something does not fit.
struct Cursor<'a, N, B> {
    nodes: N,
    buffers: B,
    body: &'a [u8],
}

impl<'a> Cursor<'a, (), ()> {
    #[allow(
        clippy::new_ret_no_self,
        reason = "the kinds of the iterators have no short names"
    )]
    fn new(
        batch: &arrow_ipc::RecordBatch<'a>,
        body: &'a [u8],
    ) -> Option<
        Cursor<
            'a,
            impl Iterator<Item = &'a arrow_ipc::FieldNode>,
            impl Iterator<Item = &'a arrow_ipc::Buffer>,
        >,
    > {
        Some(Cursor {
            nodes: batch.nodes()?.iter(),
            buffers: batch.buffers()?.iter(),
            body,
        })
    }
}

impl<'a, N, B> Cursor<'a, N, B>
where
    N: Iterator<Item = &'a arrow_ipc::FieldNode>,
    B: Iterator<Item = &'a arrow_ipc::Buffer>,
{
    /// Checks a column of `rows` rows; `None` for list values, whose number is not known in advance.
    fn column(&mut self, kind: Kind, rows: Option<usize>) -> Option<()> {
        let length = self.node(rows)?;
        match kind {
            Kind::Int8 => (self.buffer()?.len() >= length).then_some(()),
            Kind::Bool => (self.buffer()?.len() >= length.div_ceil(8)).then_some(()),
            Kind::Text | Kind::Bytes => {
                let last = self.last_offset(length)?;
                (self.buffer()?.len() >= last).then_some(())
            }
            Kind::Headers => {
                let last = self.last_offset(length)?;
                let items = self.node(None)?;
                self.column(Kind::Text, Some(items))?;
                self.column(Kind::Bytes, Some(items))?;
                (items >= last).then_some(())
            }
        }
    }

    /// Checks the next node with its validity buffer; returns its length.
    fn node(&mut self, rows: Option<usize>) -> Option<usize> {
        let node = self.nodes.next()?;
        let length = usize::try_from(node.length()).ok()?;
        let nulls = usize::try_from(node.null_count()).ok()?;
        // Lists may have many items, but each takes offset bytes in the body.
        let is_right = rows.map_or(length <= self.body.len(), |rows| rows == length);
        let validity = self.buffer()?;
        let is_covered = nulls == 0 || validity.len() >= length.div_ceil(8);
        (is_right && nulls <= length && is_covered).then_some(length)
    }

    fn buffer(&mut self) -> Option<&'a [u8]> {
        let buffer = self.buffers.next()?;
        let start = usize::try_from(buffer.offset()).ok()?;
        let length = usize::try_from(buffer.length()).ok()?;
        self.body.get(start..start.checked_add(length)?)
    }

    /// Reads the next buffer as the offsets of `length` values, which must not decrease; returns the last one.
    fn last_offset(&mut self, length: usize) -> Option<usize> {
        let buffer = self.buffer()?;
        if length == 0 && buffer.is_empty() {
            return Some(0);
        }
        let bytes = (length + 1) * size_of::<i32>();
        if buffer.len() % size_of::<i32>() != 0 {
            return None;
        }
        let mut before = 0;
        for offset in buffer.get(..bytes)?.chunks_exact(size_of::<i32>()) {
            let offset = i32::from_le_bytes(offset.try_into().ok()?);
            if offset < before {
                return None;
            }
            before = offset;
        }
        usize::try_from(before).ok()
    }

    fn is_at_end(&mut self) -> bool {
        self.nodes.next().is_none() && self.buffers.next().is_none()
    }
}

#[cfg(test)]
#[path = "ipc_tests.rs"]
mod tests;
