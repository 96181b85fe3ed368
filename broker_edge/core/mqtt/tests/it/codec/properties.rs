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

#[test]
fn an_unknown_or_padded_identifier_is_malformed() {
    for id in [
        "00 01",
        "04 01",
        "7f 01",
        "8001 01",
        "ffffff7f 01",
        "8080808001 01",
    ] {
        assert_eq!(publish_with(id), MALFORMED, "{id}");
    }
    assert_eq!(
        publish_with("8200 00000001"),
        MALFORMED,
        "identifier 2 in two bytes"
    );
}

#[test]
fn only_user_properties_repeat() {
    assert_eq!(publish_with("26 0001 61 0000 26 0001 61 0000"), None);
    assert_eq!(publish_with("01 01 01 01"), PROTOCOL);
    assert_eq!(publish_with("03 0000 03 0000"), PROTOCOL);
    assert_eq!(subscribe_with("0b 01 0b 02"), PROTOCOL);
}

#[test]
fn values_out_of_range_are_refused() {
    assert_eq!(
        publish_with("01 02"),
        PROTOCOL,
        "a flag that is neither 0 nor 1"
    );
    assert_eq!(publish_with("23 0000"), Some(ReasonCode::TopicAliasInvalid));
    assert_eq!(
        publish_with("08 0003 612f23"),
        PROTOCOL,
        "a wildcard in the response topic"
    );
    assert_eq!(
        subscribe_with("0b 00"),
        PROTOCOL,
        "subscription identifier 0"
    );
    assert_eq!(subscribe_with("0b 8000"), MALFORMED, "zero in two bytes");
    assert_eq!(subscribe_with("0b 8080808001"), MALFORMED, "five bytes");
    assert_eq!(subscribe_with("0b ffffff7f"), None, "the largest");
}

#[test]
fn a_value_may_not_pass_the_end_of_the_properties() {
    for properties in [
        "02",
        "02 000000",
        "03 0005 61",
        "09 00",
        "26 0001 61",
        "26 0001 61 0002 61",
        "23 00",
        "01",
    ] {
        assert_eq!(publish_with(properties), MALFORMED, "{properties}");
    }
    assert_eq!(
        refused(Version::V5, "30 05 0001 61 05 41"),
        MALFORMED,
        "properties longer than the packet"
    );
}

#[test]
fn text_is_checked_in_every_property() {
    assert_eq!(publish_with("03 0001 00"), MALFORMED, "U+0000");
    assert_eq!(
        publish_with("26 0003 eda080 0000"),
        MALFORMED,
        "a surrogate"
    );
    assert_eq!(
        publish_with("26 0001 61 0001 07"),
        MALFORMED,
        "a control character"
    );
    assert_eq!(
        publish_with("09 0002 0000"),
        None,
        "correlation data is not text"
    );
}

#[test]
fn authentication_data_needs_a_method() {
    assert_eq!(refused(Version::V5, "f0 09 18 07 15 0001 61 16 0000"), None);
    assert_eq!(refused(Version::V5, "f0 06 18 04 15 0001 61"), None);
    assert_eq!(refused(Version::V5, "f0 05 18 03 16 0000"), PROTOCOL);
    assert_eq!(
        refused(Version::V5, "f0 02 18 00"),
        PROTOCOL,
        "an AUTH without a method"
    );
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
