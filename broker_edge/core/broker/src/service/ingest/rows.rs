//! The rows of a DoPut: columns by name, and the rules for each row. The rules are those of a PUBLISH: valid MQTT
//! topics, and records no larger than `flight.max_record_bytes`.

use arrow_array::cast::AsArray;
use arrow_array::types::Int8Type;
use arrow_array::{
    Array, BinaryArray, BooleanArray, Int8Array, ListArray, RecordBatch, StringArray,
};

use crate::auth::Access;
use crate::service::callers::caller::Caller;
use crate::service::error::Refusal;
use crate::service::limits::Limits;

const DEFAULT_QOS: i8 = 1;
const IDEMPOTENCY_KEY_BYTES_MAX: usize = 4_096;
/// Bytes that the log stores per header beside name and value.
const HEADER_OVERHEAD_BYTES: usize = 6;

/// The columns of a batch, by name; some are optional.
pub struct Rows<'a> {
    pub topic: &'a StringArray,
    pub value: &'a BinaryArray,
    key: Option<&'a BinaryArray>,
    headers: Option<&'a ListArray>,
    qos: Option<&'a Int8Array>,
    retain: Option<&'a BooleanArray>,
    idempotency_key: Option<&'a StringArray>,
}

impl<'a> Rows<'a> {
    pub fn of(batch: &'a RecordBatch, limits: &Limits) -> Result<Rows<'a>, Refusal> {
        // The decoder has checked the types.
        let column = |name| batch.column_by_name(name);
        let missing = |name| Refusal::invalid(name, format!("the column `{name}` is missing"));
        let topic = column("topic").and_then(|column| column.as_string_opt());
        let value = column("value").and_then(|column| column.as_binary_opt());
        let rows = Rows {
            topic: topic.ok_or_else(|| missing("topic"))?,
            value: value.ok_or_else(|| missing("value"))?,
            key: column("key").and_then(|column| column.as_binary_opt()),
            headers: column("headers").and_then(|column| column.as_list_opt()),
            qos: column("qos").and_then(|column| column.as_primitive_opt::<Int8Type>()),
            retain: column("retain").and_then(|column| column.as_boolean_opt()),
            idempotency_key: column("idempotency_key").and_then(|column| column.as_string_opt()),
        };
        (0..rows.len()).try_for_each(|row| rows.check(row, limits))?;
        Ok(rows)
    }

    pub fn len(&self) -> usize {
        self.topic.len()
    }

    /// Checks every row, because a batch with a forbidden row is not appended at all.
    pub fn check_rights(&self, caller: &Caller) -> Result<(), Refusal> {
        if caller.restricting_rights().is_none() {
            return Ok(());
        }
        let mut allowed = "";
        for topic in self.topic.iter().flatten() {
            if topic != allowed && !caller.may(Access::Publish, topic) {
                let message = format!("this user may not publish to `{topic}`");
                return Err(Refusal::not_allowed(message).about(topic));
            }
            allowed = topic;
        }
        Ok(())
    }

    fn check(&self, row: usize, limits: &Limits) -> Result<(), Refusal> {
        if self.topic.is_null(row) || self.value.is_null(row) {
            let field = if self.topic.is_null(row) {
                "topic"
            } else {
                "value"
            };
            return Err(Refusal::invalid(field, format!("row {row} has no {field}")));
        }
        let topic = self.topic.value(row);
        if let Some(reason) = limits.refusal_of_topic(topic) {
            let shown: String = topic.chars().take(80).collect();
            let message = format!("row {row}: {reason}: `{}`", shown.escape_debug());
            return Err(Refusal::invalid("topic", message));
        }
        self.check_size(row, limits)?;
        self.check_qos(row)
    }

    /// Checks that a client could have published the record.
    fn check_size(&self, row: usize, limits: &Limits) -> Result<(), Refusal> {
        let key_bytes = self.idempotency_key(row).map_or(0, str::len);
        if key_bytes > IDEMPOTENCY_KEY_BYTES_MAX {
            let message = format!(
                "row {row} has an idempotency key of {key_bytes} bytes; the limit is {IDEMPOTENCY_KEY_BYTES_MAX}"
            );
            return Err(Refusal::invalid("idempotency_key", message));
        }
        let topic = self.topic.value(row);
        let mut bytes = self.value.value(row).len()
            + topic.len()
            + key_bytes
            + self.key(row).map_or(0, <[u8]>::len);
        let mut longest_name = 0;
        self.for_each_header(row, |name, value| {
            bytes += name.len() + value.len() + HEADER_OVERHEAD_BYTES;
            longest_name = longest_name.max(name.len());
        });
        if longest_name > usize::from(u16::MAX) {
            let message = format!("row {row} has a header name of more than 65,535 bytes");
            return Err(Refusal::invalid("headers", message));
        }
        let limit = limits.record_bytes_max(topic);
        if bytes > limit {
            let message = format!(
                "row {row} has {bytes} bytes with its topic and headers; the limit is {limit} \
                 (flight.max_record_bytes): send smaller records, or raise that setting at the broker"
            );
            return Err(Refusal::invalid("value", message));
        }
        Ok(())
    }

    fn check_qos(&self, row: usize) -> Result<(), Refusal> {
        match self.qos(row) {
            0..=2 => Ok(()),
            qos => Err(Refusal::invalid(
                "qos",
                format!("row {row} has QoS {qos}; it must be 0, 1 or 2"),
            )),
        }
    }

    pub fn qos(&self, row: usize) -> i8 {
        self.qos
            .filter(|column| column.is_valid(row))
            .map_or(DEFAULT_QOS, |column| column.value(row))
    }

    pub fn retain(&self, row: usize) -> bool {
        self.retain
            .is_some_and(|column| column.is_valid(row) && column.value(row))
    }

    pub fn key(&self, row: usize) -> Option<&'a [u8]> {
        self.key
            .filter(|column| column.is_valid(row))
            .map(|column| column.value(row))
    }

    /// An empty key counts as none.
    pub fn idempotency_key(&self, row: usize) -> Option<&'a str> {
        let column = self.idempotency_key.filter(|column| column.is_valid(row))?;
        Some(column.value(row)).filter(|key| !key.is_empty())
    }

    pub fn for_each_header(&self, row: usize, mut add: impl FnMut(&'a str, &'a [u8])) {
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
