//! A replica without threads: its writer has a turn when the test says so.

use super::*;
use headwater_log::SyncMode;
use std::time::Duration;

fn stepped(files: &SimFiles, sync: SyncMode) -> (Log, Partition) {
    let config = LogConfig {
        has_writers: false,
        sync,
        ..settings(0, 0)
    };
    let log = open_with(config, files.seams());
    let partition = log.partitions()[0].clone();
    (log, partition)
}

fn append(partition: &Partition, payload: &str) {
    partition.append(records(1, &[payload])).expect("queued");
}

#[test]
fn without_threads_a_turn_writes_what_is_queued_and_the_shutdown_writes_the_rest() {
    let files = SimFiles::new(31);
    let (log, partition) = stepped(&files, SyncMode::Always);
    partition.lead(Epoch(2)).expect("it leads");
    append(&partition, "a");
    assert_eq!(partition.written(), Offset(0));
    assert!(partition.work());
    assert_eq!(
        (partition.written(), partition.synced()),
        (Offset(1), Offset(1))
    );
    assert!(!partition.work(), "there is nothing to do");
    append(&partition, "b");
    log.shutdown();
    drop((log, partition));
    files.power_cut();
    let (_log, again) = start(&files, 0, 2);
    assert_eq!(written(&again), ["a", "b"]);
}

#[test]
fn without_threads_a_turn_that_finds_nothing_to_write_syncs_what_waits_for_its_interval() {
    let files = SimFiles::new(32);
    let hour = Duration::from_secs(3600);
    let (_log, partition) = stepped(&files, SyncMode::Interval(hour));
    partition.lead(Epoch(2)).expect("it leads");
    append(&partition, "a");
    assert!(partition.work());
    assert_eq!(
        (partition.written(), partition.synced()),
        (Offset(1), Offset(0))
    );
    assert!(partition.work());
    assert_eq!(partition.synced(), Offset(1));
}

/// A follower that has one record, and could not write a second one for want of space.
fn full_follower(seed: u64) -> (SimFiles, Log, Partition) {
    let (of_leader, files) = (SimFiles::new(seed), SimFiles::new(seed + 1));
    let (_leading, leader) = start(&of_leader, 0, 0);
    leader.lead(Epoch(2)).expect("it leads");
    let large = "x".repeat(40 << 10);
    append_synced(&leader, &[&large]);
    leader.commit_to(Offset(1));
    append_synced(&leader, &[&large]);
    let (log, follower) = stepped(&files, SyncMode::Always);
    follower.follow(Epoch(2)).expect("it follows");
    let mut batches = leader.read(Offset(0), usize::MAX).expect("it is there");
    batches.extend(uncommitted(&leader));
    take(&follower, 2, &batches[..1]).expect("it fits");
    assert!(follower.work() && follower.has_room());
    follower.commit_to(Offset(1));
    files.set_free(Some(0));
    take(&follower, 2, &batches[1..]).expect("it fits");
    assert!(!follower.work(), "a new segment has no space");
    assert!(!follower.has_room());
    assert_eq!(follower.written(), Offset(1));
    (files, log, follower)
}

#[test]
fn a_follower_on_a_full_disk_says_so_and_writes_what_it_took_once_there_is_space() {
    let (files, _log, follower) = full_follower(33);
    files.set_free(None);
    assert!(follower.work() && follower.has_room());
    assert_eq!(follower.synced(), Offset(2));
}

/// Else it would say so for ever where nothing else is written, and nobody would count on it again.
#[test]
fn a_disk_does_not_count_as_full_when_nothing_waits_for_space_any_more() {
    let (_files, _log, follower) = full_follower(36);
    follower.follow(Epoch(3)).expect("it follows");
    assert!(follower.has_room());
    assert!(!follower.work(), "what it took is dropped");
    assert!(follower.has_room());
}

#[test]
fn a_replica_that_has_lost_what_its_epoch_was_goes_on_in_that_of_its_newest_batch() {
    let files = SimFiles::new(35);
    let (log, leader) = start(&files, 0, 0);
    leader.lead(Epoch(7)).expect("it leads");
    append_synced(&leader, &["a"]);
    drop((log, leader));
    let (_log, again) = start(&files, 0, 0);
    assert_eq!(
        (again.epoch(), written(&again)),
        (Epoch(7), vec!["a".to_owned()])
    );
    let older = again.follow(Epoch(6));
    assert!(older.is_err(), "{older:?}");
}

/// A repeat would otherwise be answered with an offset that another record gets.
#[test]
fn keys_of_records_that_a_leader_drops_unwritten_are_new_again() {
    let files = SimFiles::new(35);
    let (_log, partition) = stepped(&files, SyncMode::Always);
    partition.lead(Epoch(2)).expect("it leads");
    let unwritten = partition.append_unique(keyed("k", b"1")).expect("queued")[0];
    assert!(!unwritten.duplicate);
    partition.follow(Epoch(3)).expect("it follows");
    partition.lead(Epoch(4)).expect("it leads");
    append(&partition, "other");
    let again = partition.append_unique(keyed("k", b"2")).expect("queued")[0];
    assert_eq!((again.offset, again.duplicate), (Offset(1), false));
}
