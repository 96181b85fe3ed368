//! Enhanced authentication over AUTH packets, named by the standard's statements.

use headwater_mqtt::packet::auth;

use crate::auth::scram::{METHOD, client};
use crate::auth::users::new_lines;

use super::guarded::Guarded;
use super::*;

fn with_scram() -> Guarded {
    let broker = Guarded::new(|settings| settings.acl_file = None);
    broker.write("users", &new_lines("ann", "pw-a", true).expect("a line"));
    broker.auth_service.reload().expect("the files are right");
    broker
}

/// Reason, method and data of the only AUTH sent; `None` for another packet.
fn sent_auth(rig: &mut Rig, key: ConnKey) -> Option<(ReasonCode, String, String)> {
    rig.turn();
    let bytes = rig.engine.out(key).to_vec();
    rig.engine.written(key, bytes.len());
    let Ok(Frame::Whole {
        first_byte,
        header_len,
        total_len,
    }) = frame::next(&bytes, 1 << 20)
    else {
        return None;
    };
    match decode_from_server(Version::V5, first_byte, &bytes[header_len..total_len]) {
        Ok(ServerPacket::Auth(auth::Auth { reason, properties })) => Some((
            reason,
            properties
                .authentication_method()
                .unwrap_or_default()
                .to_owned(),
            String::from_utf8_lossy(properties.authentication_data().unwrap_or_default())
                .into_owned(),
        )),
        _ => None,
    }
}

fn send_auth(rig: &mut Rig, key: ConnKey, reason: ReasonCode, method: &str, data: &str) {
    rig.feed(key, |out| {
        let properties = [
            Property::AuthenticationMethod(method),
            Property::AuthenticationData(data.as_bytes()),
        ];
        encode::auth(out, reason, &properties);
    });
}

fn begin(broker: &mut Guarded, method: &str, data: &str) -> ConnKey {
    let properties = [
        Property::AuthenticationMethod(method),
        Property::AuthenticationData(data.as_bytes()),
    ];
    let mut fields = ConnectFields::new(Version::V5, "c");
    fields.properties = &properties;
    let key = broker.rig.engine.open(crate::peer::Peer::nobody());
    broker.rig.feed(key, |out| encode::connect(out, &fields));
    key
}

/// A client that has completed the exchange.
fn connected(broker: &mut Guarded) -> ConnKey {
    let first = client::first("ann", "nonce");
    let key = begin(broker, METHOD, &first);
    let (reason, method, challenge) = sent_auth(&mut broker.rig, key).expect("an AUTH");
    assert_eq!(
        (reason, method.as_str()),
        (ReasonCode::ContinueAuthentication, METHOD)
    );
    let last = client::last("pw-a", &first, &challenge);
    send_auth(
        &mut broker.rig,
        key,
        ReasonCode::ContinueAuthentication,
        METHOD,
        &last,
    );
    broker.rig.turn();
    let bytes = broker.rig.engine.out(key).to_vec();
    broker.rig.engine.written(key, bytes.len());
    assert_eq!(bytes[3], 0, "CONNACK with success");
    let text = String::from_utf8_lossy(&bytes).into_owned();
    assert!(
        text.contains(METHOD) && text.contains("v="),
        "MQTT-4.12.0-5: {text}"
    );
    key
}

#[test]
fn mqtt_4_12_0_2_and_5_an_exchange_ends_with_a_connack_that_names_its_method() {
    let mut broker = with_scram();
    let key = connected(&mut broker);
    broker.rig.publish(key, Version::V5, 1, "x");
    assert_eq!(broker.rig.packets(key, Version::V5, 1).len(), 1);
    broker.rig.crash();
}

#[test]
fn mqtt_4_12_0_1_an_unknown_method_is_refused_with_0x8c() {
    let mut broker = with_scram();
    let key = begin(&mut broker, "SCRAM-SHA-1", "n,,n=ann,r=x");
    assert_eq!(broker.rig.engine.out(key).to_vec()[3], 0x8c);
    assert!(broker.rig.engine.take_closed().contains(&key));
    broker.rig.crash();
}

#[test]
fn mqtt_4_12_0_4_a_wrong_proof_and_an_unknown_user_are_refused_alike() {
    let mut broker = with_scram();
    for (user, password) in [("ann", "pw-b"), ("eve", "pw-a")] {
        let first = client::first(user, "nonce");
        let key = begin(&mut broker, METHOD, &first);
        let (_, _, challenge) = sent_auth(&mut broker.rig, key).expect("an AUTH, known or not");
        let last = client::last(password, &first, &challenge);
        send_auth(
            &mut broker.rig,
            key,
            ReasonCode::ContinueAuthentication,
            METHOD,
            &last,
        );
        assert_eq!(broker.rig.engine.out(key).to_vec()[3], 0x86);
        assert!(broker.rig.engine.take_closed().contains(&key));
    }
    broker.rig.crash();
}

#[test]
fn mqtt_3_1_2_30_nothing_but_auth_goes_on_before_the_connack() {
    let mut broker = with_scram();
    let key = begin(&mut broker, METHOD, &client::first("ann", "nonce"));
    broker.rig.feed(key, encode::pingreq);
    assert!(broker.rig.engine.take_closed().contains(&key));
    // An exchange that does not continue ends with the CONNECT timeout.
    let key = begin(&mut broker, METHOD, &client::first("ann", "nonce"));
    broker.rig.pass_time(10_001);
    assert!(broker.rig.engine.take_closed().contains(&key));
    broker.rig.crash();
}

#[test]
fn mqtt_4_12_0_7_auth_of_a_client_that_began_none_is_a_protocol_error() {
    let mut broker = with_scram();
    let key = broker.connect("ann", "pw-a", "c");
    let first = client::first("ann", "nonce");
    send_auth(
        &mut broker.rig,
        key,
        ReasonCode::Reauthenticate,
        METHOD,
        &first,
    );
    assert_eq!(
        broker.rig.sent(key, Version::V5),
        ["disconnect ProtocolError"]
    );
    broker.rig.crash();
}

#[test]
fn mqtt_4_12_1_a_client_proves_itself_again_on_its_connection_and_cannot_become_another() {
    let mut broker = with_scram();
    let lines = new_lines("ann", "pw-a", true).expect("a line");
    broker.write(
        "users",
        &(lines + &new_lines("bob", "pw-b", true).expect("a line")),
    );
    broker.auth_service.reload().expect("the files are right");
    for (user, password, is_good) in [
        ("ann", "pw-a", true),
        ("ann", "no", false),
        ("bob", "pw-b", false),
    ] {
        let key = connected(&mut broker);
        let first = client::first(user, "again");
        send_auth(
            &mut broker.rig,
            key,
            ReasonCode::Reauthenticate,
            METHOD,
            &first,
        );
        let (reason, _, challenge) = sent_auth(&mut broker.rig, key).expect("an AUTH");
        assert_eq!(reason, ReasonCode::ContinueAuthentication);
        let last = client::last(password, &first, &challenge);
        send_auth(
            &mut broker.rig,
            key,
            ReasonCode::ContinueAuthentication,
            METHOD,
            &last,
        );
        if is_good {
            let (reason, _, proof) = sent_auth(&mut broker.rig, key).expect("an AUTH");
            assert!(reason == ReasonCode::Success && proof.starts_with("v="));
        } else {
            assert_eq!(
                broker.rig.sent(key, Version::V5),
                ["disconnect NotAuthorized"],
                "{user}"
            );
        }
        broker.rig.engine.remove(key);
    }
    broker.rig.crash();
}

#[test]
fn a_client_in_an_exchange_is_promised_no_room_for_a_large_packet() {
    let mut broker = with_scram();
    let key = begin(&mut broker, METHOD, &client::first("ann", "nonce"));
    assert!(sent_auth(&mut broker.rig, key).is_some());
    let rig = &mut broker.rig;
    rig.engine.begin(rig.now);
    // An AUTH header announcing 1 MiB.
    rig.engine
        .receive(key, &[0xf0, 0x80, 0x80, 0x3f, 0x18], true);
    assert_eq!(rig.engine.read_plan(key), ReadPlan::Wait);
    assert!(rig.engine.take_closed().contains(&key));
    assert_eq!(rig.engine.clients.reserved_bytes(), 0);
    broker.rig.crash();
}
