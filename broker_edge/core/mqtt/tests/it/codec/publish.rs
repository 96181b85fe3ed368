//! PUBLISH in both directions, and how the broker patches an encoded one for each subscriber.

use headwater_mqtt::encode::{PublishFields, TooLarge, set_flags};
use headwater_mqtt::{
    PacketId, Properties, Property, Publish, QoS, ReasonCode, VARINT_MAX, Version, packet,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::codec::bytes::{refused, split};
use crate::codec::strategies::{self, lend};

const FIELDS: PublishFields<'static> = PublishFields {
    version: Version::V5,
    dup: false,
    qos: QoS::AtLeastOnce,
    retain: false,
    topic: "devices/7/telemetry",
    packet_id: PacketId::new(7),
    properties: &[],
    extra: &[],
};

fn decode(version: Version, bytes: &[u8]) -> Publish<'_> {
    let (first_byte, body) = split(bytes);
    packet::publish::decode(version, first_byte, body).expect("an encoded publish is well formed")
}

fn encoded(properties: &[Property<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    for property in properties {
        property.encode(&mut out);
    }
    out
}

proptest! {
    #[test]
    fn publish_comes_back(
        version in strategies::version(),
        (dup, qos, retain) in (any::<bool>(), strategies::qos(), any::<bool>()),
        topic in strategies::topic(),
        packet_id in strategies::packet_id(),
        properties in strategies::publish_properties(),
        payload in vec(any::<u8>(), 0..300),
    ) {
        let given = lend(&properties);
        let dup = dup && qos != QoS::AtMostOnce;
        let properties = encoded(&given);
        let fields = PublishFields { version, dup, qos, retain, topic: &topic, packet_id: Some(packet_id), properties: &properties, extra: &[] };
        let mut out = vec![0xee; 3];
        let layout = fields.encode(&mut out, &payload).expect("small enough");
        prop_assert_eq!(layout.total_len, out.len() - 3);
        prop_assert_eq!(&out[3 + layout.head_len..], &payload[..]);

        let publish = decode(version, &out[3..]);
        prop_assert_eq!((publish.dup, publish.qos, publish.retain), (dup, qos, retain));
        prop_assert_eq!(publish.topic.as_str(), &topic);
        prop_assert_eq!(publish.packet_id, (qos != QoS::AtMostOnce).then_some(packet_id));
        prop_assert_eq!(publish.payload, &payload[..]);
        let wanted = if version == Version::V5 { given } else { Vec::new() };
        let alias = wanted.iter().find_map(|property| match property { Property::TopicAlias(alias) => Some(*alias), _ => None });
        prop_assert_eq!(publish.topic_alias.map(|alias| alias.get()), alias);
        prop_assert_eq!(publish.properties.iter().collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn a_patched_delivery_equals_one_encoded_for_its_subscriber(
        version in strategies::version(),
        (first, second) in (strategies::packet_id(), strategies::packet_id()),
        exactly_once in any::<bool>(),
        retain in any::<bool>(),
        properties in strategies::message_properties(),
        payload in vec(any::<u8>(), 0..300),
    ) {
        let properties = encoded(&lend(&properties));
        let fields = PublishFields { version, properties: &properties, packet_id: None, ..FIELDS };
        let mut shared = Vec::new();
        let layout = fields.encode(&mut shared, &payload).expect("small enough");
        for packet_id in [first, second] {
            let qos = if exactly_once { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
            let mut own = Vec::new();
            PublishFields { packet_id: Some(packet_id), qos, retain, ..fields }.encode(&mut own, &payload).expect("small enough");
            layout.set_packet_id(&mut shared, packet_id);
            set_flags(&mut shared, false, qos, retain);
            prop_assert_eq!(&shared, &own);
        }
    }

    #[test]
    fn subscribers_get_the_message_and_not_the_connection(properties in strategies::publish_properties()) {
        let given = lend(&properties);
        let properties = encoded(&given);
        let mut out = Vec::new();
        PublishFields { properties: &properties, ..FIELDS }.encode(&mut out, b"x").expect("small enough");
        let mut forwarded = vec![0xee];
        decode(Version::V5, &out).properties.copy_forwardable(&mut forwarded);
        let wanted: Vec<_> = given.into_iter().filter(|property| !matches!(property, Property::TopicAlias(_))).collect();
        let stored = Properties::stored(&forwarded[1..]).expect("what is forwarded can be stored");
        prop_assert_eq!(stored.iter().collect::<Vec<_>>(), wanted);
    }
}

#[test]
fn extra_properties_follow_those_of_the_message() {
    let properties = encoded(&[Property::ContentType("a")]);
    let extra = encoded(&[
        Property::SubscriptionIdentifier(5),
        Property::SubscriptionIdentifier(300),
    ]);
    let mut out = Vec::new();
    PublishFields {
        properties: &properties,
        extra: &extra,
        ..FIELDS
    }
    .encode(&mut out, b"x")
    .expect("small enough");
    let (first_byte, body) = split(&out);
    let publish =
        packet::publish::decode_from_server(Version::V5, first_byte, body).expect("well formed");
    assert_eq!(
        publish
            .properties
            .subscription_identifiers()
            .collect::<Vec<_>>(),
        [5, 300]
    );
    assert_eq!(publish.properties.content_type(), Some("a"));
    let from_client = packet::publish::decode(Version::V5, first_byte, body);
    assert_eq!(
        from_client.map_err(|error| error.reason),
        Err(ReasonCode::ProtocolError)
    );
}

#[test]
fn the_head_alone_announces_the_payload() {
    let mut whole = Vec::new();
    let mut head = Vec::new();
    let layout = FIELDS.encode(&mut whole, &[1; 5000]).expect("small enough");
    assert_eq!(FIELDS.encode_head(&mut head, 5000), Ok(layout));
    assert_eq!(FIELDS.layout(5000), Ok(layout));
    assert_eq!(head, whole[..layout.head_len]);
}

#[test]
fn a_publish_that_the_format_cannot_express_writes_nothing() {
    let mut out = Vec::new();
    let seen = FIELDS.encode_head(&mut out, VARINT_MAX as usize);
    assert!(matches!(seen, Err(TooLarge { .. })), "{seen:?}");
    let topic = "t".repeat(65_536);
    assert!(
        PublishFields {
            topic: &topic,
            ..FIELDS
        }
        .encode(&mut out, b"x")
        .is_err()
    );
    assert!(out.is_empty());
    assert!(FIELDS.encode_head(&mut out, usize::MAX).is_err());
}

#[test]
fn only_a_topic_alias_makes_up_for_an_empty_topic() {
    use ReasonCode::{MalformedPacket, ProtocolError, TopicAliasInvalid};
    assert_eq!(refused(Version::V5, "30 07 0000 03 230001 41"), None);
    assert_eq!(
        refused(Version::V5, "30 04 0000 00 41"),
        Some(ProtocolError)
    );
    assert_eq!(
        refused(Version::V5, "30 07 0000 03 230000 41"),
        Some(TopicAliasInvalid)
    );
    assert_eq!(
        refused(Version::V311, "30 03 0000 41"),
        Some(MalformedPacket)
    );
}

#[test]
fn publishes_that_break_a_rule_are_refused() {
    use ReasonCode::{MalformedPacket, ProtocolError};
    for version in [Version::V311, Version::V31] {
        assert_eq!(
            refused(version, "36 05 0001 61 0001"),
            Some(MalformedPacket),
            "QoS 3"
        );
        assert_eq!(
            refused(version, "38 03 0001 61"),
            Some(MalformedPacket),
            "DUP on QoS 0"
        );
        assert_eq!(
            refused(version, "32 03 0001 61"),
            Some(MalformedPacket),
            "no packet identifier"
        );
        assert_eq!(
            refused(version, "32 05 0001 61 0000"),
            Some(ProtocolError),
            "packet identifier 0"
        );
        assert_eq!(
            refused(version, "30 05 0009 616263"),
            Some(MalformedPacket),
            "topic longer than the packet"
        );
        assert_eq!(
            refused(version, "30 04 0002 612b"),
            Some(MalformedPacket),
            "wildcard in the topic"
        );
        assert_eq!(
            refused(version, "30 04 0002 6100"),
            Some(MalformedPacket),
            "U+0000 in the topic"
        );
        assert_eq!(
            refused(version, "30 05 0003 eda080"),
            Some(MalformedPacket),
            "surrogate in the topic"
        );
        assert_eq!(refused(version, "30 03 0001 61"), None);
    }
}
