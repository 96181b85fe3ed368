//! Topic names and filters: which filter matches which name, and which filters are invalid.

use crate::conformance::fresh;
use crate::conformance::talk::connect;
use crate::conformance::wire::{BOTH, DISCONNECT, packet, properties, text};

/// v5: 4.7.1-1 4.7.1-2 4.7.3-1
/// v311: 4.7.1-2 4.7.1-3 4.7.3-1
#[test]
fn a_wildcard_is_a_whole_level_and_the_rest_is_last() {
    for v in BOTH {
        for filter in [
            "a/#/b", "a#", "#a", "##", "a/b#", "+a", "a+", "a/+b/c", "++", "",
        ] {
            let mut peer = connect(v, &fresh("bad"));
            peer.send(&packet(
                0x82,
                &[&[0, 1], &properties(v, &[]), &text(filter), &[0]],
            ));
            if v == 5 {
                let reason = peer.wait_for(DISCONNECT).reason();
                assert!(matches!(reason, 0x81 | 0x82), "{filter}: {reason:#04x}");
            }
            peer.closed();
        }
    }
}

/// v5: 4.7.1-1 4.7.1-2 4.7.3-4
/// v311: 4.7.1-2 4.7.1-3 4.7.3-4 3.8.3-2
#[test]
fn filters_match_by_level() {
    // Below the test's own root: filter, matching names, other names.
    let cases: &[(&str, &[&str], &[&str])] = &[
        ("/#", &["", "/", "/a", "/a/b", "//"], &["x"]),
        ("/+", &["/", "/a"], &["", "/a/b", "/a/", "//"]),
        ("/+/+", &["//", "/a/b", "/a/"], &["/a", "/a/b/c"]),
        ("/+/b", &["/a/b", "//b"], &["/a/B", "/a/b/", "/b"]),
        ("/a/#", &["/a", "/a/", "/a/b/c"], &["/ab", "/A", "/"]),
        (
            "/a/+/c/#",
            &["/a/b/c", "/a//c", "/a/b/c/d"],
            &["/a/b", "/a/c"],
        ),
        ("/a b", &["/a b"], &["/a", "/ab", "/A b"]),
        ("/ä", &["/ä"], &["/a\u{308}", "/Ä"]),
    ];
    for v in BOTH {
        let root = fresh("m");
        for (index, (filter, yes, no)) in cases.iter().enumerate() {
            let root = format!("{root}{index}");
            let mut peer = connect(v, &fresh("s"));
            peer.subscribe(&format!("{root}{filter}"), 0);
            let mut publisher = connect(v, &fresh("p"));
            for name in yes.iter().chain(no.iter()) {
                publisher.publish(&format!("{root}{name}"), name);
            }
            let mut got = peer.texts(yes.len());
            peer.silent();
            let mut wanted: Vec<String> = yes.iter().map(|name| (*name).to_owned()).collect();
            got.sort();
            wanted.sort();
            assert_eq!(got, wanted, "{filter}");
        }
    }
}

/// v5: 4.7.2-1
/// v311: 4.7.2-1
#[test]
fn names_with_a_dollar_are_not_matched_by_a_leading_wildcard() {
    for v in BOTH {
        // A command leaves a receipt on `$receipts`.
        let device = fresh("device");
        let mut by_name = connect(v, &fresh("s"));
        by_name.subscribe("$receipts", 0);
        let mut wild = connect(v, &fresh("s"));
        wild.subscribe("#", 0);
        wild.subscribe("+", 0);
        wild.subscribe("+/#", 0);
        let mut peer = connect(v, &device);
        let topic = format!("devices/{device}/actions");
        peer.subscribe(&topic, 1);
        connect(v, &fresh("p")).publish(&topic, "do it");
        peer.message();
        loop {
            let receipt = by_name.message();
            assert_eq!(receipt.topic(), "$receipts");
            if receipt.payload_text().contains(&device) {
                break;
            }
        }
        wild.send(&[0xc0, 0]);
        while let Some(packet) = wild
            .next()
            .filter(|packet| packet.kind() != crate::conformance::wire::PINGRESP)
        {
            assert!(!packet.topic().starts_with('$'), "{}", packet.topic());
        }
    }
}

/// v5: 4.7.3-4 4.7.3-1
/// v311: 4.7.3-4 4.7.3-1
#[test]
fn names_that_look_odd_are_left_as_they_are() {
    for v in BOTH {
        for odd in [
            "/",
            "//",
            " ",
            "a//b",
            "/a/",
            "./../x",
            "%2F",
            "a\u{2028}b",
            "*",
            "?",
        ] {
            let topic = format!("{}{odd}", fresh("odd"));
            let mut peer = connect(v, &fresh("s"));
            peer.subscribe(&topic, 0);
            peer.publish(&topic, "x");
            assert_eq!(peer.message().topic(), topic);
        }
    }
}

/// v5: 4.8.2-1 4.8.2-2 3.8.3-4
#[test]
fn a_shared_filter_has_a_group_and_a_filter_and_is_never_no_local() {
    for (filter, options) in [
        ("$share/", 0),
        ("$share//", 0),
        ("$share//t", 0),
        ("$share/g", 0),
        ("$share/g/", 0),
        ("$share/g+/t", 0),
        ("$share/g#/t", 0),
        ("$share/#", 0),
        ("$share/+/t", 0),
        ("$share/g/t", 4),
    ] {
        let mut peer = connect(5, &fresh("share"));
        peer.send(&packet(
            0x82,
            &[&[0, 1], &properties(5, &[]), &text(filter), &[options]],
        ));
        let answer = peer.next().unwrap();
        let wanted: &[u8] = if options == 4 {
            &[0x82]
        } else {
            &[0x81, 0x82, 0x8f]
        };
        // 4.7 lets a server refuse the filter instead of the packet.
        let code = if answer.kind() == DISCONNECT {
            answer.reason()
        } else {
            answer.codes()[0]
        };
        assert!(wanted.contains(&code), "{filter}: {code:#04x}");
    }
}
