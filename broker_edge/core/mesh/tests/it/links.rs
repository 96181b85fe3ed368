use std::io::{Read, Write};
use std::net::TcpStream;

use headwater_cluster::frames::Hello;
use headwater_cluster::link::HELLO_MS;
use headwater_cluster::marks::Starts;
use headwater_mesh::MeshEvent;

use crate::support::{
    Clock, One, SHARD, batches, hello, listener, member, node, pair, pair_of, resign,
};

#[test]
fn frames_arrive_in_order_and_control_frames_before_batches() {
    let (mut a, mut b, mut clock) = pair();
    let whole = batches(60_000);
    // More than the buffers of a socket take: most waits until the other side reads.
    a.batches = vec![whole.clone(); 300];
    clock.step(&mut [&mut a]);
    clock.step(&mut [&mut a]);
    let held = a.batches.len();
    assert!(
        held > 100,
        "batches are not read before the socket takes them"
    );
    for epoch in 0..10 {
        a.mesh.send(&member("b"), SHARD, resign(epoch), clock.0);
    }
    clock.until(&mut [&mut a, &mut b], |both| both[1].frames().len() == 310);
    let frames = b.frames();
    let first = frames
        .iter()
        .position(|frame| **frame == resign(0))
        .unwrap();
    assert!(
        first <= 300 - held,
        "it went before {held} batches, at {first}"
    );
    let control: Vec<_> = frames.iter().filter(|frame| ***frame != whole).collect();
    assert_eq!(control.len(), 10);
    assert!(
        control
            .iter()
            .enumerate()
            .all(|(epoch, frame)| ***frame == resign(epoch as u64))
    );
    // And the other way, to this life only.
    b.mesh.send(&member("a"), SHARD, resign(99), clock.0);
    let mut other = member("a");
    other.disk.0 += 1;
    b.mesh.send(&other, SHARD, resign(98), clock.0);
    clock.until(&mut [&mut a, &mut b], |both| !both[0].frames().is_empty());
    assert_eq!(a.frames(), [&resign(99)]);
}

#[test]
fn each_knows_how_far_the_clock_of_the_other_is_ahead() {
    let ahead = |name, ms| Hello {
        clock_ms: ms,
        ..hello(name)
    };
    let (a, b, _) = pair_of(ahead("a", 1_000), ahead("b", 3_601_000));
    assert_eq!(a.mesh.clock_ahead_ms(&node("b")), Some(3_600_000));
    assert_eq!(b.mesh.clock_ahead_ms(&node("a")), Some(-3_600_000));
    assert_eq!(a.mesh.clock_ahead_ms(&node("c")), None);
}

/// Whoever of the two dials, both learn that the process is gone, and a new life is linked.
#[test]
fn a_process_that_is_gone_is_told_apart_from_a_lost_connection() {
    for (name, other) in [("a", "b"), ("b", "a")] {
        let (one, two, mut clock) = pair();
        let (mut gone, mut left) = if name == "a" { (one, two) } else { (two, one) };
        // A lost connection alone says nothing.
        left.mesh.disconnect(&member(name), clock.0);
        clock.until(&mut [&mut gone, &mut left], |both| {
            both[1].came.len() > 2 && both[1].is_linked(name)
        });
        let unlinked = MeshEvent::Unlinked { peer: member(name) };
        assert!(left.came.contains(&unlinked));
        let is_gone = |event: &MeshEvent| matches!(event, MeshEvent::Gone { .. });
        assert!(!left.came.iter().any(is_gone), "{:?}", left.came);

        drop(gone);
        clock.until(&mut [&mut left], |one| one[0].came.iter().any(is_gone));
        assert_eq!(
            left.came.last(),
            Some(&MeshEvent::Gone { peer: member(name) })
        );
        assert!(!left.is_linked(name), "{other} has no link");
        let count = left.came.len();
        for _ in 0..500 {
            clock.step(&mut [&mut left]);
        }
        assert_eq!(left.came.len(), count, "it is said once");
    }
}

#[test]
fn a_new_life_takes_the_place_of_the_old_one() {
    let ((at_a, a), (at_b, b)) = (listener(), listener());
    let again = at_b.try_clone().unwrap();
    let peers = [("b", b.to_string())];
    let mut one = One::new(hello("a"), at_a, &peers, None);
    let peers = [("a", a.to_string())];
    let mut two = One::new(hello("b"), at_b, &peers, None);
    let mut clock = Clock::default();
    clock.until(&mut [&mut one, &mut two], |both| {
        both[0].is_linked("b") && both[1].is_linked("a")
    });
    drop(two);
    let mut life = hello("b");
    life.starts = Starts(2);
    let mut two = One::new(life, again, &peers, None);
    one.came.clear();
    clock.until(&mut [&mut one, &mut two], |both| {
        both[0].is_linked("b") && both[1].is_linked("a")
    });
    let (peer, starts) = (member("b"), Starts(2));
    let wanted = [
        MeshEvent::Unlinked { peer: peer.clone() },
        MeshEvent::Linked { peer, starts },
    ];
    assert_eq!(one.came, wanted);
}

#[test]
fn a_wrong_peer_is_refused_and_not_dialled_again_at_once() {
    let ((at_a, _), (at_b, b)) = (listener(), listener());
    let mut one = One::new(hello("a"), at_a, &[("b", b.to_string())], None);
    let mut other = hello("b");
    other.cluster = node("bonn");
    let mut two = One::new(other, at_b, &[("a", "127.0.0.1:1".to_owned())], None);
    let mut clock = Clock::default();
    clock.until(&mut [&mut one, &mut two], |both| {
        both[0].mesh.reason(&node("b")).is_some()
    });
    let reason = one.mesh.reason(&node("b")).unwrap().to_string();
    assert!(
        reason.contains("is of cluster bonn, this node is of berlin"),
        "{reason}"
    );
    let due = one.mesh.deadline_ms().unwrap();
    assert!(due > clock.0 + 20_000, "{due} at {}", clock.0);
    assert!(one.came.is_empty() && two.came.is_empty());
}

#[test]
fn strangers_take_little_and_are_closed() {
    let (at_a, a) = listener();
    let mut one = One::new(hello("a"), at_a, &[("b", "127.0.0.1:1".to_owned())], None);
    let mut clock = Clock::default();
    let is_closed = |stream: &mut TcpStream| {
        stream.set_nonblocking(true).unwrap();
        let mut buffer = [0; 4096];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
            }
        }
    };
    let mut http = TcpStream::connect(a).unwrap();
    http.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    for _ in 0..20 {
        clock.step(&mut [&mut one]);
    }
    assert!(is_closed(&mut http));

    let mut silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(a).unwrap()).collect();
    for _ in 0..20 {
        clock.step(&mut [&mut one]);
    }
    let closed = silent
        .iter_mut()
        .filter_map(|one| is_closed(one).then_some(()))
        .count();
    assert_eq!(closed, 4, "the oldest beyond sixteen");
    clock.0 += HELLO_MS;
    clock.step(&mut [&mut one]);
    assert!(silent.iter_mut().all(is_closed));
    assert!(one.came.is_empty());
}

/// Nodes are found while they run, and may come back at another address.
#[test]
fn a_node_that_is_known_later_is_linked_and_again_where_it_has_moved_to() {
    let ((at_a, _), (at_b, b)) = (listener(), listener());
    let mut one = One::new(hello("a"), at_a, &[], None);
    let mut two = One::new(hello("b"), at_b, &[], None);
    two.mesh.know(&node("a"), "127.0.0.1:1");
    one.mesh.know(&node("a"), "127.0.0.1:1");
    one.mesh.know(&node("b"), &b.to_string());
    let mut clock = Clock::default();
    let is_linked = |both: &[&mut One]| both[0].is_linked("b") && both[1].is_linked("a");
    clock.until(&mut [&mut one, &mut two], is_linked);
    assert!(one.mesh.is_linked(&node("b")) && !one.mesh.is_linked(&node("a")));
    drop(two);
    clock.until(&mut [&mut one], |all| !all[0].is_linked("b"));
    let (at_b, b) = listener();
    let mut two = One::new(hello("b"), at_b, &[], None);
    two.mesh.know(&node("a"), "127.0.0.1:1");
    one.mesh.know(&node("b"), &b.to_string());
    clock.until(&mut [&mut one, &mut two], is_linked);
}

/// A process closes its sockets one after the other when it ends.
#[test]
fn a_process_that_still_takes_connections_while_it_ends_is_found_to_be_gone() {
    let ((at_a, a), (at_b, b)) = (listener(), listener());
    let held = at_a.try_clone().unwrap();
    let mut one = One::new(hello("a"), at_a, &[("b", b.to_string())], None);
    let mut two = One::new(hello("b"), at_b, &[("a", a.to_string())], None);
    let mut clock = Clock::default();
    clock.until(&mut [&mut one, &mut two], |both| {
        both[0].is_linked("b") && both[1].is_linked("a")
    });
    drop(one);
    clock.until(&mut [&mut two], |all| !all[0].is_linked("a"));
    // The first attempt, in the turn that has seen the end of the link.
    held.set_nonblocking(false).unwrap();
    held.accept().unwrap();
    drop(held);
    let gone = MeshEvent::Gone { peer: member("a") };
    clock.until(&mut [&mut two], |all| all[0].came.contains(&gone));
}

/// A read that gives less than it could is the last one, unless the end of the stream is behind it.
#[test]
fn the_end_of_a_link_that_comes_with_its_last_frame_is_seen() {
    let (mut one, mut two, mut clock) = pair();
    one.mesh.send(&member("b"), SHARD, resign(7), clock.0);
    one.mesh.flush(clock.0, |_| None);
    drop(one);
    clock.until(&mut [&mut two], |all| !all[0].is_linked("a"));
    assert_eq!(two.frames(), [&resign(7)]);
}
