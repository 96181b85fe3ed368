//! Large payloads, which are sent from their batch, reach every subscriber intact, however much each socket takes.

use super::hostile::subscribe_to;
use super::*;

/// Lets a connection read at most `taken` bytes a turn until nothing more comes, and returns everything it read.
fn take_in_parts(rig: &mut Rig, key: ConnKey, taken: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        rig.turn();
        let out = rig.engine.out(key);
        if out.is_empty() && !rig.engine.has_more() {
            return bytes;
        }
        let out = rig.engine.out(key).to_vec();
        let count = out.len().min(taken);
        bytes.extend_from_slice(&out[..count]);
        rig.engine.written(key, count);
        rig.engine.writable(key);
    }
}

fn payloads(version: Version, mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    while let Ok(Frame::Whole {
        first_byte,
        header_len,
        total_len,
    }) = frame::next(bytes, 1 << 28)
    {
        match decode_from_server(version, first_byte, &bytes[header_len..total_len]) {
            Ok(ServerPacket::Publish(publish)) => payloads.push(publish.payload.to_vec()),
            other => panic!("{other:?} between the deliveries"),
        }
        bytes = &bytes[total_len..];
    }
    assert_eq!(bytes, [0; 0], "a packet is cut short");
    payloads
}

#[test]
fn large_payloads_arrive_whole_and_in_order_however_little_a_socket_takes() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let publisher = rig.connect(ConnectFields::new(Version::V311, "p"));
    let subscribers: Vec<(ConnKey, Version, usize)> = [
        (Version::V311, usize::MAX),
        (Version::V5, 64 << 10),
        (Version::V311, 7919),
        (Version::V5, 100_003),
    ]
    .into_iter()
    .enumerate()
    .map(|(n, (version, taken))| {
        let key = rig.connect(ConnectFields::new(version, &format!("s{n}")));
        subscribe_to(&mut rig, key, "t", QoS::AtLeastOnce);
        (key, version, taken)
    })
    .collect();
    let sizes = [
        9 << 10,
        100,
        70 << 10,
        8 << 10,
        0,
        (8 << 10) - 1,
        300 << 10,
        5,
    ];
    let texts: Vec<String> = sizes
        .iter()
        .zip("abcdefgh".chars())
        .map(|(size, letter)| letter.to_string().repeat(*size))
        .collect();
    for (text, id) in texts.iter().zip(1..) {
        rig.publish(publisher, Version::V311, id, text);
    }
    rig.packets(publisher, Version::V311, texts.len());
    for (key, version, taken) in subscribers {
        let bytes = take_in_parts(&mut rig, key, taken);
        let got = payloads(version, &bytes);
        assert_eq!(got.len(), texts.len(), "{version:?}, {taken} bytes a time");
        for (got, text) in got.iter().zip(&texts) {
            assert!(*got == text.as_bytes(), "{version:?}, {taken} bytes a time");
        }
    }
}

#[test]
fn i7_a_payload_that_a_socket_leaves_holds_its_batch_no_longer_than_the_log_does() {
    let dir = dir();
    let version = Version::V311;
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let publisher = rig.connect(ConnectFields::new(version, "p"));
    let slow = rig.connect(ConnectFields::new(version, "s"));
    subscribe_to(&mut rig, slow, "t", QoS::AtLeastOnce);
    rig.publish(publisher, version, 1, &"x".repeat(64 << 10));
    assert_eq!(rig.packets(publisher, version, 1), ["puback 1"]);
    let waiting = rig.engine.out(slow).len();
    let conn = rig.engine.clients.conn(slow).expect("it is open");
    assert!(
        conn.shares.bytes() > 0 && conn.out.len() < 100,
        "it was copied"
    );
    rig.engine.written(slow, 10);
    let held = |rig: &Rig| {
        let conn = rig.engine.clients.conn(slow).expect("it is open");
        assert_eq!(conn.out_len(), waiting - 10);
        conn.shares.bytes() > 0
    };
    assert!(held(&rig), "the log has it in memory as well");
    // These publishes go to nobody, so only time passes.
    let mut id = 1;
    while held(&rig) {
        id += 1;
        assert!(id < 200, "it is still held when much else was read");
        rig.publish_to(
            "other",
            false,
            publisher,
            version,
            id,
            &"y".repeat(64 << 10),
        );
        assert_eq!(rig.packets(publisher, version, 1), [format!("puback {id}")]);
    }
    assert!(id > 64, "it was held for a while");
}
