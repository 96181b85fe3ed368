//! Invalid control packets, and the reason code that refuses each.

use headwater_mqtt::Packet;
use headwater_mqtt::ReasonCode::{MalformedPacket, ProtocolError, Success};
use headwater_mqtt::Version::{V5, V31, V311};
use headwater_mqtt::packet::{self, ack};

use crate::codec::bytes::{decode, hex, refused, split};

#[test]
fn packets_that_only_a_server_sends_are_protocol_errors() {
    for packet in [
        "20020000",
        "2003000000",
        "9003000100",
        "b0020001",
        "d000",
        "0000",
    ] {
        for version in [V31, V311, V5] {
            assert_eq!(
                refused(version, packet),
                Some(ProtocolError),
                "{packet} in {version}"
            );
        }
    }
}

#[test]
fn a_second_connect_is_a_protocol_error() {
    assert_eq!(
        refused(V311, "10 0d 0004 4d515454 04 02 000a 0001 70"),
        Some(ProtocolError)
    );
    assert_eq!(
        refused(V5, "10 0e 0004 4d515454 05 02 000a 00 0001 70"),
        Some(ProtocolError)
    );
}

#[test]
fn auth_exists_in_version_5_only() {
    assert_eq!(refused(V311, "f000"), Some(ProtocolError));
    assert_eq!(
        refused(V5, "f000"),
        Some(ProtocolError),
        "success is said by servers"
    );
    assert_eq!(refused(V5, "f0 06 19 04 15 0001 61"), None);
    assert_eq!(refused(V5, "f0 06 00 04 15 0001 61"), Some(ProtocolError));
    assert_eq!(refused(V5, "f0 06 99 04 15 0001 61"), Some(ProtocolError));
}

#[test]
fn reserved_bits_of_the_first_byte_are_checked() {
    for packet in [
        "41020001", "58020001", "60020001", "63020001", "74020001", "c100", "e800",
    ] {
        for version in [V31, V311, V5] {
            assert_eq!(
                refused(version, packet),
                Some(MalformedPacket),
                "{packet} in {version}"
            );
        }
    }
    assert_eq!(
        refused(V311, "80 06 0001 0001 61 00"),
        Some(MalformedPacket)
    );
    assert_eq!(refused(V311, "a0 05 0001 0001 61"), Some(MalformedPacket));
}

#[test]
fn acknowledgements_have_a_packet_identifier_and_nothing_unknown() {
    for kind in ["40", "50", "62", "70"] {
        for version in [V31, V311, V5] {
            assert_eq!(refused(version, &format!("{kind} 02 0001")), None);
            assert_eq!(
                refused(version, &format!("{kind} 02 0000")),
                Some(ProtocolError)
            );
            assert_eq!(
                refused(version, &format!("{kind} 00")),
                Some(MalformedPacket)
            );
            assert_eq!(
                refused(version, &format!("{kind} 01 01")),
                Some(MalformedPacket)
            );
        }
        assert_eq!(
            refused(V311, &format!("{kind} 03 0001 00")),
            Some(MalformedPacket)
        );
        assert_eq!(refused(V5, &format!("{kind} 03 0001 00")), None);
        assert_eq!(refused(V5, &format!("{kind} 04 0001 00 00")), None);
        assert_eq!(
            refused(V5, &format!("{kind} 05 0001 00 00 00")),
            Some(MalformedPacket)
        );
        assert_eq!(
            refused(V5, &format!("{kind} 03 0001 ff")),
            Some(ProtocolError)
        );
        assert_eq!(
            refused(V5, &format!("{kind} 03 0001 8e")),
            Some(ProtocolError)
        );
    }
    assert_eq!(refused(V5, "40 03 0001 97"), None);
    assert_eq!(
        refused(V5, "62 03 0001 97"),
        Some(ProtocolError),
        "a PUBREL has no quota"
    );
    assert_eq!(refused(V5, "62 03 0001 92"), None);
    assert_eq!(refused(V5, "40 03 0001 92"), Some(ProtocolError));
}

#[test]
fn the_short_way_to_an_acknowledgement_accepts_nothing_more() {
    for packet in ["40020001", "5002ffff", "62020102", "70020001"] {
        let bytes = hex(packet);
        let packet_id = ack::plain(bytes[0], &bytes[2..]);
        assert!(packet_id.is_some(), "{packet}");
        for version in [V31, V311, V5] {
            let long = match decode(version, &bytes) {
                Ok(
                    Packet::Puback(ack)
                    | Packet::Pubrec(ack)
                    | Packet::Pubrel(ack)
                    | Packet::Pubcomp(ack),
                ) => ack,
                other => panic!("{other:?}"),
            };
            assert_eq!(Some(long.packet_id), packet_id);
            assert_eq!((long.reason, long.properties.is_empty()), (Success, true));
        }
    }
    for packet in [
        "40020000",
        "41020001",
        "60020001",
        "40030001 00",
        "400101",
        "4000",
    ] {
        let bytes = hex(packet);
        assert_eq!(ack::plain(bytes[0], &bytes[2..]), None, "{packet}");
    }
}

#[test]
fn subscriptions_are_well_formed() {
    assert_eq!(refused(V311, "82 06 0001 0001 61 01"), None);
    assert_eq!(
        refused(V311, "82 06 0000 0001 61 01"),
        Some(MalformedPacket),
        "packet identifier 0"
    );
    assert_eq!(
        refused(V311, "82 02 0001"),
        Some(ProtocolError),
        "no filter"
    );
    assert_eq!(
        refused(V5, "82 03 0001 00"),
        Some(ProtocolError),
        "no filter"
    );
    assert_eq!(
        refused(V311, "82 05 0001 0001 61"),
        Some(MalformedPacket),
        "no QoS"
    );
    assert_eq!(
        refused(V311, "82 05 0001 0000 01"),
        Some(MalformedPacket),
        "an empty filter"
    );
    assert_eq!(
        refused(V311, "82 09 0001 0001 61 01 0001 62"),
        Some(MalformedPacket),
        "a second filter without QoS"
    );
    assert_eq!(
        refused(V311, "82 06 0001 0001 61 03"),
        Some(MalformedPacket),
        "QoS 3"
    );
    assert_eq!(
        refused(V311, "82 06 0001 0001 61 04"),
        Some(MalformedPacket),
        "an option of MQTT 5"
    );
    assert_eq!(refused(V5, "82 07 0001 00 0001 61 2e"), None, "all options");
    assert_eq!(
        refused(V5, "82 07 0001 00 0001 61 40"),
        Some(MalformedPacket),
        "a reserved option"
    );
    assert_eq!(
        refused(V5, "82 07 0001 00 0001 61 30"),
        Some(ProtocolError),
        "retain handling 3"
    );
    assert_eq!(
        refused(V5, "82 08 0001 00 0002 612b 00"),
        Some(MalformedPacket),
        "half a wildcard"
    );
}

#[test]
fn shared_subscriptions_are_recognised_and_never_no_local() {
    let share = |filter: &str, options: &str| {
        let filter: String = filter.bytes().map(|byte| format!("{byte:02x}")).collect();
        let len = filter.len() / 2;
        refused(
            V5,
            &format!("82 {:02x} 0001 00 {len:04x} {filter} {options}", len + 6),
        )
    };
    assert_eq!(share("$share/g/a/+", "01"), None);
    assert_eq!(share("$share/g/a", "05"), Some(ProtocolError), "no local");
    assert_eq!(share("$share/g", "01"), Some(MalformedPacket), "no filter");
    assert_eq!(share("$share//a", "01"), Some(MalformedPacket), "no group");
    assert_eq!(
        share("$share/+/a", "01"),
        Some(MalformedPacket),
        "a wildcard group"
    );
    assert_eq!(share("$shared/g", "05"), None, "another topic");
}

#[test]
fn unsubscriptions_are_well_formed() {
    assert_eq!(refused(V311, "a2 05 0001 0001 61"), None);
    assert_eq!(refused(V5, "a2 06 0001 00 0001 61"), None);
    assert_eq!(
        refused(V5, "a2 06 0000 00 0001 61"),
        Some(MalformedPacket),
        "packet identifier 0"
    );
    assert_eq!(
        refused(V311, "a2 02 0001"),
        Some(ProtocolError),
        "no filter"
    );
    assert_eq!(
        refused(V311, "a2 07 0001 0001 61 0000"),
        Some(MalformedPacket),
        "an empty filter"
    );
    assert_eq!(
        refused(V5, "a2 06 0001 00 0001 01"),
        Some(MalformedPacket),
        "a control character"
    );
}

#[test]
fn disconnect_says_what_a_client_may_say() {
    assert_eq!(refused(V311, "e000"), None);
    assert_eq!(refused(V311, "e001 00"), Some(MalformedPacket));
    assert_eq!(refused(V5, "e001 04"), None);
    assert_eq!(
        refused(V5, "e001 05"),
        Some(ProtocolError),
        "an unknown reason"
    );
    assert_eq!(
        refused(V5, "e001 8e"),
        Some(ProtocolError),
        "a reason of servers"
    );
    assert_eq!(refused(V5, "e007 00 05 11 00000000"), None);
    assert_eq!(
        refused(V5, "e006 00 04 1c 0001 61"),
        Some(ProtocolError),
        "a server reference from a client"
    );
    assert_eq!(refused(V5, "e003 00 01 00"), Some(MalformedPacket));
}

#[test]
fn a_ping_has_no_body() {
    for version in [V31, V311, V5] {
        assert_eq!(refused(version, "c000"), None);
        assert_eq!(refused(version, "c001 00"), Some(MalformedPacket));
    }
}

#[test]
fn a_client_refuses_what_only_clients_send() {
    for (version, packet) in [
        (V311, "c000"),
        (V5, "82 07 0001 00 0001 61 00"),
        (V311, "e000"),
        (V5, "a2 06 0001 00 0001 61"),
    ] {
        let bytes = hex(packet);
        let (first_byte, body) = split(&bytes);
        let seen =
            packet::decode_from_server(version, first_byte, body).map_err(|error| error.reason);
        assert_eq!(seen, Err(ProtocolError), "{packet}");
    }
}
