//! Encodes a record as the PUBLISH that a subscriber gets.
//!
//! Decides which parts of a record are sent (remaining expiry, headers of producers, offsets); the mqtt crate writes
//! the bytes.

use headwater_log::{Batch, RecordView};
use headwater_mqtt::encode::{PublishFields, PublishLayout};
use headwater_mqtt::property::set_message_expiry;
use headwater_mqtt::{Properties, Property, PropertyId, QoS, text};

use crate::engine::env::Env;
use crate::engine::ids::PartitionIndex;
use crate::engine::routing::topics::EffectiveOptions;
use crate::engine::session::aliases::AliasUse;
use crate::engine::session::connection::Connection;

use super::template::payload_of;

/// Whether the payload is copied behind the header, or sent from its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    Copied,
    Shared,
}

/// Appends the PUBLISH with the record's properties, without its payload if that is shared. `None` if the record is not delivered: expired, purged,
/// or too large to encode.
#[inline]
pub fn record(
    out: &mut Vec<u8>,
    record: &RecordView<'_>,
    fields: PublishFields<'_>,
    payload: Payload,
    now_us: i64,
) -> Option<PublishLayout> {
    if record.purged {
        return None;
    }
    if record.properties.is_empty() && record.headers.is_empty() {
        return put(out, record, fields, payload);
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
    let properties = &properties;
    put(
        out,
        record,
        PublishFields {
            properties,
            ..fields
        },
        payload,
    )
}

/// The bytes as an MQTT string, if they are a valid one.
fn text(bytes: &[u8]) -> Option<&str> {
    text::check(bytes).filter(|text| text.len() <= usize::from(u16::MAX))
}

#[inline]
fn put(
    out: &mut Vec<u8>,
    record: &RecordView<'_>,
    fields: PublishFields<'_>,
    payload: Payload,
) -> Option<PublishLayout> {
    match payload {
        Payload::Copied => fields.encode(out, record.payload).ok(),
        Payload::Shared => fields.encode_head(out, record.payload.len()).ok(),
    }
}

/// How one session gets one record.
pub struct Form<'a> {
    pub qos: QoS,
    pub retain: bool,
    pub dup: bool,
    pub effective: &'a EffectiveOptions,
    /// The topic may be replaced by an alias. Packets that are sent again have their full topics.
    pub uses_aliases: bool,
    /// The batch that holds the record, if a large payload may be sent from there.
    pub batch: Option<&'a Batch>,
}

pub enum Written {
    /// The packet, and where it begins in the buffer.
    Sent(PublishLayout, usize),
    TooLarge,
    /// Or purged.
    Expired,
}

/// Appends one record to the buffer of one connection, without its packet id.
pub fn write(
    conn: &mut Connection,
    of: &RecordView<'_>,
    partition: PartitionIndex,
    form: &Form<'_>,
    env: &Env,
) -> Written {
    let effective = form.effective;
    let place = if effective.offsets || effective.offset_topics {
        let name = env.partitions[partition.index()].name();
        format!("{name}:{}", of.offset)
    } else {
        String::new()
    };
    let mut extra = Vec::new();
    if conn.version.is_v5() {
        put_extra(&mut extra, of, effective, &place);
    }
    let at_topic = effective
        .offset_topics
        .then(|| format!("$at/{place}/{}", of.topic));
    let alias_use = match &conn.extras.out_aliases {
        Some(aliases) if form.uses_aliases && at_topic.is_none() => aliases.alias_use(of.topic),
        _ => AliasUse::Plain,
    };
    if let AliasUse::New(number) | AliasUse::Known(number) = alias_use {
        Property::TopicAlias(number).encode(&mut extra);
    }
    let fields = PublishFields {
        version: conn.version,
        qos: form.qos,
        retain: form.retain,
        dup: form.dup,
        topic: match alias_use {
            AliasUse::Known(_) => "",
            _ => at_topic.as_deref().unwrap_or(of.topic),
        },
        packet_id: None,
        properties: &[],
        extra: &extra,
    };
    let base = conn.out.len();
    let shared = form.batch.filter(|_| payload_of(of) == Payload::Shared);
    let payload = shared.map_or(Payload::Copied, |_| Payload::Shared);
    let Some(packet) = record(&mut conn.out, of, fields, payload, env.now.wall_us) else {
        return Written::Expired;
    };
    if packet.total_len > conn.packet_max as usize {
        conn.out.truncate(base);
        return Written::TooLarge;
    }
    if let AliasUse::New(number) = alias_use
        && let Some(aliases) = &mut conn.extras.out_aliases
    {
        aliases.learn(of.topic, number);
    }
    if let Some(batch) = shared {
        let index = (of.offset.0 - batch.base_offset().0) as usize;
        conn.shares.push(conn.out.len(), batch, index);
    }
    Written::Sent(packet, base)
}

/// The properties of only this delivery: identifiers of subscriptions, offset and time.
fn put_extra(
    extra: &mut Vec<u8>,
    record: &RecordView<'_>,
    effective: &EffectiveOptions,
    place: &str,
) {
    for id in effective.ids.iter().flatten() {
        Property::SubscriptionIdentifier(*id).encode(extra);
    }
    if effective.offsets {
        let time = record.time_us.to_string();
        for (key, value) in [("stream-offset", place), ("ts", &time)] {
            Property::UserProperty { key, value }.encode(extra);
        }
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
