//! Packets of the broker, with the fields that tests check.

use headwater_mqtt::packet::ServerPacket;
use headwater_mqtt::packet::ack::Ack;
use headwater_mqtt::{PacketId, ReasonCode};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Got {
    Connack {
        present: bool,
        accepted: bool,
        code: u8,
        properties: Vec<(String, String)>,
    },
    Publish(Message),
    Puback {
        id: u16,
        reason: ReasonCode,
        properties: Vec<(String, String)>,
    },
    Suback {
        codes: Vec<ReasonCode>,
        properties: Vec<(String, String)>,
    },
    Unsuback,
    Pingresp,
    Disconnect(ReasonCode),
    Closed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub retain: bool,
    pub dup: bool,
    pub id: Option<u16>,
    /// User properties, in order.
    pub properties: Vec<(String, String)>,
    pub expiry_s: Option<u32>,
    pub ids: Vec<u32>,
}

impl Message {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.payload).expect("tests send text")
    }

    pub fn property(&self, name: &str) -> Option<&str> {
        self.properties
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }
}

fn users(properties: headwater_mqtt::Properties<'_>) -> Vec<(String, String)> {
    properties
        .user_properties()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

impl From<ServerPacket<'_>> for Got {
    fn from(packet: ServerPacket<'_>) -> Self {
        match packet {
            ServerPacket::Connack(connack) => {
                let mut properties = users(connack.properties);
                if let Some(id) = connack.properties.assigned_client_identifier() {
                    properties.push(("assigned".to_owned(), id.to_owned()));
                }
                let code = match connack.code {
                    headwater_mqtt::packet::connack::ConnackCode::V3(code) => code.as_u8(),
                    headwater_mqtt::packet::connack::ConnackCode::V5(code) => code.as_u8(),
                };
                Got::Connack {
                    present: connack.session_present,
                    accepted: connack.code.is_accepted(),
                    code,
                    properties,
                }
            }
            ServerPacket::Publish(publish) => Got::Publish(Message {
                topic: publish.topic.as_str().to_owned(),
                payload: publish.payload.to_vec(),
                qos: publish.qos.as_u8(),
                retain: publish.retain,
                dup: publish.dup,
                id: publish.packet_id.map(PacketId::get),
                properties: users(publish.properties),
                expiry_s: publish.properties.message_expiry_interval(),
                ids: publish.properties.subscription_identifiers().collect(),
            }),
            ServerPacket::Puback(Ack {
                packet_id,
                reason,
                properties,
            }) => Got::Puback {
                id: packet_id.get(),
                reason,
                properties: users(properties),
            },
            ServerPacket::Suback(suback) => {
                let mut properties = users(suback.properties);
                if let Some(reason) = suback.properties.reason_string() {
                    properties.push(("reason".to_owned(), reason.to_owned()));
                }
                Got::Suback {
                    codes: suback.codes.iter().collect(),
                    properties,
                }
            }
            ServerPacket::Unsuback(_) => Got::Unsuback,
            ServerPacket::Pingresp => Got::Pingresp,
            ServerPacket::Disconnect(disconnect) => Got::Disconnect(disconnect.reason),
            other => panic!("the broker sent {other:?}"),
        }
    }
}
