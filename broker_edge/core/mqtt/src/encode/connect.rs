//! CONNECT, for clients.

use super::{prefixed_len, put_header, put_properties};
use crate::packet::kind;
use crate::property::Property;
use crate::version::{QoS, Version};
use crate::wire::{binary_len, put_binary};

/// The fields of a CONNECT.
#[derive(Debug, Clone, Copy)]
pub struct ConnectFields<'a> {
    pub version: Version,
    pub clean_start: bool,
    pub keep_alive_s: u16,
    pub client_id: &'a str,
    pub will: Option<WillFields<'a>>,
    pub username: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    pub properties: &'a [Property<'a>],
}

/// The will of a CONNECT.
#[derive(Debug, Clone, Copy)]
pub struct WillFields<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    pub properties: &'a [Property<'a>],
}

impl<'a> ConnectFields<'a> {
    /// A clean session with a keep-alive of 60 seconds.
    #[must_use]
    pub const fn new(version: Version, client_id: &'a str) -> Self {
        Self {
            version,
            clean_start: true,
            keep_alive_s: 60,
            client_id,
            will: None,
            username: None,
            password: None,
            properties: &[],
        }
    }

    fn flags(&self) -> u8 {
        let will = self.will.map_or(0, |will| {
            0x04 | will.qos.as_u8() << 3 | u8::from(will.retain) << 5
        });
        will | u8::from(self.clean_start) << 1
            | u8::from(self.password.is_some()) << 6
            | u8::from(self.username.is_some()) << 7
    }

    fn body_len(&self) -> usize {
        let properties_len = |properties| {
            if self.version.is_v5() {
                prefixed_len(properties)
            } else {
                0
            }
        };
        let name = self.version.protocol_name().as_bytes();
        let mut len = binary_len(name)
            + 4
            + properties_len(self.properties)
            + binary_len(self.client_id.as_bytes());
        if let Some(will) = &self.will {
            len += properties_len(will.properties)
                + binary_len(will.topic.as_bytes())
                + binary_len(will.payload);
        }
        len += self.username.map_or(0, |name| binary_len(name.as_bytes()));
        len + self.password.map_or(0, binary_len)
    }
}

/// Appends a CONNECT.
pub fn connect(out: &mut Vec<u8>, fields: &ConnectFields<'_>) {
    let is_v5 = fields.version.is_v5();
    put_header(out, kind::CONNECT << 4, fields.body_len());
    put_binary(out, fields.version.protocol_name().as_bytes());
    out.extend_from_slice(&[fields.version.level(), fields.flags()]);
    out.extend_from_slice(&fields.keep_alive_s.to_be_bytes());
    if is_v5 {
        put_properties(out, fields.properties);
    }
    put_binary(out, fields.client_id.as_bytes());
    if let Some(will) = &fields.will {
        if is_v5 {
            put_properties(out, will.properties);
        }
        put_binary(out, will.topic.as_bytes());
        put_binary(out, will.payload);
    }
    if let Some(username) = fields.username {
        put_binary(out, username.as_bytes());
    }
    if let Some(password) = fields.password {
        put_binary(out, password);
    }
}
