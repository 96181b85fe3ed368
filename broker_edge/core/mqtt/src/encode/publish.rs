//! PUBLISH, encoded once and patched per subscriber: subscribers with the same version, QoS layout and subscription
//! identifiers differ only in the packet identifier and the flags.

use crate::packet::kind;
use crate::topic;
use crate::version::{PacketId, QoS, Version};
use crate::wire::{VARINT_MAX, binary_len, put_binary, put_varint, varint_len};

/// The fields of a PUBLISH, without its payload.
#[derive(Debug, Clone, Copy)]
pub struct PublishFields<'a> {
    pub version: Version,
    pub dup: bool,
    pub qos: QoS,
    pub retain: bool,
    /// At most `topic::LEN_MAX` bytes. Empty when `extra` holds a topic alias that the peer knows.
    pub topic: &'a str,
    /// With QoS 1 or 2, `None` writes zero; [`PublishLayout::set_packet_id`] replaces it.
    pub packet_id: Option<PacketId>,
    /// Encoded properties of the message, without a length. Left out before MQTT 5.
    pub properties: &'a [u8],
    /// Properties of this delivery (subscription identifiers, topic alias, offset), encoded by `Property::encode`.
    pub extra: &'a [u8],
}

/// Where the parts of an encoded PUBLISH are, counted from its first byte (the one with the flags).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishLayout {
    /// The whole packet, payload included.
    pub total_len: usize,
    /// The packet without its payload.
    pub head_len: usize,
    /// Where the two bytes of the packet identifier begin; `None` with QoS 0.
    pub packet_id_at: Option<usize>,
}

/// The packet is over the format's limit of 256 MiB, or its topic is over 65,535 bytes. Nothing was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a publish of {total_len} bytes on a topic of {topic_len} bytes cannot be encoded as MQTT")]
pub struct TooLarge {
    pub total_len: usize,
    pub topic_len: usize,
}

impl PublishFields<'_> {
    /// Appends the packet.
    ///
    /// # Errors
    /// [`TooLarge`].
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>, payload: &[u8]) -> Result<PublishLayout, TooLarge> {
        let layout = self.encode_head(out, payload.len())?;
        out.extend_from_slice(payload);
        Ok(layout)
    }

    /// Appends the packet up to its payload, for callers that send the payload from another buffer.
    ///
    /// # Errors
    /// [`TooLarge`].
    #[inline]
    pub fn encode_head(
        &self,
        out: &mut Vec<u8>,
        payload_len: usize,
    ) -> Result<PublishLayout, TooLarge> {
        let layout = self.layout(payload_len)?;
        let properties_len = self.properties_len();
        let body_len = self.body_head_len() + payload_len;
        out.reserve(layout.head_len);
        out.push(first_byte(self.dup, self.qos, self.retain));
        put_varint(out, body_len as u32);
        put_binary(out, self.topic.as_bytes());
        if self.qos != QoS::AtMostOnce {
            out.extend_from_slice(&self.packet_id.map_or(0, PacketId::get).to_be_bytes());
        }
        if self.version.is_v5() {
            put_varint(out, properties_len as u32);
            out.extend_from_slice(self.properties);
            out.extend_from_slice(self.extra);
        }
        Ok(layout)
    }

    /// The sizes of the packet without encoding it, to compare with the client's maximum packet size.
    ///
    /// # Errors
    /// [`TooLarge`].
    #[inline]
    pub fn layout(&self, payload_len: usize) -> Result<PublishLayout, TooLarge> {
        let body_head_len = self.body_head_len();
        let body_len = body_head_len.saturating_add(payload_len);
        if body_len > VARINT_MAX as usize || self.topic.len() > topic::LEN_MAX {
            return Err(TooLarge {
                total_len: body_len,
                topic_len: self.topic.len(),
            });
        }
        let header_len = 1 + varint_len(body_len as u32);
        Ok(PublishLayout {
            total_len: header_len + body_len,
            head_len: header_len + body_head_len,
            packet_id_at: (self.qos != QoS::AtMostOnce)
                .then(|| header_len + binary_len(self.topic.as_bytes())),
        })
    }

    #[inline]
    fn properties_len(&self) -> usize {
        if self.version.is_v5() {
            self.properties.len() + self.extra.len()
        } else {
            0
        }
    }

    /// Length of the variable header.
    #[inline]
    fn body_head_len(&self) -> usize {
        let packet_id = if self.qos == QoS::AtMostOnce { 0 } else { 2 };
        let properties = match self.version {
            Version::V5 => {
                let len = self.properties_len();
                varint_len(len.min(VARINT_MAX as usize) as u32) + len
            }
            _ => 0,
        };
        binary_len(self.topic.as_bytes()) + packet_id + properties
    }
}

impl PublishLayout {
    /// Writes the packet identifier into the encoded packet. Does nothing with QoS 0.
    #[inline]
    pub fn set_packet_id(&self, packet: &mut [u8], packet_id: PacketId) {
        if let Some(at) = self.packet_id_at {
            packet[at..at + 2].copy_from_slice(&packet_id.get().to_be_bytes());
        }
    }
}

/// Sets the flags of the encoded packet. `qos` must keep the layout: QoS 1 and 2 share one, QoS 0 has its own.
#[inline]
pub fn set_flags(packet: &mut [u8], dup: bool, qos: QoS, retain: bool) {
    if let Some(first) = packet.first_mut() {
        *first = first_byte(dup, qos, retain);
    }
}

#[inline]
fn first_byte(dup: bool, qos: QoS, retain: bool) -> u8 {
    kind::PUBLISH << 4 | u8::from(dup) << 3 | qos.as_u8() << 1 | u8::from(retain)
}
