//! Encodes a record as the PUBLISH that a subscriber gets.
//!
//! Decides which parts of a record are sent (remaining expiry, headers of producers, offsets); the mqtt crate writes
//! the bytes.

use headwater_log::RecordView;
use headwater_mqtt::encode::{PublishFields, PublishLayout};
use headwater_mqtt::property::set_message_expiry;
use headwater_mqtt::{Properties, Property, PropertyId, QoS, Version, text};

/// How one subscriber gets a record.
#[derive(Debug, Clone, Copy)]
pub struct PublishOptions<'a> {
    pub version: Version,
    pub qos: QoS,
    pub retain: bool,
    pub dup: bool,
    /// Replaces the record's topic.
    pub topic: Option<&'a str>,
    /// Encoded properties of only this delivery.
    pub extra: &'a [u8],
}

/// Whether the payload is copied behind the header, or sent from its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    Copied,
    Shared,
}

/// Appends the PUBLISH, without its payload if that is shared. `None` if the record is not delivered: expired, purged,
/// or too large to encode.
#[inline]
pub fn record(
    out: &mut Vec<u8>,
    record: &RecordView<'_>,
    form: PublishOptions<'_>,
    payload: Payload,
    now_us: i64,
) -> Option<PublishLayout> {
    if record.purged {
        return None;
    }
    if record.properties.is_empty() && record.headers.is_empty() {
        return put(out, record, form, &[], payload);
    }
    let mut properties = record.properties.to_vec();
    if let Some(expiry_s) = message_expiry_s(record.properties) {
        let age_s = u64::try_from(now_us.saturating_sub(record.time_us)).unwrap_or(0) / 1_000_000;
        let left_s = u64::from(expiry_s)
            .checked_sub(age_s)
            .filter(|left| *left > 0)?;
        set_message_expiry(&mut properties, u32::try_from(left_s).unwrap_or(expiry_s));
    }
    for (key, value) in record.headers {
        // Flight producers may use any header name and any bytes. Clients close the connection on strings that are not
        // valid in MQTT, and would do so again wherever their session continues.
        if let (Some(key), Some(value)) = (text(key.as_bytes()), text(value)) {
            Property::UserProperty { key, value }.encode(&mut properties);
        }
    }
    put(out, record, form, &properties, payload)
}

/// The bytes as an MQTT string, if they are a valid one.
fn text(bytes: &[u8]) -> Option<&str> {
    text::check(bytes).filter(|text| text.len() <= usize::from(u16::MAX))
}

#[inline]
fn put(
    out: &mut Vec<u8>,
    record: &RecordView<'_>,
    form: PublishOptions<'_>,
    properties: &[u8],
    payload: Payload,
) -> Option<PublishLayout> {
    let fields = PublishFields {
        version: form.version,
        dup: form.dup,
        qos: form.qos,
        retain: form.retain,
        topic: form.topic.unwrap_or(record.topic),
        packet_id: None,
        properties,
        extra: form.extra,
    };
    match payload {
        Payload::Copied => fields.encode(out, record.payload).ok(),
        Payload::Shared => fields.encode_head(out, record.payload.len()).ok(),
    }
}

/// The message expiry interval set by the publisher.
pub fn message_expiry_s(properties: &[u8]) -> Option<u32> {
    let properties = Properties::stored(properties).ok()?;
    if !properties.contains(PropertyId::MessageExpiryInterval) {
        return None;
    }
    properties.message_expiry_interval()
}
