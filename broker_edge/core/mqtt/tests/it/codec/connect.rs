//! CONNECT: an encoded packet decodes to the same fields, and a refusal uses the codes of the requested version.

use headwater_mqtt::encode::{self, ConnectFields, WillFields};
use headwater_mqtt::packet::connect::{self, ConnectError, Refusal};
use headwater_mqtt::{Connect, ConnectReturnCode, QoS, ReasonCode, Version};
use proptest::prelude::*;

use crate::codec::bytes::{hex, split};
use crate::codec::strategies::{self, lend};

fn decode(bytes: &[u8]) -> Result<Connect<'_>, ConnectError> {
    let (first_byte, body) = split(bytes);
    connect::decode(first_byte, body)
}

fn refusal(digits: &str) -> Option<Refusal> {
    decode(&hex(digits)).err().map(|error| error.refusal)
}

proptest! {
    #[test]
    fn connect_comes_back_and_no_shorter_body_passes(
        version in strategies::version(),
        (clean_start, keep_alive_s) in any::<(bool, u16)>(),
        client_id in "[a-zä]{1,30}",
        will in prop::option::of((strategies::topic(), strategies::binary(), strategies::qos(), any::<bool>(), strategies::will_properties())),
        username in prop::option::of(strategies::text()),
        password in prop::option::of(strategies::binary()),
        properties in strategies::connect_properties(),
    ) {
        let properties = lend(&properties);
        let will_properties = will.as_ref().map(|will| lend(&will.4)).unwrap_or_default();
        let password = password.as_deref().filter(|_| username.is_some() || version == Version::V5);
        let fields = ConnectFields {
            version, clean_start, keep_alive_s, client_id: &client_id, username: username.as_deref(), password,
            properties: &properties,
            will: will.as_ref().map(|(topic, payload, qos, retain, _)| WillFields {
                topic, payload, qos: *qos, retain: *retain, properties: &will_properties,
            }),
        };
        let mut out = Vec::new();
        encode::connect(&mut out, &fields);
        let read = decode(&out).expect("an encoded CONNECT is well formed");
        prop_assert_eq!((read.version, read.clean_start, read.keep_alive_s), (version, clean_start, keep_alive_s));
        prop_assert_eq!((read.client_id, read.username, read.password), (&client_id[..], username.as_deref(), password));
        prop_assert_eq!(read.will.is_some(), fields.will.is_some());
        if let (Some(read), Some(given)) = (read.will, fields.will) {
            prop_assert_eq!((read.topic, read.payload, read.qos, read.retain), (given.topic, given.payload, given.qos, given.retain));
            let kept = if version == Version::V5 { will_properties.clone() } else { Vec::new() };
            prop_assert_eq!(read.properties.iter().collect::<Vec<_>>(), kept);
        }
        let kept = if version == Version::V5 { properties.clone() } else { Vec::new() };
        prop_assert_eq!(read.properties.iter().collect::<Vec<_>>(), kept);

        let (first_byte, body) = split(&out);
        for len in 0..body.len() {
            // In MQTT 3.1 user name and password may be missing although their flags are set.
            prop_assert!(connect::decode(first_byte, &body[..len]).is_err() || version == Version::V31, "{} bytes", len);
        }
    }
}

#[test]
fn the_version_is_that_of_name_and_level_together() {
    let unsupported = Some(Refusal::V5(ReasonCode::UnsupportedProtocolVersion));
    let unacceptable = Some(Refusal::V3(ConnectReturnCode::UnacceptableProtocolVersion));
    assert_eq!(refusal("10 0f 0006 4d5149736470 03 02 000a 0001 70"), None);
    assert_eq!(refusal("10 0d 0004 4d515454 04 02 000a 0001 70"), None);
    assert_eq!(refusal("10 0e 0004 4d515454 05 02 000a 00 0001 70"), None);
    assert_eq!(
        refusal("10 0d 0004 4d515454 06 02 000a 0001 70"),
        unsupported
    );
    assert_eq!(
        refusal("10 0d 0004 4d515454 00 02 000a 0001 70"),
        unsupported
    );
    assert_eq!(
        refusal("10 0d 0004 4d515454 03 02 000a 0001 70"),
        unacceptable
    );
    assert_eq!(
        refusal("10 0f 0006 4d5149736470 04 02 000a 0001 70"),
        unacceptable
    );
    assert_eq!(
        refusal("10 0d 0004 4d515454 84 02 000a 0001 70"),
        unacceptable,
        "a bridge tries again"
    );
    assert_eq!(
        refusal("10 0d 0004 48545450 04 02 000a 0001 70"),
        Some(Refusal::Close),
        "another protocol"
    );
}

#[test]
fn the_first_packet_must_be_a_connect() {
    for packet in ["c000", "30 03 0001 61", "e000", "f000", "0000", "2000"] {
        assert_eq!(refusal(packet), Some(Refusal::Close), "{packet}");
    }
}

#[test]
fn an_empty_client_id_needs_a_clean_session() {
    assert_eq!(refusal("10 0c 0004 4d515454 04 02 000a 0000"), None);
    let rejected = Some(Refusal::V3(ConnectReturnCode::IdentifierRejected));
    assert_eq!(refusal("10 0c 0004 4d515454 04 00 000a 0000"), rejected);
    assert_eq!(
        refusal("10 0e 0006 4d5149736470 03 02 000a 0000"),
        rejected,
        "never in 3.1"
    );
    assert_eq!(
        refusal("10 0d 0004 4d515454 05 00 000a 00 0000"),
        None,
        "MQTT 5 assigns one"
    );
}

#[test]
fn flags_and_fields_must_agree() {
    let malformed = Some(Refusal::V5(ReasonCode::MalformedPacket));
    let v5 = |flags: &str, rest: &str| {
        let body = hex(&format!("0004 4d515454 05 {flags} 000a 00 0001 70 {rest}"));
        connect::decode(0x10, &body)
            .err()
            .map(|error| error.refusal)
    };
    assert_eq!(v5("03", ""), malformed, "the reserved flag");
    assert_eq!(v5("0a", ""), malformed, "a will QoS without a will");
    assert_eq!(v5("22", ""), malformed, "will retain without a will");
    assert_eq!(v5("1e", "00 0001 61 0000"), malformed, "a will with QoS 3");
    assert_eq!(
        v5("06", "00 0001 2b 0000"),
        malformed,
        "a wildcard in the will topic"
    );
    assert_eq!(v5("06", "00 0000 0000"), malformed, "an empty will topic");
    assert_eq!(
        v5("06", "00 0001 61"),
        malformed,
        "a will without a message"
    );
    assert_eq!(
        v5("82", ""),
        malformed,
        "the user name flag without a user name"
    );
    assert_eq!(v5("42", "0001 61"), None, "MQTT 5 allows a password alone");
    assert_eq!(v5("02", "00"), malformed, "bytes after the last field");
    assert_eq!(
        refusal("10 10 0004 4d515454 04 42 000a 0001 70 0001 61"),
        Some(Refusal::Close),
        "3.1.1 does not"
    );
    assert_eq!(
        refusal("11 0d 0004 4d515454 04 02 000a 0001 70"),
        Some(Refusal::Close),
        "a reserved bit"
    );
}

#[test]
fn version_3_1_is_read_with_its_old_leniency() {
    assert_eq!(
        refusal("1d 0f 0006 4d5149736470 03 02 000a 0001 70"),
        None,
        "flags in the first byte"
    );
    assert_eq!(
        refusal("10 0f 0006 4d5149736470 03 03 000a 0001 70"),
        None,
        "the reserved CONNECT flag"
    );
    let missing = hex("10 0f 0006 4d5149736470 03 c2 000a 0001 70");
    let connect = decode(&missing).expect("the length takes precedence over the flags");
    assert_eq!((connect.username, connect.password), (None, None));
}

#[test]
fn a_client_id_that_is_not_text_is_not_valid() {
    let client_id_refused = Some(Refusal::V5(ReasonCode::ClientIdentifierNotValid));
    assert_eq!(
        refusal("10 10 0004 4d515454 05 02 000a 00 0003 eda080"),
        client_id_refused
    );
    assert_eq!(
        refusal("10 0f 0004 4d515454 04 02 000a 0003 eda080"),
        Some(Refusal::Close)
    );
}

#[test]
fn a_refusal_is_a_connack_or_nothing() {
    let mut out = Vec::new();
    encode::refusal(&mut out, Refusal::Close);
    assert!(out.is_empty());
    encode::refusal(&mut out, Refusal::V3(ConnectReturnCode::IdentifierRejected));
    encode::refusal(
        &mut out,
        Refusal::V5(ReasonCode::UnsupportedProtocolVersion),
    );
    assert_eq!(out, hex("20020002 2003008400"));
}

#[test]
fn a_connect_needs_no_more_than_its_fields() {
    let mut out = Vec::new();
    encode::connect(&mut out, &ConnectFields::new(Version::V311, "p"));
    assert_eq!(out, hex("10 0d 0004 4d515454 04 02 003c 0001 70"));
    let connect = decode(&out).expect("well formed");
    assert_eq!(connect.will.map(|will| will.qos), None::<QoS>);
}
