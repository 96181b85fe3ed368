//! Views into one record of a batch: borrowed fields, nothing copied.

use crate::batch::layout::{
    TAG_HEADERS, TAG_IDEMPOTENCY_KEY, TAG_KEY, TAG_PROPERTIES, TAG_PUBLISH_ID, u16_at, u32_at,
    u64_at,
};
use crate::ids::{Epoch, Offset};

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RecordView<'a> {
    pub offset: Offset,
    pub epoch: Epoch,
    /// When the broker appended it: Unix microseconds, UTC.
    pub time_us: i64,
    /// Index of the topic in the batch's table.
    pub topic_index: u16,
    pub topic: &'a str,
    /// The routing level of the topic, or the key that the record was given.
    pub key: &'a [u8],
    pub client_id: &'a str,
    pub qos: u8,
    pub retain: bool,
    /// The payload was removed on request; the offset remains.
    pub purged: bool,
    pub idempotency_key: Option<&'a str>,
    /// MQTT 5 properties in MQTT's encoding, without the length in front.
    pub properties: &'a [u8],
    pub headers: Headers<'a>,
    /// The QoS 2 publish of a persistent session that this record came from.
    pub publish_id: Option<PublishId>,
    pub payload: &'a [u8],
}

/// Names a QoS 2 publish: its session and its packet id, which is free again once the publish was released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublishId {
    /// Names one life of a session: a client that starts clean gets another number.
    pub session: u64,
    pub packet_id: u16,
}

impl PublishId {
    pub(crate) const BYTES: usize = 10;

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.session.to_le_bytes());
        bytes[8..].copy_from_slice(&self.packet_id.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        (bytes.len() == Self::BYTES).then(|| Self {
            session: u64_at(bytes, 0),
            packet_id: u16_at(bytes, 8),
        })
    }
}

/// Name and value pairs of a record, in the given order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Headers<'a> {
    bytes: &'a [u8],
}

impl Headers<'_> {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a str, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, value, rest) = split_header(self.bytes)?;
        self.bytes = rest;
        Some((std::str::from_utf8(key).unwrap_or_default(), value))
    }
}

fn split_header(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (head, rest) = bytes.split_at_checked(6)?;
    let (key, rest) = rest.split_at_checked(usize::from(u16_at(head, 0)))?;
    let (value, rest) = rest.split_at_checked(u32_at(head, 2) as usize)?;
    Some((key, value, rest))
}

/// The parsed extension of a record. Unknown tags are skipped.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Extension<'a> {
    pub key: Option<&'a [u8]>,
    pub idempotency_key: Option<&'a [u8]>,
    pub properties: &'a [u8],
    pub headers: Headers<'a>,
    pub publish_id: Option<PublishId>,
}

impl<'a> Extension<'a> {
    /// Parses bytes that were checked when their batch was decoded; stops at the first field that does not fit.
    pub fn new(mut bytes: &'a [u8]) -> Self {
        let mut extension = Self::default();
        while let Some((tag, field, rest)) = split_field(bytes) {
            match tag {
                TAG_KEY => extension.key = Some(field),
                TAG_IDEMPOTENCY_KEY => extension.idempotency_key = Some(field),
                TAG_PROPERTIES => extension.properties = field,
                TAG_HEADERS => extension.headers = Headers { bytes: field },
                TAG_PUBLISH_ID => extension.publish_id = PublishId::from_bytes(field),
                _ => {}
            }
            bytes = rest;
        }
        extension
    }

    /// Whether the bytes are whole fields, with UTF-8 where text belongs.
    pub fn is_well_formed(mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let Some((tag, mut field, rest)) = split_field(bytes) else {
                return false;
            };
            match tag {
                TAG_IDEMPOTENCY_KEY if std::str::from_utf8(field).is_err() => return false,
                TAG_HEADERS => {
                    while !field.is_empty() {
                        let Some((key, _, rest)) = split_header(field) else {
                            return false;
                        };
                        if std::str::from_utf8(key).is_err() {
                            return false;
                        }
                        field = rest;
                    }
                }
                _ => {}
            }
            bytes = rest;
        }
        true
    }
}

fn split_field(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (head, rest) = bytes.split_at_checked(5)?;
    let (field, rest) = rest.split_at_checked(u32_at(head, 1) as usize)?;
    Some((head[0], field, rest))
}
