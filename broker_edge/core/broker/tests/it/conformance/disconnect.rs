//! DISCONNECT, PINGREQ and the keep alive: how connections end.

use std::time::{Duration, Instant};

use crate::conformance::fresh;
use crate::conformance::talk::{Connect, connect, publish_0};
use crate::conformance::wire::{BOTH, PINGRESP, number, packet, properties, string};

/// v5: 3.12.4-1
/// v311: 3.12.4-1
#[test]
fn a_ping_is_answered() {
    for v in BOTH {
        let mut peer = connect(v, &fresh("ping"));
        for _ in 0..3 {
            peer.send(&[0xc0, 0]);
            assert!(peer.wait_for(PINGRESP).body.is_empty());
        }
    }
}

/// v5: 3.1.2-22
/// v311: 3.1.2-24
#[test]
fn silence_for_one_and_a_half_keep_alives_ends_the_connection() {
    for v in BOTH {
        let mut connect = Connect::new(v, &fresh("silent"));
        connect.keep_alive_s = 1;
        // Measured before the broker has received anything, so its timer can only start later.
        let since = Instant::now();
        let (mut peer, _) = connect.enter();
        peer.closed_with(0x8d);
        assert!(
            since.elapsed() >= Duration::from_millis(1400),
            "{:?}",
            since.elapsed()
        );
    }
}

/// v5: 3.1.2-22
/// v311: 3.1.2-24
#[test]
fn any_packet_keeps_a_connection_alive() {
    for v in BOTH {
        let topic = fresh("t");
        let mut connect_it = Connect::new(v, &fresh("alive"));
        connect_it.keep_alive_s = 1;
        let (mut peer, _) = connect_it.enter();
        // A silent client shows how much time has passed.
        let mut clock = Connect::new(v, &fresh("clock"));
        clock.keep_alive_s = 1;
        let (mut clock, _) = clock.enter();
        peer.send(&publish_0(v, &topic, "x"));
        std::thread::scope(|scope| {
            let clock = scope.spawn(move || clock.closed_with(0x8d));
            while !clock.is_finished() {
                peer.silent();
                // The pace of the client.
                std::thread::park_timeout(Duration::from_millis(20));
            }
            clock.join().expect("closed for its silence");
        });
        peer.silent();
    }
}

/// v5: 3.14.1-1
/// v311: 3.14.1-1
#[test]
fn the_reserved_bits_of_disconnect_are_zero() {
    for v in BOTH {
        for flags in [1, 2, 4, 8] {
            let mut peer = connect(v, &fresh("bits"));
            peer.send(&[0xe0 | flags, 0]);
            peer.closed_with(0x81);
        }
    }
}

/// v5: 3.14.4-1 3.14.4-2
#[test]
fn nothing_follows_the_brokers_disconnect() {
    let mut peer = connect(5, &fresh("last"));
    // The ping after the mistake is not answered.
    peer.send(&[0x36, 0, 0xc0, 0]);
    peer.closed_with(0x81);
}

/// v5: 3.14.2-1 3.14.2-2
#[test]
fn the_brokers_disconnect_has_a_code_of_the_standard_and_no_expiry() {
    let mut peer = connect(5, &fresh("code"));
    peer.send(&[0x10, 0]);
    let packet = peer.wait_for(crate::conformance::wire::DISCONNECT);
    assert_eq!(packet.reason(), 0x82);
    assert_eq!(packet.property(0x11), None);
    peer.closed();
}

/// v5: 3.1.2-29 3.14.2-3 3.14.2-4
#[test]
fn a_disconnect_fits_the_smallest_client() {
    let (mut peer, _) = Connect::new(5, &fresh("tiny"))
        .with(&number(0x27, 20))
        .enter();
    peer.send(&[0x36, 0]);
    let packet = peer.wait_for(crate::conformance::wire::DISCONNECT);
    assert!(packet.body.len() + 2 <= 20);
}

/// v5: 3.14.2-1 4.13.1-1
#[test]
fn a_disconnect_with_what_it_may_not_carry_is_a_protocol_error() {
    let wrong: &[(&[u8], u8)] = &[
        (&[0x8e], 0x82),
        (&[0x01], 0x82),
        (&[0xff], 0x82),
        (
            &[0, 9, 0x1c, 0, 6, b's', b'e', b'r', b'v', b'e', b'r'],
            0x82,
        ),
        (&[0, 10, 0x11, 0, 0, 0, 0, 0x11, 0, 0, 0, 0], 0x82),
        (&[0, 0, 0], 0x81),
        (&[0, 3, 0x11, 0, 0], 0x81),
    ];
    for (body, reason) in wrong {
        let mut peer = connect(5, &fresh("d"));
        peer.send(&packet(0xe0, &[body]));
        peer.closed_with(*reason);
    }
}

/// v311: 3.14.1-1
#[test]
fn a_disconnect_of_3_1_1_has_no_body() {
    let topic = fresh("will/");
    let mut watcher = connect(4, &fresh("w"));
    watcher.subscribe(&topic, 0);
    let mut connect = Connect::new(4, &fresh("body"));
    connect.will = Some(crate::conformance::talk::Will::new(&topic, "wrong"));
    let (mut peer, _) = connect.enter();
    peer.send(&[0xe0, 1, 0]);
    peer.closed();
    assert_eq!(watcher.message().payload_text(), "wrong");
}

/// v5: 3.14.4-3
/// v311: 3.14.4-3
#[test]
fn a_goodbye_is_answered_by_the_end_of_the_connection_alone() {
    for v in BOTH {
        let mut peer = connect(v, &fresh("bye"));
        if v == 5 {
            peer.send(&packet(
                0xe0,
                &[&[0], &properties(5, &[&string(0x1f, "done")])],
            ));
        } else {
            peer.send(&[0xe0, 0]);
        }
        peer.closed();
    }
}

/// v5: 4.12.0-7 3.15.1-1 3.15.2-1
#[test]
fn an_auth_without_a_method_in_connect_is_a_protocol_error() {
    for bytes in [
        vec![0xf0, 0],
        packet(0xf0, &[&[0x18], &properties(5, &[&string(0x15, "m")])]),
        packet(0xf0, &[&[0x19], &properties(5, &[&string(0x15, "m")])]),
        vec![0xf0, 2, 0x02, 0],
    ] {
        let mut peer = connect(5, &fresh("auth"));
        peer.send(&bytes);
        peer.closed_with(0x82);
    }
    for flags in [1, 2, 4, 8] {
        let mut peer = connect(5, &fresh("auth"));
        peer.send(&[0xf0 | flags, 0]);
        let packet = peer.wait_for(crate::conformance::wire::DISCONNECT);
        assert!(matches!(packet.reason(), 0x81 | 0x82));
        peer.closed();
    }
}
