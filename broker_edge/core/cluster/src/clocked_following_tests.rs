//! A follower with a clock: when it asks about its leader, and when it takes over.

use super::*;

/// Of a leader of epoch 1.
fn beacon(is_stuck: bool) -> Event {
    let (epoch, sent_ms, told) = (Epoch(1), 77, vec![]);
    let frame = Frame::Beacon {
        epoch,
        sent_ms,
        is_stuck,
        told,
    };
    from(2, frame)
}

/// Etcd tells the key of epoch 1.
fn key(leader: Option<Leader>) -> Event {
    let all: BTreeSet<_> = [1, 2, 3].map(member).into();
    let key = ShardKey {
        replicas: all.clone(),
        leader,
        epoch: Epoch(1),
        in_sync: all,
        committed: 0,
    };
    Event::Key {
        revision: Revision(2),
        key,
        was_read: false,
    }
}

/// It has had the first beacon of member 2, and knows that this one leads in epoch 1.
fn follower(now_ms: u64, reaches_etcd: bool) -> (Clocked, Vec<Effect>) {
    let mut clocked = started(now_ms - 100);
    let effects = clocked.handle(beacon(false), now_ms, reaches_etcd);
    stand(&mut clocked, &effects, now_ms);
    let _ = clocked.handle(key(None), now_ms, true);
    (clocked, effects)
}

fn asks(effects: &[Effect]) -> usize {
    let is_ask = |effect: &&Effect| {
        matches!(
            effect,
            Effect::Send {
                frame: Frame::Ask { .. },
                ..
            }
        )
    };
    effects.iter().filter(is_ask).count()
}

fn answer(reaches_etcd: bool) -> Effect {
    let (epoch, sent_ms) = (Epoch(1), 77);
    let frame = Frame::BeaconAnswer {
        epoch,
        sent_ms,
        reaches_etcd,
    };
    let to = member(2);
    Effect::Send { to, frame }
}

#[test]
fn a_follower_answers_beacons_and_asks_when_they_stop() {
    let (mut clocked, effects) = follower(1_100, false);
    assert!(effects.contains(&answer(false)), "{effects:?}");
    assert_eq!(asks(&clocked.tick(1_100 + lease::GRACE_MS - 1, true)), 0);
    assert_eq!(asks(&clocked.tick(1_100 + lease::GRACE_MS, true)), 2);
    // Nobody answers: alone, it writes the set as it is.
    let effects = clocked.tick(1_100 + lease::GRACE_MS + ROUND_MS, true);
    assert_eq!(sets(&effects), [3]);
}

/// Who reaches etcd can do what the leader cannot; nobody else asks.
#[test]
fn a_follower_that_reaches_etcd_asks_about_a_leader_that_is_stuck() {
    for (reaches_etcd, asked) in [(true, 2), (false, 0)] {
        let (mut clocked, _) = follower(1_100, true);
        for at in [1_600, 2_100, 2_600, 3_100, 3_600, 4_100, 4_600] {
            let effects = clocked.handle(beacon(true), at, reaches_etcd);
            assert_eq!(effects, [answer(reaches_etcd)]);
        }
        let at = 1_100 + lease::GRACE_MS;
        assert_eq!(asks(&clocked.tick(at, reaches_etcd)), asked);
        // It is asked about until it serves again.
        let _ = clocked.handle(beacon(true), at + 10, reaches_etcd);
        assert_eq!(clocked.shard().hears().is_some(), !reaches_etcd);
        let _ = clocked.handle(beacon(false), at + 20, reaches_etcd);
        assert!(clocked.shard().hears().is_some());
    }
}

/// It does not reach etcd itself, but who asks may.
#[test]
fn a_follower_does_not_say_that_a_leader_leads_which_is_stuck_for_longer_than_the_grace() {
    let (mut clocked, _) = follower(1_100, false);
    let mut said = |is_stuck: bool, at: u64| {
        let _ = clocked.handle(beacon(is_stuck), at, false);
        let (epoch, number, leader_resigned) = (Epoch(1), FollowNumber(at), false);
        let frame = Frame::Ask {
            epoch,
            number,
            leader_resigned,
        };
        let effects = clocked.handle(from(3, frame), at, false);
        let said = effects.iter().find_map(|effect| match effect {
            Effect::Send {
                frame: Frame::Answer { still_led, .. },
                ..
            } => Some(*still_led),
            _ => None,
        });
        said.expect("an answer")
    };
    assert!(said(true, 2_000));
    assert!(said(true, 1_999 + lease::GRACE_MS));
    assert!(!said(true, 2_000 + lease::GRACE_MS));
    // It serves again, and is stuck from anew.
    assert!(said(false, 7_000));
    assert!(said(true, 7_500));
    assert!(said(true, 7_499 + lease::GRACE_MS));
}

/// Member 2 leads, is stuck and has the longest log; it answers that it does not serve.
#[test]
fn a_follower_defers_twice_to_a_longer_log_that_does_not_take_over() {
    let (mut clocked, _) = follower(1_100, true);
    let mut now_ms = 1_100 + lease::GRACE_MS;
    let mut effects = clocked.tick(now_ms, true);
    for round in 1..=3 {
        let number = effects.iter().find_map(|effect| match effect {
            Effect::Send {
                frame: Frame::Ask { number, .. },
                ..
            } => Some(*number),
            _ => None,
        });
        let number = number.expect("it asks");
        for (of, end) in [(3, 0), (2, 9)] {
            let frame = Frame::Answer {
                epoch: Epoch(1),
                number,
                trust: Trust::Sound,
                still_led: false,
                marks: vec![(Epoch(1), Offset(end))],
            };
            effects = clocked.handle(from(of, frame), now_ms, true);
        }
        let sets = sets(&effects);
        match round {
            3 => assert_eq!(sets, [3], "it takes over with all that answered"),
            _ => assert!(sets.is_empty(), "round {round}: {effects:?}"),
        }
        now_ms += RETRY_MS;
        effects = clocked.tick(now_ms, true);
    }
}

fn follows(effects: &[Effect]) -> usize {
    let is_follow = |effect: &&Effect| {
        let Effect::Send { frame, .. } = effect else {
            return false;
        };
        matches!(frame, Frame::Follow { .. })
    };
    effects.iter().filter(is_follow).count()
}

/// It learns from etcd who leads, and asks before the other one has opened its epoch.
#[test]
fn a_follower_asks_again_when_its_leader_is_heard_for_the_first_time() {
    let mut clocked = started(1_000);
    let leader = Leader {
        member: member(2),
        starts: Starts(1),
    };
    let effects = clocked.handle(key(Some(leader)), 1_000, true);
    let effects = stand(&mut clocked, &effects, 1_000);
    assert_eq!(follows(&effects), 1);
    assert_eq!(follows(&clocked.handle(beacon(false), 1_010, true)), 1);
    assert_eq!(follows(&clocked.handle(beacon(false), 1_020, true)), 0);
}
