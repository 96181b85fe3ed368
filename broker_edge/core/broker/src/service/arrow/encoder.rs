//! Encodes rows for DoGet without copying them: Arrow's buffers become parts of a Flight message.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_ipc::writer::{IpcWriteOptions, StreamEncoder};
use arrow_schema::{ArrowError, SchemaRef};
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint};

/// `FlightData.data_body`, the last field of a message.
const BODY_FIELD: u32 = 1000;
/// Each message begins with a byte for "not compressed" and four bytes of length.
pub const GRPC_PREFIX_BYTES: usize = 5;
/// The marker and the length before the metadata of an Arrow message.
const IPC_PREFIX_BYTES: usize = 8;
/// Buffers up to this size are copied together, because a separate frame costs more than the copy.
const COPIED_BYTES_MAX: usize = 8 << 10;

/// One encoded message of a read: its head, then the buffers of its rows.
pub struct Message(pub Vec<Bytes>);

/// Encodes record batches of one schema into messages.
pub struct Encoder {
    encoder: StreamEncoder,
}

impl Encoder {
    /// The encoder, and the schema message, which must be sent first.
    pub fn new(schema: &SchemaRef) -> Result<(Encoder, Message), ArrowError> {
        let mut encoder = StreamEncoder::try_new(schema)?;
        // The first output begins with the schema in file framing, which Flight does not use.
        encoder.encode(&RecordBatch::new_empty(Arc::clone(schema)))?;
        let first = FlightData::from(SchemaAsIpc::new(schema, &IpcWriteOptions::default()));
        Ok((Encoder { encoder }, Message::new(&first, Vec::new())))
    }

    /// The canonical schema has no dictionaries, so a batch is exactly one message.
    pub fn encode(
        &mut self,
        batch: &RecordBatch,
        app_metadata: String,
    ) -> Result<Message, ArrowError> {
        let mut parts = self
            .encoder
            .encode(batch)?
            .into_iter()
            .map(Bytes::from_owner);
        let mut head = BytesMut::new();
        let header_bytes = loop {
            if let Some(length) = ipc_header_bytes(&head)
                && head.len() >= IPC_PREFIX_BYTES + length
            {
                break length;
            }
            let part = parts
                .next()
                .ok_or_else(|| ArrowError::IpcError("a message ends in its header".to_owned()))?;
            head.extend_from_slice(&part);
        };
        let mut header = head.freeze().split_off(IPC_PREFIX_BYTES);
        let begun = header.split_off(header_bytes);
        let message = FlightData::new()
            .with_data_header(header)
            .with_app_metadata(app_metadata);
        Ok(Message::new(&message, [begun].into_iter().chain(parts)))
    }
}

fn ipc_header_bytes(head: &[u8]) -> Option<usize> {
    let length = head.get(IPC_PREFIX_BYTES - 4..IPC_PREFIX_BYTES)?;
    usize::try_from(u32::from_le_bytes(length.try_into().ok()?)).ok()
}

impl Message {
    /// Builds a message from `fields` (without its body) and the parts of the body.
    fn new(fields: &FlightData, body: impl IntoIterator<Item = Bytes>) -> Message {
        let body: Vec<Bytes> = body.into_iter().filter(|part| !part.is_empty()).collect();
        let body_bytes: usize = body.iter().map(Bytes::len).sum();
        let mut encoded = BytesMut::with_capacity(fields.encoded_len() + 16);
        fields
            .encode(&mut encoded)
            .expect("a buffer that grows has room");
        if body_bytes > 0 {
            encode_key(BODY_FIELD, WireType::LengthDelimited, &mut encoded);
            encode_varint(body_bytes as u64, &mut encoded);
        }
        let mut gathered = BytesMut::with_capacity(GRPC_PREFIX_BYTES + encoded.len());
        gathered.put_u8(0);
        let message_bytes = encoded.len() + body_bytes;
        gathered.put_u32(u32::try_from(message_bytes).expect("a batch of rows stays below 2 GiB"));
        gathered.extend_from_slice(&encoded);
        let mut parts = Vec::with_capacity(body.len() + 1);
        for part in body {
            if part.len() <= COPIED_BYTES_MAX {
                gathered.extend_from_slice(&part);
            } else {
                if !gathered.is_empty() {
                    parts.push(gathered.split().freeze());
                }
                parts.push(part);
            }
        }
        if !gathered.is_empty() {
            parts.push(gathered.freeze());
        }
        Message(parts)
    }
}
