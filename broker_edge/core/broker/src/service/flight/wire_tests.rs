use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::Ordering;

use arrow_array::{ArrayRef, BinaryArray, Int64Array, ListArray, RecordBatch};
use arrow_flight::FlightData;
use arrow_flight::utils::flight_data_to_batches;
use arrow_schema::{DataType, Field, Schema};
use http_body::Body as _;
use prost::Message as _;
use tokio::sync::mpsc;

use super::*;
use crate::service::arrow::encoder::{Encoder, GRPC_PREFIX_BYTES, Message};
use crate::service::callers::shares::Pace;
use crate::service::records::outbox::MessageSlot;

/// Rows with long and short buffers, nulls, and a column of only nulls.
fn rows(count: usize) -> RecordBatch {
    let item = Arc::new(Field::new("item", DataType::Int64, true));
    let schema = Arc::new(Schema::new(vec![
        Field::new("value", DataType::Binary, true),
        Field::new("offset", DataType::Int64, true),
        Field::new("headers", DataType::List(Arc::clone(&item)), true),
    ]));
    let values = (0..count).map(|row| (row % 7 != 3).then(|| vec![row as u8; row % 90]));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(values.collect::<BinaryArray>()),
        Arc::new(Int64Array::from_iter_values(0..count as i64)),
        Arc::new(ListArray::new_null(item, count)),
    ];
    RecordBatch::try_new(schema, columns).expect("rows fit their schema")
}

/// Checks and removes the framing, and decodes as a client does.
fn decoded(message: &Message) -> FlightData {
    let bytes = message.0.concat();
    let (prefix, message) = bytes.split_at(GRPC_PREFIX_BYTES);
    assert_eq!(prefix[0], 0, "nothing is compressed");
    assert_eq!(prefix[1..], u32::to_be_bytes(message.len() as u32));
    FlightData::decode(message).expect("a message of Flight")
}

#[test]
fn rows_come_back_as_they_were_sent() {
    let all = rows(30_000);
    let (mut encoder, schema) = Encoder::new(&all.schema()).expect("a schema");
    // A slice may begin in the middle of its buffers and of a byte of the null bitmap.
    for (start, count) in [(0, 30_000), (0, 0), (0, 1), (13, 20_000), (29_999, 1)] {
        let sent = all.slice(start, count);
        let message = encoder
            .encode(&sent, format!("to {count}"))
            .expect("a message");
        let got = decoded(&message);
        assert_eq!(got.app_metadata, format!("to {count}"));
        let batches = flight_data_to_batches(&[decoded(&schema), got]).expect("rows");
        assert_eq!(batches, [sent]);
    }
}

#[test]
fn long_buffers_are_sent_where_they_lie() {
    let sent = rows(30_000);
    let (mut encoder, _) = Encoder::new(&sent.schema()).expect("a schema");
    let message = encoder.encode(&sent, String::new()).expect("a message");
    let values = sent.column(0).to_data().buffers()[1].as_ptr();
    assert!(message.0.iter().any(|part| part.as_ptr() == values));
}

/// The bytes and the trailers of a body.
async fn drained(body: WireBody) -> (Vec<u8>, http::HeaderMap) {
    let (mut body, mut bytes) = (pin!(body), Vec::new());
    let mut trailers = None;
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        assert!(trailers.is_none(), "nothing comes after the trailers");
        match frame.expect("a frame").into_data() {
            Ok(part) => bytes.extend_from_slice(&part),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    (bytes, trailers.expect("a body ends with its status"))
}

#[tokio::test]
async fn a_read_that_ends_early_says_why_after_its_rows() {
    for (end, status) in [(Status::ok(""), "0"), (Status::out_of_range("gone"), "11")] {
        let (sender, receiver) = mpsc::channel(2);
        let (_, schema) = Encoder::new(&rows(1).schema()).expect("a schema");
        let expected = schema.0.concat();
        sender
            .try_send(Ok(MessageSlot::new(schema, None)))
            .expect("room");
        sender.try_send(Err(end)).expect("room");
        let messages = Messages::new(receiver, Arc::default());
        let (bytes, trailers) = drained(WireBody::new(messages)).await;
        assert_eq!(bytes, expected);
        assert_eq!(trailers["grpc-status"], status);
    }
}

#[tokio::test]
async fn a_read_whose_messages_were_taken_back_ends_with_a_status_to_try_again() {
    let (sender, receiver) = mpsc::channel(2);
    let (_, schema) = Encoder::new(&rows(1).schema()).expect("a schema");
    let slot = MessageSlot::new(schema, None);
    sender.try_send(Ok(slot.clone())).expect("room");
    slot.discard();
    let pace = Arc::new(Pace::default());
    let messages = Messages::new(receiver, Arc::clone(&pace));
    let (bytes, trailers) = drained(WireBody::new(messages)).await;
    assert!(bytes.is_empty());
    assert_eq!(trailers["grpc-status"], "14");
    assert!(pace.gone.load(Ordering::Relaxed));
}
