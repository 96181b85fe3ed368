use arrow_array::builder::{BinaryBuilder, ListBuilder, StringBuilder, StructBuilder};
use arrow_array::{ArrayRef, BinaryArray, BooleanArray, Int8Array, StringArray};
use arrow_flight::utils::batches_to_flight_data;
use tonic::{Code, Status};

use super::*;
use crate::numbers::Numbers;

/// Rows with every column.
fn every_column(rows: usize) -> RecordBatch {
    let item = StructBuilder::from_fields(
        vec![
            Field::new("key", DataType::Utf8, true),
            Field::new("value", DataType::Binary, true),
        ],
        rows,
    );
    let mut headers = ListBuilder::new(item);
    for row in 0..rows {
        let pair = headers.values();
        let key = pair.field_builder::<StringBuilder>(0).expect("a builder");
        key.append_value("trace");
        let value = pair.field_builder::<BinaryBuilder>(1).expect("a builder");
        value.append_value([0, 255]);
        pair.append(true);
        headers.append(row.is_multiple_of(2));
    }
    let text = |name: &str| {
        (0..rows)
            .map(|row| format!("{name}/{row}"))
            .collect::<Vec<_>>()
    };
    let optional = |row: usize| (!row.is_multiple_of(3)).then_some(row);
    let columns: [(&str, ArrayRef); 7] = [
        ("topic", Arc::new(StringArray::from(text("devices")))),
        (
            "value",
            Arc::new(BinaryArray::from_iter_values(text("value"))),
        ),
        (
            "key",
            Arc::new(BinaryArray::from_iter(
                (0..rows).map(|row| optional(row).map(|row| row.to_string())),
            )),
        ),
        ("headers", Arc::new(headers.finish())),
        (
            "qos",
            Arc::new(Int8Array::from_iter(
                (0..rows).map(|row| optional(row).map(|_| 1)),
            )),
        ),
        (
            "retain",
            Arc::new(BooleanArray::from_iter(
                (0..rows).map(|row| optional(row).map(|row| row.is_multiple_of(2))),
            )),
        ),
        (
            "idempotency_key",
            Arc::new(StringArray::from_iter(
                (0..rows).map(|row| optional(row).map(|row| row.to_string())),
            )),
        ),
    ];
    RecordBatch::try_from_iter(columns).expect("columns of one length")
}

fn messages(batch: &RecordBatch) -> Vec<FlightData> {
    batches_to_flight_data(&batch.schema(), [batch]).expect("rows encode")
}

fn decoded(messages: &[FlightData]) -> Result<Vec<RecordBatch>, Refusal> {
    let mut decoder = Decoder::default();
    let batches = messages
        .iter()
        .map(|message| decoder.decode(message).transpose());
    batches.flatten().collect()
}

#[test]
fn what_was_encoded_is_what_is_decoded() {
    for rows in [0, 1, 7, 200] {
        let batch = every_column(rows);
        let found = decoded(&messages(&batch)).expect("the rows are good");
        assert_eq!(found.len(), 1);
        for (name, column) in batch.schema().fields().iter().zip(batch.columns()) {
            let found = found[0].column_by_name(name.name()).expect("the column");
            assert_eq!(found.as_ref(), column.as_ref(), "{}", name.name());
        }
    }
}

#[test]
fn a_part_of_larger_rows_is_decoded() {
    let batch = every_column(50).slice(7, 20);
    let found = decoded(&messages(&batch)).expect("the rows are good");
    assert_eq!(found[0].num_rows(), 20);
    assert_eq!(found[0].column(0).as_ref(), batch.column(0).as_ref());
}

#[test]
fn columns_that_are_not_known_twice_or_of_another_kind_are_refused_by_name() {
    let text = |value: &str| Arc::new(StringArray::from(vec![value.to_owned()])) as ArrayRef;
    for (columns, field) in [
        (vec![("topic", text("a")), ("colour", text("b"))], "colour"),
        (vec![("topic", text("a")), ("value", text("b"))], "value"),
        (vec![("retain", text("a"))], "retain"),
    ] {
        let batch = RecordBatch::try_from_iter(columns).expect("columns of one length");
        let status = Status::from(decoded(&messages(&batch)).expect_err("it is refused"));
        assert_eq!(status.code(), Code::InvalidArgument);
        let named = format!("\"field\":\"{field}\"");
        assert!(status.message().contains(&named), "{}", status.message());
    }
}

/// A message with changed bytes in its header or body, or without its end.
fn mutated(message: &FlightData, numbers: &mut Numbers) -> FlightData {
    let mut message = message.clone();
    let is_header = message.data_body.is_empty() || numbers.below(4) > 0;
    let part = if is_header {
        &mut message.data_header
    } else {
        &mut message.data_body
    };
    let mut bytes = part.to_vec();
    if numbers.below(20) == 0 {
        bytes.truncate(numbers.below(bytes.len()));
    }
    for _ in 0..=numbers.below(3) {
        if !bytes.is_empty() {
            let at = numbers.below(bytes.len());
            bytes[at] = match numbers.below(4) {
                0 => 0xff,
                1 => 0,
                2 => bytes[at] ^ (1 << numbers.below(8)),
                _ => numbers.below(256) as u8,
            };
        }
    }
    *part = bytes.into();
    message
}

/// Without catching panics: messages that pass the checks must not make Arrow's decoder panic.
#[test]
fn mutated_messages_are_decoded_or_refused_without_a_panic() {
    let mut numbers = Numbers(0x5eed_0001);
    let valid = messages(&every_column(9));
    let mut refused = 0;
    for _ in 0..20_000 {
        let which = numbers.below(valid.len());
        let mut decoder = Decoder::default();
        for (index, message) in valid.iter().enumerate() {
            let message = if index == which {
                mutated(message, &mut numbers)
            } else {
                message.clone()
            };
            if decoder.decode_checked(&message).is_err() {
                refused += 1;
                break;
            }
        }
    }
    assert!(refused > 1_000, "mutations that all pass change nothing");
}
