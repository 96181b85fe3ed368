//! A replica is cut where its leader differs, and loses nothing else by that.

use super::*;
use headwater_log::{Epoch, LogConfig, Offset, PartitionState, ReplicaError};

#[test]
fn a_cut_removes_what_is_not_committed_and_nothing_else() {
    let (one, two) = (SimFiles::new(7), SimFiles::new(8));
    let [(_a, leader), (log, follower)] = pair([&one, &two], &["a", "b", "c", "d"]);
    follower.commit_to(Offset(2));
    let below = follower.truncate(Offset(1));
    assert!(
        matches!(below, Err(ReplicaError::NoCut { .. })),
        "{below:?}"
    );
    let above = follower.truncate(Offset(5));
    assert!(matches!(above, Err(ReplicaError::NoCut { .. })));
    let leading = leader.truncate(Offset(3));
    assert!(matches!(leading, Err(ReplicaError::WrongEpoch { .. })));
    assert_eq!(
        follower.truncate(Offset(4)),
        Ok(()),
        "nothing is behind the end"
    );
    assert_eq!(follower.truncate(Offset(3)), Ok(()));
    assert_eq!(
        (follower.written(), follower.synced()),
        (Offset(3), Offset(3))
    );
    assert_eq!(follower.next_offset(), Offset(3));
    assert_eq!(committed(&follower), ["a", "b"]);
    follower.lead(Epoch(3)).expect("it leads");
    append_synced(&follower, &["x", "y"]);
    assert_eq!(epochs(&follower), [(2, 0), (3, 3)]);
    follower.commit_to(Offset(5));
    assert_eq!(committed(&follower), ["a", "b", "c", "x", "y"]);
    drop((log, follower));
    let (_log, follower) = start(&two, 0, 3);
    assert_eq!(payloads(&uncommitted(&follower)), ["a", "b", "c", "x", "y"]);
    assert_eq!(follower.gaps(), []);
}

/// Reads from the files go on with the old file, or the new one, but never with bytes that were cut.
#[test]
fn readers_from_files_see_what_is_committed_before_and_after_a_cut() {
    let two = SimFiles::new(9);
    let settings = LogConfig {
        tail_bytes: 0,
        ..settings(0, 0)
    };
    let log = open_with(settings, two.seams());
    let follower = log.partitions()[0].clone();
    follower.lead(Epoch(2)).expect("it leads");
    append_synced(&follower, &["a", "b", "c"]);
    follower.commit_to(Offset(1));
    follower.follow(Epoch(3)).expect("it follows");
    // The file is open for readers from here on.
    assert_eq!(committed(&follower), ["a"]);
    follower.truncate(Offset(1)).expect("it is not committed");
    follower.lead(Epoch(4)).expect("it leads");
    append_synced(&follower, &["x", "y", "z"]);
    follower.commit_to(Offset(4));
    assert_eq!(committed(&follower), ["a", "x", "y", "z"]);
}

#[test]
fn keys_of_records_are_known_at_the_next_leader_and_forgotten_with_what_is_cut() {
    let (one, two) = (SimFiles::new(12), SimFiles::new(13));
    let [(_a, leader), (_b, follower)] = pair([&one, &two], &[]);
    let first = leader.append_unique(keyed("k1", b"one")).expect("queued")[0];
    // In batches of their own.
    await_that("the sync", || leader.synced() == Offset(1));
    leader.append_unique(keyed("k2", b"two")).expect("queued");
    await_that("the sync", || leader.synced() == Offset(2));
    assert!(leader.append_unique(keyed("k2", b"two")).expect("known")[0].duplicate);
    take_synced(&follower, 2, &uncommitted(&leader));
    follower.commit_to(Offset(1));
    follower.truncate(Offset(1)).expect("it is not committed");
    follower.lead(Epoch(3)).expect("it leads");
    let known = follower.append_unique(keyed("k1", b"one")).expect("known")[0];
    assert_eq!((known.offset, known.duplicate), (first.offset, true));
    let again = follower.append_unique(keyed("k2", b"two")).expect("queued")[0];
    assert_eq!((again.offset, again.duplicate), (Offset(1), false));
    // The old leader learns from the new one that the second key has another record now.
    await_that("the sync", || follower.synced() == Offset(2));
    leader.follow(Epoch(3)).expect("it follows");
    leader.truncate(Offset(1)).expect("it is not committed");
    take_synced(&leader, 3, &uncommitted(&follower)[0..]);
    leader.commit_to(Offset(2));
    leader.lead(Epoch(4)).expect("it leads");
    let known = leader.append_unique(keyed("k2", b"two")).expect("known")[0];
    assert_eq!((known.offset, known.duplicate), (Offset(1), true));
}

/// Wherever the power fails during a cut, what was committed is there, what is left is a beginning of what was, and no
/// batch that was cut comes back behind the ones that follow.
#[test]
fn a_cut_that_a_power_failure_ends_was_made_or_not() {
    let mut calls = 0;
    for nth in 1.. {
        let files = SimFiles::new(100 + nth);
        let (log, follower) = start(&files, 0, 0);
        follower.lead(Epoch(2)).expect("it leads");
        append_synced(&follower, &["a", "b", "c", "d"]);
        follower.commit_to(Offset(2));
        follower.follow(Epoch(3)).expect("it follows");
        files.cut_before(nth);
        let cut = follower.truncate(Offset(3));
        let was_off = files.is_off();
        if !was_off {
            files.cancel_cut();
        }
        files.power_cut();
        drop((log, follower));
        let (_log, again) = start(&files, 2, 3);
        let found = written(&again);
        assert!(
            found == ["a", "b", "c"] || found == ["a", "b", "c", "d"],
            "{found:?}"
        );
        assert!(cut.is_err() || found.len() == 3, "it said that it was cut");
        assert_eq!((again.gaps(), again.high_watermark()), (vec![], Offset(2)));
        if again.written() > Offset(3) {
            again.truncate(Offset(3)).expect("it is not committed");
        }
        again.lead(Epoch(4)).expect("it leads");
        append_synced(&again, &["x"]);
        assert_eq!(written(&again), ["a", "b", "c", "x"]);
        calls = nth;
        if !was_off {
            break;
        }
    }
    assert!(calls > 5, "the power failed in each of {calls} places");
}

#[test]
fn a_cut_that_fails_stops_the_replica_and_one_without_space_can_be_tried_again() {
    let files = SimFiles::new(15);
    let (log, follower) = start(&files, 0, 0);
    follower.lead(Epoch(2)).expect("it leads");
    append_synced(&follower, &["a", "b"]);
    follower.follow(Epoch(3)).expect("it follows");
    files.set_free(Some(0));
    let full = follower.truncate(Offset(1));
    assert!(matches!(full, Err(ReplicaError::Later { .. })), "{full:?}");
    assert_eq!(written(&follower), ["a", "b"]);
    files.set_free(None);
    files.fail_syncs(true);
    let failed = follower.truncate(Offset(1));
    assert!(
        matches!(failed, Err(ReplicaError::ReadOnly { .. })),
        "{failed:?}"
    );
    assert!(matches!(follower.state(), PartitionState::Stopped(_)));
    let stopped = follower.lead(Epoch(4));
    assert!(matches!(stopped, Err(ReplicaError::ReadOnly { .. })));
    drop((log, follower));
    files.kill();
    let (_log, again) = start(&files, 0, 3);
    assert_eq!(written(&again), ["a", "b"]);
}
