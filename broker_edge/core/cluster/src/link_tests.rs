use proptest::prelude::*;

use super::*;
use crate::marks::{DiskId, Epoch};

fn node(name: &str) -> Node {
    Node::new(name).expect("a name")
}

fn hello(name: &str) -> Hello {
    Hello {
        versions: (VERSION, VERSION),
        log_id: [7; 16],
        cluster: node("berlin"),
        node: node(name),
        disk: DiskId(name.len() as u64),
        starts: Starts(3),
        clock_ms: 9,
    }
}

/// A link from `a` to `b` and the other end of it.
fn pair() -> (Link, Link) {
    let dialled = Link::new(hello("a"), "10.0.0.2:7400".into(), Some(node("b")), 0);
    let accepted = Link::new(hello("b"), "10.0.0.1:51000".into(), None, 0);
    (dialled, accepted)
}

/// What the socket is to take next, as one.
fn to_send(link: &mut Link, batches: impl FnOnce() -> Option<(ShardId, Frame)>) -> Vec<u8> {
    link.to_send(batches).concat()
}

/// At most `step` bytes come, as many as there is room for.
fn put(link: &mut Link, bytes: &[u8], step: usize) -> usize {
    let room = link.room(step);
    let count = bytes.len().min(room.len());
    room[..count].copy_from_slice(&bytes[..count]);
    link.received(count);
    count
}

fn carry(from: &mut Link, to: &mut Link, step: usize) -> Result<Vec<Came>, LinkError> {
    let mut came = Vec::new();
    loop {
        let bytes = to_send(from, || None);
        if bytes.is_empty() {
            return Ok(came);
        }
        let count = put(to, &bytes, step);
        from.sent(count);
        while let Some(next) = to.take()? {
            came.push(next);
        }
    }
}

fn resign(epoch: u64) -> Frame {
    Frame::Resign {
        epoch: Epoch(epoch),
    }
}

fn batches(bytes: usize) -> (ShardId, Frame) {
    use crate::frames::{Edges, Told};
    use crate::marks::{FollowNumber, Offset, PartitionId, Stamp};
    let frame = Frame::Batches {
        stamp: Stamp {
            epoch: Epoch(1),
            starts: Starts(1),
            follow: FollowNumber(1),
        },
        partition: PartitionId(0),
        told: Told {
            high_watermark: Offset(0),
            log_start: Offset(0),
        },
        edges: Edges {
            first: true,
            last: true,
        },
        bytes: vec![1; bytes].into(),
    };
    (ShardId(0), frame)
}

proptest! {
    #[test]
    fn frames_come_in_order_however_the_bytes_are_cut(step in 1..200usize, count in 0..20u64) {
        let (mut a, mut b) = pair();
        // Queued before the peer is known, they wait for its `Hello`.
        for epoch in 0..count {
            a.send(ShardId(9), resign(epoch)).expect("room");
        }
        let first = carry(&mut a, &mut b, step).expect("sound");
        let member = Member { node: node("a"), disk: DiskId(1) };
        prop_assert_eq!(first, [Came::Peer { member, starts: Starts(3), clock_ms: 9 }]);
        carry(&mut b, &mut a, step).expect("sound");
        let frames: Vec<Came> = (0..count).map(|epoch| Came::Frame(ShardId(9), resign(epoch))).collect();
        prop_assert_eq!(carry(&mut a, &mut b, step).expect("sound"), frames);
    }
}

proptest! {
    #[test]
    fn batches_come_as_they_were_sent_however_the_bytes_are_cut(
        step in 1..5_000usize,
        sizes in proptest::collection::vec(0..3_000usize, 1..8),
    ) {
        let (mut a, mut b) = pair();
        carry(&mut a, &mut b, step).expect("sound");
        carry(&mut b, &mut a, step).expect("sound");
        let frames: Vec<_> = sizes.into_iter().map(batches).collect();
        let mut waiting = frames.iter().cloned();
        let mut came = Vec::new();
        loop {
            let bytes = to_send(&mut a, || waiting.next());
            if bytes.is_empty() {
                break;
            }
            a.sent(put(&mut b, &bytes, step));
            while let Some(next) = b.take().expect("sound") {
                came.push(next);
            }
        }
        let whole: Vec<_> = frames.into_iter().map(|(shard, frame)| Came::Frame(shard, frame)).collect();
        prop_assert_eq!(came, whole);
    }
}

#[test]
fn control_frames_go_before_batches_and_batches_are_asked_for_one_at_a_time() {
    let (mut a, mut b) = pair();
    carry(&mut a, &mut b, 4_096).expect("sound");
    let asked = to_send(&mut a, || panic!("no peer is known"));
    assert!(asked.is_empty());
    carry(&mut b, &mut a, 4_096).expect("sound");
    a.send(ShardId(0), resign(1)).expect("room");
    let control = to_send(&mut a, || panic!("a control frame waits")).len();
    a.sent(control);
    let whole = to_send(&mut a, || Some(batches(1_000))).len();
    assert!(whole > 1_000);
    a.sent(10);
    // A frame that has begun is finished before anything else.
    a.send(ShardId(0), resign(2)).expect("room");
    assert_eq!(
        to_send(&mut a, || panic!("one is being sent")).len(),
        whole - 10
    );
    a.sent(whole - 10);
    assert_eq!(
        to_send(&mut a, || panic!("a control frame waits")).len(),
        control
    );
}

#[test]
fn a_peer_that_is_not_the_one_looked_for_is_refused_by_name() {
    let refused = |change: fn(&mut Hello), says: &str| {
        let mut other = hello("b");
        change(&mut other);
        let (mut a, _) = pair();
        let mut b = Link::new(other, "10.0.0.1:51000".into(), None, 0);
        match carry(&mut b, &mut a, 512) {
            Err(LinkError::Wrong(wrong)) => {
                let said = wrong.to_string();
                assert!(said.contains(says), "{said}");
            }
            other => panic!("{says}: {other:?}"),
        }
    };
    refused(
        |other| other.cluster = node("bonn"),
        "is of cluster bonn, this node is of berlin",
    );
    refused(|other| other.log_id = [8; 16], "b has another log");
    refused(
        |other| other.node = node("a"),
        "has the name a of this node",
    );
    refused(|other| other.node = node("c"), "is c, and b was dialled");
    refused(
        |other| other.versions = (VERSION + 1, VERSION + 2),
        "upgrade one version at a time",
    );
}

#[test]
fn what_is_wrong_on_a_link_closes_it() {
    let (mut a, mut b) = pair();
    assert_eq!(a.deadline_ms(), Some(HELLO_MS));
    assert_eq!(a.check_time(HELLO_MS - 1), Ok(()));
    assert_eq!(
        a.check_time(HELLO_MS),
        Err(LinkError::NoHello("10.0.0.2:7400".into()))
    );
    carry(&mut b, &mut a, 512).expect("sound");
    assert_eq!(a.check_time(HELLO_MS), Ok(()));

    let again = Addressed {
        shard: ShardId(0),
        frame: Frame::Hello(hello("b")),
    };
    let mut bytes = Vec::new();
    encode(&again, &mut bytes);
    put(&mut a, &bytes, 512);
    assert_eq!(a.take(), Err(LinkError::SecondHello(node("b"))));

    let (mut a, _) = pair();
    put(&mut a, b"GET / HTTP/1.1\r\n", 512);
    let said = a.take().expect_err("no frame begins so").to_string();
    assert!(
        said.starts_with("the peer 10.0.0.2:7400 sent what no version"),
        "{said}"
    );
}

#[test]
fn before_its_hello_a_peer_fills_no_more_than_the_room_of_one() {
    let (mut a, mut b) = pair();
    assert_eq!(a.room(1 << 20).len(), HELLO_BYTES_MAX);
    assert_eq!(a.wants(), HEAD_BYTES);
    put(&mut b, &[0xff; 3], 512);
    assert_eq!(b.room(1 << 20).len(), HELLO_BYTES_MAX - 3);
    assert_eq!(b.wants(), HEAD_BYTES - 3);
}

#[test]
fn a_peer_that_does_not_read_is_given_up() {
    let (mut a, mut b) = pair();
    carry(&mut b, &mut a, 512).expect("sound");
    let mut queued = 0;
    let error = loop {
        let (shard, frame) = batches(crate::frames::CHUNK_BYTES_MAX);
        match a.send(shard, frame) {
            Ok(()) => queued += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, LinkError::DoesNotRead(node("b")));
    assert_eq!(
        queued,
        CONTROL_BYTES_MAX / (crate::frames::CHUNK_BYTES_MAX + 100)
    );
}
