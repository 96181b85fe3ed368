use super::*;
use crate::divergence::History;
use crate::frames::FollowPart;
use crate::key::{Leader, Revision, ShardKey};
use crate::marks::{DiskId, Epoch, FollowNumber, Node, PartitionId, ShardId, Stamp, Starts, Trust};
use crate::replica_file::ReplicaFile;
use crate::rules::Rules;
use crate::shard::{CasOutcome, Held, Office};

#[path = "clocked_following_tests.rs"]
mod following;

fn member(number: u8) -> Member {
    Member {
        node: Node::new(&format!("n{number}")).expect("a name"),
        disk: DiskId(number.into()),
    }
}

fn held(end: u64) -> Held {
    Held {
        log_start: Offset(0),
        end: Offset(end),
        synced: Offset(end),
        high_watermark: Offset(0),
        history: History::default(),
    }
}

/// A sound replica of members 1, 2 and 3 that has read a key without a leader.
fn started(now_ms: u64) -> Clocked {
    let place = Place {
        log_id: [7; 16],
        shard: ShardId(0),
        me: member(1),
        starts: Starts(1),
        partitions: vec![PartitionId(0)],
        min_in_sync: 2,
        credit_bytes: 1000,
        rules: Rules::default(),
    };
    let file = ReplicaFile {
        log_id: [7; 16],
        disk: DiskId(1),
        shard: ShardId(0),
        epoch: Epoch(0),
        trust: Trust::Sound,
        starts: Starts(1),
        stopped_cleanly: true,
        hints: vec![],
    };
    let found = Found {
        file: Some(file),
        stopped_cleanly: true,
        is_damaged: false,
        partitions: vec![held(0)],
    };
    let (mut clocked, _) = Clocked::start(Arc::new(place), found, now_ms);
    for peer in [member(2), member(3)] {
        let starts = Starts(1);
        let _ = clocked.handle(Event::Linked { peer, starts }, now_ms, true);
    }
    let all: BTreeSet<_> = [1, 2, 3].map(member).into();
    let key = ShardKey {
        replicas: all.clone(),
        leader: None,
        epoch: Epoch(0),
        in_sync: all,
        committed: 0,
    };
    let revision = Revision(1);
    let was_read = true;
    let _ = clocked.handle(
        Event::Key {
            revision,
            key,
            was_read,
        },
        now_ms,
        true,
    );
    clocked
}

fn stand(clocked: &mut Clocked, effects: &[Effect], now_ms: u64) -> Vec<Effect> {
    let number = effects.iter().find_map(|effect| match effect {
        Effect::Stand { number, .. } => Some(*number),
        _ => None,
    });
    let number = number.expect("the log is to stand");
    let partitions = vec![held(0)];
    clocked.handle(Event::Stood { number, partitions }, now_ms, true)
}

/// A leader of epoch 1 that serves, since `now_ms`. Both followers have answered its first beacon.
fn leader(now_ms: u64) -> Clocked {
    let mut clocked = started(now_ms - ROUND_MS);
    let effects = clocked.tick(now_ms, true);
    assert!(matches!(effects[..], [Effect::Cas { .. }]), "{effects:?}");
    let effects = clocked.handle(Event::Cas(CasOutcome::Done(Revision(2))), now_ms, true);
    stand(&mut clocked, &effects, now_ms);
    for number in [2, 3] {
        follow(&mut clocked, number, now_ms);
        synced(&mut clocked, number, 0, now_ms);
    }
    clocked
}

const STAMP: Stamp = Stamp {
    epoch: Epoch(1),
    starts: Starts(1),
    follow: FollowNumber(1),
};

fn from(number: u8, frame: Frame) -> Event {
    let from = member(number);
    Event::Frame { from, frame }
}

fn follow(clocked: &mut Clocked, number: u8, now_ms: u64) {
    let part = FollowPart {
        log_start: Offset(0),
        end: Offset(0),
        history: History::default(),
    };
    let frame = Frame::Follow {
        stamp: STAMP,
        trust: Trust::Sound,
        credit_bytes: 9,
        parts: vec![part],
    };
    let _ = clocked.handle(from(number, frame), now_ms, true);
}

fn synced(clocked: &mut Clocked, number: u8, to: u64, now_ms: u64) -> Vec<Effect> {
    let frame = Frame::Synced {
        stamp: STAMP,
        has_room: true,
        credit_bytes: 0,
        parts: vec![(PartitionId(0), Offset(to))],
    };
    clocked.handle(from(number, frame), now_ms, true)
}

fn answered(clocked: &mut Clocked, number: u8, sent_ms: u64, now_ms: u64) -> Vec<Effect> {
    let frame = Frame::BeaconAnswer {
        epoch: Epoch(1),
        sent_ms,
        reaches_etcd: true,
    };
    clocked.handle(from(number, frame), now_ms, true)
}

/// The sets of the keys that are to be written.
fn sets(effects: &[Effect]) -> Vec<usize> {
    let size = |effect: &Effect| match effect {
        Effect::Cas { key, .. } => Some(key.in_sync.len()),
        _ => None,
    };
    effects.iter().filter_map(size).collect()
}

#[test]
fn a_leader_beacons_with_its_clock_and_is_due_again_500_ms_later() {
    let mut clocked = leader(10_000);
    assert_eq!(clocked.deadline_ms(10_000), Some(10_500));
    let effects = clocked.tick(10_500, true);
    let sent = effects.iter().filter_map(|effect| match effect {
        Effect::Send {
            frame: Frame::Beacon { sent_ms, .. },
            ..
        } => Some(*sent_ms),
        _ => None,
    });
    assert_eq!(sent.collect::<Vec<_>>(), [10_500, 10_500]);
    assert_eq!(clocked.deadline_ms(10_500), Some(11_000));
    assert!(clocked.tick(10_999, true).is_empty());
}

#[test]
fn a_silent_member_stops_the_office_and_leaves_the_set() {
    let mut clocked = leader(10_000);
    answered(&mut clocked, 2, 12_000, 12_100);
    let before = clocked.tick(12_999, true);
    assert!(!before.contains(&Effect::Office(Office::Pause)));
    let effects = clocked.tick(13_000, true);
    assert!(
        effects.contains(&Effect::Office(Office::Pause)),
        "{effects:?}"
    );
    assert_eq!(sets(&effects), [2]);
    // It is gone from the set: nobody waits for it, and the leader serves again.
    let effects = clocked.handle(Event::Cas(CasOutcome::Done(Revision(3))), 13_100, true);
    let open = Effect::Office(Office::Open { epoch: Epoch(1) });
    assert!(effects.contains(&open), "{effects:?}");
    assert_eq!(clocked.shard().waits_for(), [member(2)].into());
    // At the minimum nobody can leave: the office waits for the lease.
    let effects = clocked.tick(15_000, true);
    assert!(
        effects.contains(&Effect::Office(Office::Pause)),
        "{effects:?}"
    );
    assert!(sets(&effects).is_empty());
    let effects = answered(&mut clocked, 2, 15_000, 15_010);
    assert!(effects.contains(&open), "{effects:?}");
}

#[test]
fn a_member_whose_process_is_gone_leaves_the_set_at_once_unless_it_is_back() {
    let mut clocked = leader(10_000);
    let peer = member(3);
    let gone = Event::Gone { peer: peer.clone() };
    let of_earlier_life = clocked.handle(gone.clone(), 10_001, true);
    assert!(sets(&of_earlier_life).is_empty(), "it is linked");
    let _ = clocked.handle(Event::Unlinked { peer }, 10_002, true);
    assert_eq!(sets(&clocked.handle(gone, 10_003, true)), [2]);
}

#[test]
fn a_leader_knows_how_far_each_follower_is() {
    let mut clocked = leader(10_000);
    let written = Event::Written {
        partition: 0,
        end: Offset(5),
        epochs: vec![(Epoch(1), Offset(0))],
    };
    let _ = clocked.handle(written, 10_001, true);
    synced(&mut clocked, 2, 3, 10_002);
    let lag = |number| clocked.shard().lag(&member(number));
    assert_eq!([lag(2), lag(3)], [Some(2), Some(5)]);
    assert_eq!(started(1).shard().lag(&member(2)), None);
}

#[test]
fn a_lagging_member_leaves_and_comes_back_after_a_time_that_doubles() {
    let mut clocked = leader(10_000);
    let keep = |clocked: &mut Clocked, now_ms: u64| {
        for number in [2, 3] {
            answered(clocked, number, now_ms, now_ms);
        }
    };
    let mut now_ms = 10_000;
    let mut revision = 2;
    for (round, held_back_ms) in [10_000, 20_000].into_iter().enumerate() {
        let end = Offset(10 * (round as u64 + 1));
        let epochs = vec![];
        let partition = 0;
        let _ = clocked.handle(
            Event::Written {
                partition,
                end,
                epochs,
            },
            now_ms,
            true,
        );
        let _ = clocked.handle(Event::Synced { partition, to: end }, now_ms, true);
        synced(&mut clocked, 2, end.0, now_ms);
        now_ms += LAG_MS - 1;
        keep(&mut clocked, now_ms);
        assert!(sets(&clocked.tick(now_ms, true)).is_empty());
        now_ms += 1;
        assert_eq!(sets(&clocked.tick(now_ms, true)), [2], "round {round}");
        revision += 1;
        let done = Event::Cas(CasOutcome::Done(Revision(revision)));
        let _ = clocked.handle(done, now_ms, true);
        // It has caught up at once. That the set is at its minimum would let it back, so a fourth is not needed here.
        let effects = synced(&mut clocked, 3, end.0, now_ms);
        assert_eq!(sets(&effects), [3], "at the minimum it need not wait");
        revision += 1;
        let done = Event::Cas(CasOutcome::Done(Revision(revision)));
        let _ = clocked.handle(done, now_ms, true);
        let until = clocked.deadlines_ms.get(&Timer::HoldBack(member(3)));
        assert_eq!(until, Some(&(now_ms + held_back_ms)));
    }
}

#[test]
fn a_leader_that_a_member_does_not_answer_says_that_it_is_stuck() {
    for (answers, is_stuck) in [(2, true), (3, false)] {
        let mut clocked = leader(10_000);
        for number in 2..=answers {
            answered(&mut clocked, number, 12_000, 12_100);
        }
        let effects = clocked.tick(13_000, true);
        let said = effects.iter().filter_map(|effect| match effect {
            Effect::Send {
                frame: Frame::Beacon { is_stuck, .. },
                ..
            } => Some(*is_stuck),
            _ => None,
        });
        let said: Vec<_> = said.collect();
        assert_eq!(said.last(), Some(&is_stuck), "{effects:?}");
    }
}

#[test]
fn a_leader_hands_over_to_a_follower_that_has_everything() {
    let mut clocked = leader(10_000);
    let effects = clocked.handle(Event::HandOver { to: member(2) }, 10_100, true);
    assert!(
        effects.contains(&Effect::Office(Office::Pause)),
        "{effects:?}"
    );
    let key = effects.iter().find_map(|effect| match effect {
        Effect::Cas { key, .. } => Some(key),
        _ => None,
    });
    let key = key.expect("a key that names the successor");
    let leader = key.leader.as_ref().map(|leader| leader.member.clone());
    assert_eq!((leader, key.epoch), (Some(member(2)), Epoch(2)));
    let effects = clocked.handle(Event::Cas(CasOutcome::Done(Revision(3))), 10_200, true);
    assert!(
        effects.contains(&Effect::Office(Office::Close)),
        "{effects:?}"
    );
    assert!(
        effects.contains(&Effect::LeaderIs(Some(member(2)))),
        "{effects:?}"
    );
    assert_eq!(clocked.shard().epoch(), Epoch(2));
}

#[test]
fn a_leader_goes_on_when_its_successor_does_not_get_ready() {
    let mut clocked = leader(10_000);
    let (partition, end, epochs) = (0, Offset(5), vec![(Epoch(1), Offset(0))]);
    let _ = clocked.handle(
        Event::Written {
            partition,
            end,
            epochs,
        },
        10_000,
        true,
    );
    let effects = clocked.handle(Event::HandOver { to: member(2) }, 10_100, true);
    assert!(
        effects.contains(&Effect::Office(Office::Pause)),
        "{effects:?}"
    );
    assert!(sets(&effects).is_empty(), "it lacks records");
    for number in [2, 3] {
        synced(&mut clocked, number, 3, 11_000);
        answered(&mut clocked, number, 11_000, 11_000);
    }
    let open = Effect::Office(Office::Open { epoch: Epoch(1) });
    assert!(
        !clocked
            .tick(10_100 + HAND_OVER_MS - 1, true)
            .contains(&open)
    );
    assert!(clocked.tick(10_100 + HAND_OVER_MS, true).contains(&open));
}

#[test]
fn a_leader_that_slept_does_not_serve_before_it_has_looked_at_its_lease() {
    let mut clocked = leader(10_000);
    synced(&mut clocked, 3, 0, 10_000);
    let _ = clocked.handle(
        Event::Written {
            partition: 0,
            end: Offset(1),
            epochs: vec![(Epoch(1), Offset(0))],
        },
        10_000,
        true,
    );
    let effects = clocked.handle(Event::HandOver { to: member(2) }, 10_000, true);
    assert!(effects.contains(&Effect::Office(Office::Pause)));
    let is_open = |effect: &Effect| matches!(effect, Effect::Office(Office::Open { .. }));
    let effects = clocked.tick(20_000, true);
    assert!(!effects.iter().any(is_open), "{effects:?}");
}

#[test]
fn only_a_read_that_was_asked_for_later_shows_that_etcd_went_back() {
    let mut clocked = started(1_000);
    let _ = clocked.tick(1_000 + ROUND_MS, true);
    let asked = |epoch: u64| {
        let frame = Frame::Ask {
            epoch: Epoch(epoch),
            number: FollowNumber(1),
            leader_resigned: false,
        };
        from(2, frame)
    };
    let read = |clocked: &mut Clocked| {
        let key = ShardKey {
            replicas: [member(1)].into(),
            leader: None,
            epoch: Epoch(0),
            in_sync: [member(1)].into(),
            committed: 0,
        };
        let event = Event::Key {
            revision: Revision(1),
            key,
            was_read: true,
        };
        let effects = clocked.handle(event, 2_000, true);
        let alarms = effects.iter();
        alarms.filter(|one| matches!(one, Effect::Alarm(_))).count()
    };
    let effects = clocked.handle(Event::Cas(CasOutcome::Unknown), 2_000, true);
    assert!(effects.contains(&Effect::ReadKey), "in epoch 0");
    let _ = clocked.handle(asked(3), 2_000, true);
    assert_eq!(read(&mut clocked), 0);
    let _ = clocked.handle(asked(4), 2_000, true);
    assert_eq!(read(&mut clocked), 1);
}
