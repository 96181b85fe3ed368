//! Decoding allocates nothing, so no peer can control the size of an allocation.

use headwater_mqtt::encode::{self, ConnectFields, PublishFields};
use headwater_mqtt::frame::{self, Frame};
use headwater_mqtt::packet::subscribe::{Subscription, SubscriptionOptions};
use headwater_mqtt::{Packet, PacketId, Property, QoS, Version, packet};

use crate::counting::allocations;

fn allocations_of(work: impl FnOnce()) -> u64 {
    let before = allocations();
    work();
    allocations() - before
}

/// One of each packet with many parts, in one buffer; the first is a CONNECT.
fn packets() -> Vec<u8> {
    let mut out = Vec::new();
    encode::connect(
        &mut out,
        &ConnectFields {
            username: Some("u"),
            ..ConnectFields::new(Version::V5, "client")
        },
    );
    let mut properties = Vec::new();
    for _ in 0..1_000 {
        Property::UserProperty {
            key: "k",
            value: "v",
        }
        .encode(&mut properties);
    }
    let publish = PublishFields {
        version: Version::V5,
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: true,
        topic: "devices/1/telemetry",
        packet_id: Some(PacketId::FIRST),
        properties: &properties,
        extra: &[],
    };
    publish
        .encode(&mut out, &[7; 100_000])
        .expect("small enough");
    let many = [Subscription {
        filter: "a/+",
        options: SubscriptionOptions::new(QoS::AtLeastOnce),
    }; 5_000];
    encode::subscribe(&mut out, Version::V5, PacketId::FIRST, &[], &many);
    encode::unsubscribe(&mut out, Version::V5, PacketId::FIRST, &[], &["a/b"; 5_000]);
    out
}

fn read(mut bytes: &[u8]) -> usize {
    let mut seen = 0;
    while let Ok(Frame::Whole {
        first_byte,
        header_len,
        total_len,
    }) = frame::next(bytes, 1 << 24)
    {
        let body = &bytes[header_len..total_len];
        bytes = &bytes[total_len..];
        match packet::decode(Version::V5, first_byte, body) {
            Ok(Packet::Publish(publish)) => seen += publish.properties.user_properties().count(),
            Ok(Packet::Subscribe(packet)) => seen += packet.subscriptions.iter().count(),
            Ok(Packet::Unsubscribe(packet)) => seen += packet.filters.iter().count(),
            Ok(_) => {}
            Err(_) => seen += usize::from(packet::connect::decode(first_byte, body).is_ok()),
        }
    }
    seen
}

#[test]
fn decoding_allocates_nothing() {
    let bytes = packets();
    let mut seen = 0;
    assert_eq!(allocations_of(|| seen = read(&bytes)), 0);
    assert_eq!(seen, 1 + 1_000 + 5_000 + 5_000, "all of it was read");
}

#[test]
fn an_allocation_would_be_noticed() {
    assert!(allocations_of(|| drop(std::hint::black_box(vec![1_u8; 10]))) > 0);
}
