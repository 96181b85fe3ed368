//! Inputs: seed packets changed at critical bytes, packets made of random fields, and noise.

use headwater_mqtt::encode::{self, ConnectFields, PublishFields, WillFields};
use headwater_mqtt::packet::subscribe::{Subscription, SubscriptionOptions};
use headwater_mqtt::{PacketId, Property, QoS, ReasonCode, Version};

/// Byte values at which lengths, counts and codes change their meaning.
const BYTES: [u8; 16] = [
    0, 1, 2, 3, 4, 5, 0x0b, 0x23, 0x26, 0x7e, 0x7f, 0x80, 0x81, 0x92, 0xfe, 0xff,
];
const TEXTS: [&str; 14] = [
    "",
    "a",
    "a/b",
    "+",
    "#",
    "a/#",
    "+/b",
    "$share/g/a",
    "$at+/earliest/a",
    "/",
    "ä水🦀",
    "\u{feff}",
    "$SYS/x",
    "\u{7f}",
];

pub(crate) struct Mutator {
    state: u64,
}

impl Mutator {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed | 1 }
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// Writes the next input.
    pub(crate) fn next_input(&mut self, seeds: &[Vec<u8>], input: &mut Vec<u8>) {
        input.clear();
        match self.below(16) {
            0 => {
                for _ in 0..self.below(64) {
                    let byte = self.next() as u8;
                    input.push(byte);
                }
                return;
            }
            1..=6 => self.generate(input),
            _ => input.extend_from_slice(&seeds[self.below(seeds.len())]),
        }
        for _ in 0..self.below(5) {
            self.change(seeds, input);
        }
        // A wrong length hides everything after it, so it is corrected in four cases of five.
        if self.below(5) > 0 {
            fix_length(input);
        }
    }

    fn change(&mut self, seeds: &[Vec<u8>], input: &mut Vec<u8>) {
        let at = self.below(input.len().max(1));
        if input.is_empty() {
            input.push(self.next() as u8);
            return;
        }
        match self.below(9) {
            0 => input[at] ^= 1 << self.below(8),
            1 => input[at] = self.one_of(&BYTES),
            2 => input[at] = self.next() as u8,
            3 => input.truncate(at),
            4 => {
                let byte = self.one_of(&BYTES);
                input.insert(at, byte);
            }
            5 => {
                let end = at + self.below(input.len() - at + 1);
                input.drain(at..end);
            }
            6 => {
                let end = at + self.below((input.len() - at).min(64) + 1);
                if input.len() < 4096 {
                    let part = input[at..end].to_vec();
                    input.splice(at..at, part);
                }
            }
            7 => {
                let other = &seeds[self.below(seeds.len())];
                let from = self.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
                input.truncate(4096);
            }
            _ => {
                // The first byte of another packet in front of this body.
                input[0] = self.next() as u8;
            }
        }
    }

    fn text(&mut self) -> &'static str {
        self.one_of(&TEXTS)
    }

    fn property(&mut self) -> Property<'static> {
        let (text, number, flag) = (self.text(), self.next(), self.below(2) == 1);
        let (short, long) = (number as u16, number as u32);
        match self.below(27) {
            0 => Property::PayloadFormatIndicator(flag),
            1 => Property::MessageExpiryInterval(long),
            2 => Property::ContentType(text),
            3 => Property::ResponseTopic(text),
            4 => Property::CorrelationData(text.as_bytes()),
            5 => Property::SubscriptionIdentifier(long >> 4),
            6 => Property::SessionExpiryInterval(long),
            7 => Property::AssignedClientIdentifier(text),
            8 => Property::ServerKeepAlive(short),
            9 => Property::AuthenticationMethod(text),
            10 => Property::AuthenticationData(text.as_bytes()),
            11 => Property::RequestProblemInformation(flag),
            12 => Property::WillDelayInterval(long),
            13 => Property::RequestResponseInformation(flag),
            14 => Property::ResponseInformation(text),
            15 => Property::ServerReference(text),
            16 => Property::ReasonString(text),
            17 => Property::ReceiveMaximum(short),
            18 => Property::TopicAliasMaximum(short),
            19 => Property::TopicAlias(short & 15),
            20 => Property::MaximumQoS(number as u8 & 3),
            21 => Property::RetainAvailable(flag),
            22 => Property::MaximumPacketSize(long),
            23 => Property::WildcardSubscriptionAvailable(flag),
            24 => Property::SubscriptionIdentifierAvailable(flag),
            25 => Property::SharedSubscriptionAvailable(flag),
            _ => Property::UserProperty {
                key: text,
                value: "v",
            },
        }
    }

    fn generate(&mut self, out: &mut Vec<u8>) {
        let version = self.one_of(&[Version::V31, Version::V311, Version::V5, Version::V5]);
        let properties: Vec<Property<'_>> = (0..self.below(4)).map(|_| self.property()).collect();
        let id = PacketId::new(self.next() as u16).unwrap_or(PacketId::FIRST);
        let code = ReasonCode::from_u8(self.next() as u8).unwrap_or(ReasonCode::Success);
        let qos = self.one_of(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]);
        match self.below(12) {
            0 => self.generate_connect(version, &properties, out),
            1 | 2 => {
                let mut encoded = Vec::new();
                properties
                    .iter()
                    .for_each(|property| property.encode(&mut encoded));
                let fields = PublishFields {
                    version,
                    dup: self.below(4) == 0,
                    qos,
                    retain: self.below(2) == 0,
                    topic: self.text(),
                    packet_id: (qos != QoS::AtMostOnce).then_some(id),
                    properties: &encoded,
                    extra: &[],
                };
                fields.encode(out, self.text().as_bytes()).unwrap();
            }
            3 => encode::puback(out, version, id, code, &properties),
            4 => encode::pubrec(out, version, id, code, &properties),
            5 => encode::pubrel(out, version, id, code, &properties),
            6 => encode::pubcomp(out, version, id, code, &properties),
            7 => {
                let subscriptions: Vec<Subscription<'_>> = (0..self.below(4))
                    .map(|_| Subscription {
                        filter: self.text(),
                        options: SubscriptionOptions {
                            no_local: self.below(4) == 0,
                            ..SubscriptionOptions::new(qos)
                        },
                    })
                    .collect();
                encode::subscribe(out, version, id, &properties, &subscriptions);
            }
            8 => {
                let filters: Vec<&str> = (0..self.below(4)).map(|_| self.text()).collect();
                encode::unsubscribe(out, version, id, &properties, &filters);
            }
            9 => encode::disconnect(out, version, code, &properties),
            10 => encode::auth(out, code, &properties),
            _ if version.is_v5() => encode::connack(out, self.below(2) == 0, code, &properties),
            _ => encode::suback(
                out,
                version,
                id,
                &properties,
                &[code, ReasonCode::GrantedQos1],
            ),
        }
    }

    fn generate_connect(
        &mut self,
        version: Version,
        properties: &[Property<'_>],
        out: &mut Vec<u8>,
    ) {
        let of_will: Vec<Property<'_>> = (0..self.below(3)).map(|_| self.property()).collect();
        let will = WillFields {
            topic: self.text(),
            payload: b"gone",
            qos: QoS::AtLeastOnce,
            retain: self.below(2) == 0,
            properties: &of_will,
        };
        let mut fields = ConnectFields::new(version, self.text());
        fields.clean_start = self.below(2) == 0;
        fields.will = (self.below(2) == 0).then_some(will);
        fields.username = (self.below(2) == 0).then(|| self.text());
        fields.password = (self.below(2) == 0).then_some(&[1, 2]);
        fields.properties = properties;
        encode::connect(out, &fields);
    }
}

/// Sets the remaining length to the packet's real length.
fn fix_length(input: &mut Vec<u8>) {
    let Some(end) = input
        .iter()
        .skip(1)
        .take(4)
        .position(|byte| byte & 0x80 == 0)
    else {
        return;
    };
    let body = input.len() - (end + 2);
    let mut length = Vec::with_capacity(4);
    let mut rest = body;
    loop {
        length.push(if rest > 0x7f {
            rest as u8 | 0x80
        } else {
            rest as u8
        });
        rest >>= 7;
        if rest == 0 {
            break;
        }
    }
    input.splice(1..end + 2, length);
}
