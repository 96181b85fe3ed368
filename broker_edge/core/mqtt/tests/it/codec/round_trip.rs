//! An encoded packet decodes to the same packet, in every version.

use headwater_mqtt::packet::ack::Ack;
use headwater_mqtt::packet::connack::ConnackCode;
use headwater_mqtt::packet::subscribe::{Subscription, SubscriptionOptions};
use headwater_mqtt::packet::{self, ServerPacket};
use headwater_mqtt::{ConnectReturnCode, Packet, PacketId, Property, ReasonCode, Version, encode};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::codec::bytes::{decode, split};
use crate::codec::strategies::{self, lend};

/// The properties that a packet of this version carries, out of those it was given.
fn kept<'a>(version: Version, given: &[Property<'a>]) -> Vec<Property<'a>> {
    if version == Version::V5 {
        given.to_vec()
    } else {
        Vec::new()
    }
}

fn check_ack(
    version: Version,
    ack: &Ack<'_>,
    packet_id: PacketId,
    reason: ReasonCode,
    given: &[Property<'_>],
) {
    assert_eq!(ack.packet_id, packet_id);
    assert_eq!(
        ack.reason,
        if version == Version::V5 {
            reason
        } else {
            ReasonCode::Success
        }
    );
    assert_eq!(
        ack.properties.iter().collect::<Vec<_>>(),
        kept(version, given)
    );
}

proptest! {
    #[test]
    fn acknowledgements_come_back(
        version in strategies::version(),
        packet_id in strategies::packet_id(),
        failed in any::<bool>(),
        properties in strategies::ack_properties(),
    ) {
        let given = lend(&properties);
        let publish_reason = if failed { ReasonCode::QuotaExceeded } else { ReasonCode::Success };
        let release_reason = if failed { ReasonCode::PacketIdentifierNotFound } else { ReasonCode::Success };
        let mut out = Vec::new();
        encode::puback(&mut out, version, packet_id, publish_reason, &given);
        match decode(version, &out) {
            Ok(Packet::Puback(ack)) => check_ack(version, &ack, packet_id, publish_reason, &given),
            other => prop_assert!(false, "{:?}", other),
        }
        out.clear();
        encode::pubrec(&mut out, version, packet_id, publish_reason, &given);
        match decode(version, &out) {
            Ok(Packet::Pubrec(ack)) => check_ack(version, &ack, packet_id, publish_reason, &given),
            other => prop_assert!(false, "{:?}", other),
        }
        out.clear();
        encode::pubrel(&mut out, version, packet_id, release_reason, &given);
        match decode(version, &out) {
            Ok(Packet::Pubrel(ack)) => check_ack(version, &ack, packet_id, release_reason, &given),
            other => prop_assert!(false, "{:?}", other),
        }
        out.clear();
        encode::pubcomp(&mut out, version, packet_id, release_reason, &given);
        match decode(version, &out) {
            Ok(Packet::Pubcomp(ack)) => check_ack(version, &ack, packet_id, release_reason, &given),
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn subscribe_comes_back(
        version in strategies::version(),
        packet_id in strategies::packet_id(),
        filters in vec((strategies::filter(), strategies::options()), 1..8),
        properties in strategies::subscribe_properties(),
    ) {
        let given = lend(&properties);
        let subscriptions: Vec<_> = filters.iter().map(|(filter, options)| {
            let mut options = if version == Version::V5 { *options } else { SubscriptionOptions::new(options.qos) };
            options.no_local &= !filter.starts_with("$share/");
            Subscription { filter, options }
        }).collect();
        let mut out = Vec::new();
        encode::subscribe(&mut out, version, packet_id, &given, &subscriptions);
        let Ok(Packet::Subscribe(packet)) = decode(version, &out) else { panic!("{out:02x?}") };
        prop_assert_eq!(packet.packet_id, packet_id);
        prop_assert_eq!(packet.properties.iter().collect::<Vec<_>>(), kept(version, &given));
        prop_assert_eq!(packet.subscriptions.len(), subscriptions.len());
        prop_assert_eq!(packet.subscriptions.iter().collect::<Vec<_>>(), subscriptions);
    }

    #[test]
    fn unsubscribe_comes_back(
        version in strategies::version(),
        packet_id in strategies::packet_id(),
        filters in vec(strategies::filter(), 1..8),
    ) {
        let filters: Vec<_> = filters.iter().map(String::as_str).collect();
        let mut out = Vec::new();
        encode::unsubscribe(&mut out, version, packet_id, &[], &filters);
        let Ok(Packet::Unsubscribe(packet)) = decode(version, &out) else { panic!("{out:02x?}") };
        prop_assert_eq!(packet.packet_id, packet_id);
        prop_assert_eq!(packet.filters.len(), filters.len());
        prop_assert_eq!(packet.filters.iter().collect::<Vec<_>>(), filters);
    }

    #[test]
    fn disconnect_and_auth_come_back(
        version in strategies::version(),
        with_will in any::<bool>(),
        properties in strategies::disconnect_properties(),
        exchange in strategies::auth_properties(),
    ) {
        let given = lend(&properties);
        let reason = if with_will { ReasonCode::DisconnectWithWill } else { ReasonCode::NORMAL_DISCONNECTION };
        let mut out = Vec::new();
        encode::disconnect(&mut out, version, reason, &given);
        let Ok(Packet::Disconnect(packet)) = decode(version, &out) else { panic!("{out:02x?}") };
        prop_assert_eq!(packet.reason, if version == Version::V5 { reason } else { ReasonCode::Success });
        prop_assert_eq!(packet.properties.iter().collect::<Vec<_>>(), kept(version, &given));

        let given = lend(&exchange);
        out.clear();
        encode::auth(&mut out, ReasonCode::ContinueAuthentication, &given);
        let Ok(Packet::Auth(packet)) = decode(Version::V5, &out) else { panic!("{out:02x?}") };
        prop_assert_eq!(packet.reason, ReasonCode::ContinueAuthentication);
        prop_assert_eq!(packet.properties.iter().collect::<Vec<_>>(), given);
    }

    #[test]
    fn connack_comes_back(session_present in any::<bool>(), properties in strategies::connack_properties()) {
        let given = lend(&properties);
        let mut out = Vec::new();
        encode::connack(&mut out, session_present, ReasonCode::Success, &given);
        let (first_byte, body) = split(&out);
        let Ok(ServerPacket::Connack(packet)) = packet::decode_from_server(Version::V5, first_byte, body) else {
            panic!("{out:02x?}")
        };
        prop_assert_eq!(packet.session_present, session_present);
        prop_assert!(packet.code.is_accepted());
        prop_assert_eq!(packet.properties.iter().collect::<Vec<_>>(), given);
    }

    #[test]
    fn suback_and_unsuback_come_back(
        version in strategies::version(),
        packet_id in strategies::packet_id(),
        refused in vec(any::<bool>(), 1..200),
        properties in strategies::ack_properties(),
    ) {
        let given = lend(&properties);
        let codes: Vec<_> = refused.iter()
            .map(|refused| if *refused { ReasonCode::NotAuthorized } else { ReasonCode::GrantedQos1 })
            .collect();
        let mut out = Vec::new();
        encode::suback(&mut out, version, packet_id, &given, &codes);
        let (first_byte, body) = split(&out);
        let Ok(ServerPacket::Suback(packet)) = packet::decode_from_server(version, first_byte, body) else {
            panic!("{out:02x?}")
        };
        let wanted: Vec<_> = codes.iter().map(|code| match (version, code) {
            (Version::V5, code) => *code,
            (_, ReasonCode::NotAuthorized) => ReasonCode::UnspecifiedError,
            (_, code) => *code,
        }).collect();
        prop_assert_eq!(packet.packet_id, packet_id);
        prop_assert_eq!(packet.properties.iter().collect::<Vec<_>>(), kept(version, &given));
        prop_assert_eq!(packet.codes.iter().collect::<Vec<_>>(), wanted);

        out.clear();
        let codes: Vec<_> = refused.iter()
            .map(|refused| if *refused { ReasonCode::NotAuthorized } else { ReasonCode::NoSubscriptionExisted })
            .collect();
        encode::unsuback(&mut out, version, packet_id, &given, &codes);
        let (first_byte, body) = split(&out);
        let Ok(ServerPacket::Unsuback(packet)) = packet::decode_from_server(version, first_byte, body) else {
            panic!("{out:02x?}")
        };
        let wanted = if version == Version::V5 { codes } else { Vec::new() };
        prop_assert_eq!(packet.codes.iter().collect::<Vec<_>>(), wanted);
    }
}

#[test]
fn packets_without_a_body_come_back() {
    for version in [Version::V31, Version::V311, Version::V5] {
        let mut out = Vec::new();
        encode::pingreq(&mut out);
        assert_eq!(decode(version, &out), Ok(Packet::Pingreq));
        out.clear();
        encode::pingresp(&mut out);
        let (first_byte, body) = split(&out);
        assert_eq!(
            packet::decode_from_server(version, first_byte, body),
            Ok(ServerPacket::Pingresp)
        );
    }
}

#[test]
fn connack_of_version_3_carries_its_return_code() {
    let mut out = Vec::new();
    encode::connack_v3(&mut out, true, ConnectReturnCode::Accepted);
    encode::connack_v3(&mut out, false, ConnectReturnCode::NotAuthorized);
    assert_eq!(out, [0x20, 2, 1, 0, 0x20, 2, 0, 5]);
    let (first_byte, body) = split(&out[4..]);
    let Ok(ServerPacket::Connack(packet)) =
        packet::decode_from_server(Version::V311, first_byte, body)
    else {
        panic!("{out:02x?}")
    };
    assert_eq!(
        packet.code,
        ConnackCode::V3(ConnectReturnCode::NotAuthorized)
    );
}

#[test]
fn a_successful_puback_takes_four_bytes_in_every_version() {
    for version in [Version::V31, Version::V311, Version::V5] {
        let mut out = Vec::new();
        encode::puback(&mut out, version, PacketId::FIRST, ReasonCode::Success, &[]);
        assert_eq!(out, [0x40, 2, 0, 1]);
    }
}

#[test]
fn every_reason_code_keeps_its_number() {
    let known = (0..=255_u8).filter_map(ReasonCode::from_u8);
    assert!(
        known
            .clone()
            .all(|code| ReasonCode::from_u8(code.as_u8()) == Some(code))
    );
    assert_eq!(known.count(), 43);
}
