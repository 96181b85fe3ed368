//! Properties: which packets may carry each, how often, with which values, and how they are read.

use headwater_mqtt::property::set_message_expiry;
use headwater_mqtt::{Properties, Property, PropertyId, ReasonCode, Version};
use proptest::prelude::*;

use crate::codec::bytes::{hex, refused};
use crate::codec::strategies::{self, lend};

/// The code that refuses a PUBLISH with these properties, which take at most 127 bytes.
fn publish_with(properties: &str) -> Option<ReasonCode> {
    let len = hex(properties).len();
    refused(
        Version::V5,
        &format!("30 {:02x} 0001 61 {len:02x} {properties} 41", len + 5),
    )
}

/// The same for a PUBACK.
fn puback_with(properties: &str) -> Option<ReasonCode> {
    let len = hex(properties).len();
    refused(
        Version::V5,
        &format!("40 {:02x} 0001 00 {len:02x} {properties}", len + 4),
    )
}

/// The same for a SUBSCRIBE.
fn subscribe_with(properties: &str) -> Option<ReasonCode> {
    let len = hex(properties).len();
    refused(
        Version::V5,
        &format!("82 {:02x} 0001 {len:02x} {properties} 0001 61 00", len + 7),
    )
}

const MALFORMED: Option<ReasonCode> = Some(ReasonCode::MalformedPacket);
const PROTOCOL: Option<ReasonCode> = Some(ReasonCode::ProtocolError);

#[test]
fn a_property_of_another_packet_is_refused() {
    assert_eq!(publish_with("02 00000001"), None);
    assert_eq!(
        publish_with("1f 0001 61"),
        PROTOCOL,
        "a reason string in PUBLISH"
    );
    assert_eq!(
        publish_with("0b 01"),
        PROTOCOL,
        "a subscription identifier from a client"
    );
    assert_eq!(puback_with("1f 0001 61"), None);
    assert_eq!(puback_with("02 00000001"), PROTOCOL);
    assert_eq!(subscribe_with("0b 01"), None);
    assert_eq!(subscribe_with("23 0001"), MALFORMED);
}

/// The properties of a PUBLISH, of a SUBSCRIBE, or a whole packet.
enum In {
    Publish(&'static str),
    Subscribe(&'static str),
    Packet(&'static str),
}
use In::{Packet, Publish, Subscribe};

/// Each rule with what breaks it and what keeps it, and the expected reason.
fn check(cases: &[(&str, In, Option<ReasonCode>)]) {
    for (case, given, expected) in cases {
        let (bytes, reason) = match given {
            Publish(bytes) => (bytes, publish_with(bytes)),
            Subscribe(bytes) => (bytes, subscribe_with(bytes)),
            Packet(bytes) => (bytes, refused(Version::V5, bytes)),
        };
        assert_eq!(reason, *expected, "{case}: {bytes}");
    }
}

#[test]
fn properties_that_do_not_parse_are_malformed() {
    check(&[
        ("identifier 0", Publish("00 01"), MALFORMED),
        ("identifier 4", Publish("04 01"), MALFORMED),
        ("identifier 127", Publish("7f 01"), MALFORMED),
        ("identifier 128", Publish("8001 01"), MALFORMED),
        ("the largest identifier", Publish("ffffff7f 01"), MALFORMED),
        (
            "an identifier of five bytes",
            Publish("8080808001 01"),
            MALFORMED,
        ),
        (
            "identifier 2 in two bytes",
            Publish("8200 00000001"),
            MALFORMED,
        ),
        ("no expiry", Publish("02"), MALFORMED),
        ("three bytes of an expiry", Publish("02 000000"), MALFORMED),
        ("a cut content type", Publish("03 0005 61"), MALFORMED),
        ("half a length", Publish("09 00"), MALFORMED),
        ("a key without a value", Publish("26 0001 61"), MALFORMED),
        ("a cut value", Publish("26 0001 61 0002 61"), MALFORMED),
        ("half an alias", Publish("23 00"), MALFORMED),
        ("no format", Publish("01"), MALFORMED),
        (
            "properties longer than the packet",
            Packet("30 05 0001 61 05 41"),
            MALFORMED,
        ),
        (
            "subscription identifier 0 in two bytes",
            Subscribe("0b 8000"),
            MALFORMED,
        ),
        (
            "a subscription identifier of five bytes",
            Subscribe("0b 8080808001"),
            MALFORMED,
        ),
        ("U+0000", Publish("03 0001 00"), MALFORMED),
        ("a surrogate", Publish("26 0003 eda080 0000"), MALFORMED),
        (
            "a control character",
            Publish("26 0001 61 0001 07"),
            MALFORMED,
        ),
    ]);
}

#[test]
fn properties_that_break_a_rule_are_refused_with_its_reason() {
    const ALIAS: Option<ReasonCode> = Some(ReasonCode::TopicAliasInvalid);
    check(&[
        (
            "user properties repeat",
            Publish("26 0001 61 0000 26 0001 61 0000"),
            None,
        ),
        ("two formats", Publish("01 01 01 01"), PROTOCOL),
        ("two content types", Publish("03 0000 03 0000"), PROTOCOL),
        (
            "two subscription identifiers",
            Subscribe("0b 01 0b 02"),
            PROTOCOL,
        ),
        ("a flag that is neither 0 nor 1", Publish("01 02"), PROTOCOL),
        ("topic alias 0", Publish("23 0000"), ALIAS),
        (
            "a wildcard in the response topic",
            Publish("08 0003 612f23"),
            PROTOCOL,
        ),
        ("subscription identifier 0", Subscribe("0b 00"), PROTOCOL),
        (
            "the largest subscription identifier",
            Subscribe("0b ffffff7f"),
            None,
        ),
        (
            "correlation data is not text",
            Publish("09 0002 0000"),
            None,
        ),
        (
            "authentication data with a method",
            Packet("f0 09 18 07 15 0001 61 16 0000"),
            None,
        ),
        ("a method alone", Packet("f0 06 18 04 15 0001 61"), None),
        (
            "authentication data alone",
            Packet("f0 05 18 03 16 0000"),
            PROTOCOL,
        ),
        ("an AUTH without a method", Packet("f0 02 18 00"), PROTOCOL),
    ]);
}

#[test]
fn absent_properties_read_as_none() {
    let none = Properties::EMPTY;
    assert_eq!(none.message_expiry_interval(), None);
    assert_eq!(none.user_property("a"), None);
    assert_eq!(none.get(PropertyId::ContentType), None);
    assert!(none.is_empty() && none.into_iter().next().is_none());
}

proptest! {
    #[test]
    fn getters_agree_with_the_iterator(properties in strategies::message_properties()) {
        let given = lend(&properties);
        let mut bytes = Vec::new();
        for property in &given {
            let before = bytes.len();
            property.encode(&mut bytes);
            prop_assert_eq!(bytes.len() - before, property.encoded_len());
        }
        let checked = Properties::stored(&bytes).expect("encoded properties are well formed");
        prop_assert_eq!(checked.as_bytes(), &bytes[..]);
        prop_assert_eq!(checked.iter().collect::<Vec<_>>(), given.clone());
        for property in given.iter().filter(|property| property.id() != PropertyId::UserProperty) {
            prop_assert_eq!(checked.get(property.id()), Some(*property));
        }
        let users: Vec<_> = given.iter().filter_map(|property| match property {
            Property::UserProperty { key, value } => Some((*key, *value)),
            _ => None,
        }).collect();
        if let Some((key, _)) = users.first() {
            let first = users.iter().find(|(other, _)| other == key).map(|(_, value)| *value);
            prop_assert_eq!(checked.user_property(key), first);
        }
        prop_assert_eq!(checked.user_properties().collect::<Vec<_>>(), users);
    }

    #[test]
    fn the_expiry_is_replaced_in_place(properties in strategies::message_properties(), left in any::<u32>()) {
        let given = lend(&properties);
        let mut bytes = Vec::new();
        given.iter().for_each(|property| property.encode(&mut bytes));
        let had = given.iter().any(|property| matches!(property, Property::MessageExpiryInterval(_)));
        prop_assert_eq!(set_message_expiry(&mut bytes, left), had);
        let wanted: Vec<_> = given.into_iter().map(|property| match property {
            Property::MessageExpiryInterval(_) => Property::MessageExpiryInterval(left),
            other => other,
        }).collect();
        prop_assert_eq!(Properties::stored(&bytes).expect("still well formed").iter().collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn replacing_the_expiry_of_anything_never_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        set_message_expiry(&mut bytes, 7);
    }
}
