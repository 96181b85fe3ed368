//! Credentials and enhanced authentication, against a broker with users. The client's side of SCRAM-SHA-256 is
//! implemented here from RFC 5802 with ring, independently of the product.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use headwater_broker::Broker;
use headwater_broker::config::Config;
use ring::{digest, hmac, pbkdf2};

use crate::conformance::fresh;
use crate::conformance::talk::Connect;
use crate::conformance::wire::{
    CONNACK, DISCONNECT, PINGRESP, Packet, Peer, number, packet, properties, string, text,
};

const AUTH: u8 = 15;
const METHOD: &str = "SCRAM-SHA-256";
const METHOD_ID: u8 = 0x15;
const DATA_ID: u8 = 0x16;
const CONTINUE: u8 = 0x18;
const AGAIN: u8 = 0x19;

fn tag(key: &[u8], message: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message)
        .as_ref()
        .to_vec()
}

fn sha256(message: &[u8]) -> Vec<u8> {
    digest::digest(&digest::SHA256, message).as_ref().to_vec()
}

fn salted(password: &str, salt: &[u8], iterations: u32) -> Vec<u8> {
    let mut out = vec![0; 32];
    let iterations = NonZeroU32::new(iterations).unwrap();
    pbkdf2::derive(
        pbkdf2::PBKDF2_HMAC_SHA256,
        iterations,
        salt,
        password.as_bytes(),
        &mut out,
    );
    out
}

/// The address of a broker with the single user `ann`, password `pw`.
fn guarded() -> SocketAddr {
    static BROKER: OnceLock<Broker> = OnceLock::new();
    let broker = BROKER.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance-users");
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let base64 = |bytes: &[u8]| STANDARD.encode(bytes);
        let secret = salted("pw", b"salt", 4096);
        let stored = sha256(&tag(&secret, b"Client Key"));
        let server = tag(&secret, b"Server Key");
        let (salt, stored, server) = (base64(b"salt"), base64(&stored), base64(&server));
        let plain = base64(digest::digest(&digest::SHA512, b"pwsalt").as_ref());
        let users =
            format!("ann:$scram-sha-256$4096${salt}${stored}${server}\nann:$6${salt}${plain}\n");
        std::fs::write(dir.join("users"), users).unwrap();
        let mut config = Config {
            data_dir: dir.join("log"),
            ..Config::default()
        };
        config.auth.password_file = Some(dir.join("users"));
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        config.listeners.mqtt.bind.0 = vec![free];
        config.listeners.flight.bind.0 = free;
        config.listeners.admin.bind.0 = free;
        Broker::start(config).expect("the broker starts on an empty folder")
    });
    broker.mqtt_address()
}

fn data(message: &str) -> Vec<u8> {
    [vec![DATA_ID], text(message)].concat()
}

fn auth(reason: u8, message: &str) -> Vec<u8> {
    let list = [string(METHOD_ID, METHOD), data(message)];
    packet(0xf0, &[&[reason], &properties(5, &[&list[0], &list[1]])])
}

/// Reason, method and message of an AUTH.
fn read_auth(packet: &Packet) -> (u8, String, String) {
    assert_eq!(packet.kind(), AUTH, "{packet:02x?}");
    // An AUTH has its properties at the same position as a DISCONNECT.
    let mut as_disconnect = packet.clone();
    as_disconnect.first_byte = DISCONNECT << 4;
    let named = |id| as_disconnect.property_text(id).unwrap_or_default();
    assert_eq!(as_disconnect.property(0x1f), None, "no reason string");
    assert!(as_disconnect.users().is_empty(), "no user property");
    (as_disconnect.reason(), named(METHOD_ID), named(DATA_ID))
}

fn first(user: &str) -> String {
    format!("n,,n={user},r=own")
}

/// The message that proves the password to a challenge.
fn last(user: &str, password: &str, challenge: &str) -> String {
    let part = |name: &str| {
        challenge
            .split(',')
            .find_map(|it| it.strip_prefix(name))
            .unwrap()
    };
    let salt = STANDARD.decode(part("s=")).unwrap();
    let secret = salted(password, &salt, part("i=").parse().unwrap());
    let key = tag(&secret, b"Client Key");
    let head = format!("c=biws,r={}", part("r="));
    let signed = format!("n={user},r=own,{challenge},{head}");
    let signature = tag(&sha256(&key), signed.as_bytes());
    let proof: Vec<u8> = key.iter().zip(&signature).map(|(l, r)| l ^ r).collect();
    format!("{head},p={}", STANDARD.encode(proof))
}

/// Sends a CONNECT that begins an exchange; returns the broker's challenge.
fn begun(user: &str) -> (Peer, String) {
    let mut peer = Peer::open(guarded(), 5);
    let connect = Connect::new(5, &fresh("scram"))
        .with(&string(METHOD_ID, METHOD))
        .with(&data(&first(user)));
    peer.send(&connect.encode());
    let (reason, method, challenge) = read_auth(&peer.next().expect("an AUTH"));
    assert_eq!((reason, method.as_str()), (CONTINUE, METHOD));
    (peer, challenge)
}

/// A client authenticated as `ann`.
fn entered() -> Peer {
    let (mut peer, challenge) = begun("ann");
    peer.send(&auth(CONTINUE, &last("ann", "pw", &challenge)));
    let connack = peer.next().expect("a CONNACK");
    assert_eq!(
        (connack.kind(), connack.reason()),
        (CONNACK, 0),
        "{connack:02x?}"
    );
    assert_eq!(connack.property_text(METHOD_ID).as_deref(), Some(METHOD));
    assert!(connack.property_text(DATA_ID).unwrap().starts_with("v="));
    peer
}

/// v5: 4.12.0-2 4.12.0-5 3.15.2-2 3.15.2-3
#[test]
fn an_exchange_continues_with_auth_and_ends_with_a_connack_that_names_the_method() {
    let mut peer = entered();
    peer.send(&[0xc0, 0]);
    peer.wait_for(PINGRESP);
    peer.goodbye();
}

/// v5: 4.12.0-4
#[test]
fn a_proof_that_is_wrong_is_answered_with_a_refusal_and_the_connection_ends() {
    for (user, password) in [("ann", "wrong"), ("nobody", "pw")] {
        let (mut peer, challenge) = begun(user);
        peer.send(&auth(CONTINUE, &last(user, password, &challenge)));
        let connack = peer.next().expect("a CONNACK");
        assert_eq!((connack.kind(), connack.reason()), (CONNACK, 0x86));
        peer.closed();
    }
    // A client that continues with another packet than AUTH is disconnected too.
    let (mut peer, _) = begun("ann");
    peer.send(&[0xc0, 0]);
    peer.closed();
}

/// v5: 4.12.1-1
#[test]
fn a_client_may_prove_itself_again_on_its_connection() {
    let mut peer = entered();
    peer.send(&auth(AGAIN, &first("ann")));
    let (reason, _, challenge) = read_auth(&peer.next().expect("an AUTH"));
    assert_eq!(reason, CONTINUE);
    // Meanwhile everything else works as usual.
    peer.send(&[0xc0, 0]);
    peer.wait_for(PINGRESP);
    peer.send(&auth(CONTINUE, &last("ann", "pw", &challenge)));
    let (reason, method, proof) = read_auth(&peer.next().expect("an AUTH"));
    assert_eq!((reason, method.as_str()), (0, METHOD));
    assert!(proof.starts_with("v="));
    peer.goodbye();
}

/// v5: 4.12.1-2
#[test]
fn who_fails_to_prove_itself_again_is_told_and_ended() {
    let mut peer = entered();
    peer.send(&auth(AGAIN, &first("ann")));
    let (_, _, challenge) = read_auth(&peer.next().expect("an AUTH"));
    peer.send(&auth(CONTINUE, &last("ann", "wrong", &challenge)));
    peer.closed_with(0x87);
}

/// v5: 3.1.4-2 3.1.2-24
#[test]
fn checks_of_a_connect_that_fail_end_the_connection() {
    for (version, code) in [(3, 5), (4, 5), (5, 0x86)] {
        let mut connect = Connect::new(version, &fresh("user"));
        connect.username = Some(b"ann".to_vec());
        connect.password = Some(b"wrong".to_vec());
        let mut peer = Peer::open(guarded(), version);
        peer.send(&connect.encode());
        let connack = peer.next().expect("a CONNACK");
        assert_eq!((connack.kind(), connack.body[1]), (CONNACK, code));
        peer.closed();
    }
    // A challenge over the client's maximum packet size is not sent.
    let mut peer = Peer::open(guarded(), 5);
    let connect = Connect::new(5, &fresh("small"))
        .with(&number(0x27, 40))
        .with(&string(METHOD_ID, METHOD))
        .with(&data(&first("ann")));
    peer.send(&connect.encode());
    while let Some(packet) = peer.next() {
        assert!(
            packet.kind() != AUTH && packet.body.len() + 2 <= 40,
            "{packet:02x?}"
        );
    }
}
