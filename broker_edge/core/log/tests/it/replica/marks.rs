//! What a leader shows, and what a follower takes from it.

use std::sync::Arc;

use super::*;
use headwater_log::{
    AppendError, Batch, Class, ClassConfig, Epoch, LogConfig, Offset, PartitionState, ReadError,
    ReplicaError, SyncMode,
};

#[test]
fn what_is_written_and_synced_is_shown_once_it_is_committed() {
    let files = SimFiles::new(1);
    let (_log, leader) = start(&files, 0, 0);
    assert_eq!(leader.state(), PartitionState::Following);
    let refused = leader.append(records(1, &["early"]));
    assert!(matches!(refused, Err(AppendError::NotLeader { .. })));
    assert_eq!(leader.lead(Epoch(5)), Ok(Offset(0)));
    append_synced(&leader, &["a", "b", "c"]);
    assert_eq!(leader.written(), Offset(3));
    assert_eq!(leader.high_watermark(), Offset(0));
    assert_eq!(leader.read(Offset(0), 100).expect("at the end").len(), 0);
    let beyond = leader.read(Offset(1), 100);
    assert!(matches!(beyond, Err(ReadError::OutOfRange { .. })));
    assert_eq!(leader.topics().expect("it lists").len(), 0);
    assert_eq!(leader.offset_for_time(0).expect("it looks"), Offset(0));
    assert_eq!(payloads(&uncommitted(&leader)), ["a", "b", "c"]);
    assert_eq!(leader.commit_to(Offset(2)), Offset(2));
    assert_eq!(committed(&leader), ["a", "b"]);
    assert_eq!(leader.topics().expect("it lists")[0].next, Offset(2));
    assert_eq!(payloads(&uncommitted(&leader)), ["c"]);
    assert_eq!(leader.commit_to(Offset(1)), Offset(2), "it never goes back");
    assert_eq!(
        leader.commit_to(Offset(99)),
        Offset(3),
        "no further than its own disk"
    );
    assert_eq!(epochs(&leader), [(5, 0)]);
}

#[test]
fn a_batch_is_committed_whole_or_not_and_only_when_it_is_on_this_disk() {
    let files = SimFiles::new(2);
    let (_log, leader) = start(&files, 0, 0);
    leader
        .lead(Epoch(0))
        .expect_err("a new log begins with epoch 1");
    leader.lead(Epoch(2)).expect("it leads");
    append_synced(&leader, &["a"]);
    files.hold("sync_data", ".seg");
    let range = leader.append(records(1, &["b", "c"])).expect("queued");
    files.await_held();
    assert_eq!(
        leader.written(),
        range.end,
        "others may take it while it is synced here"
    );
    assert_eq!(payloads(&uncommitted(&leader)), ["a", "b", "c"]);
    assert_eq!(leader.commit_to(range.end), Offset(1));
    files.let_go();
    await_that("the sync", || leader.synced() == range.end);
    assert_eq!(
        leader.commit_to(Offset(2)),
        Offset(1),
        "in the middle of a batch"
    );
    assert_eq!(leader.commit_to(range.end), range.end);
}

#[test]
fn a_follower_has_the_bytes_of_its_leader_and_refuses_what_does_not_continue_them() {
    let (one, two) = (SimFiles::new(3), SimFiles::new(4));
    let [(_a, leader), (_b, follower)] = pair([&one, &two], &["a", "b", "c"]);
    let batches = uncommitted(&leader);
    let taken = uncommitted(&follower);
    let bytes = |batches: &[Batch]| {
        batches
            .iter()
            .map(|one| one.bytes().to_vec())
            .collect::<Vec<_>>()
    };
    assert_eq!(bytes(&taken), bytes(&batches));
    append_synced(&leader, &["d", "e"]);
    let more = uncommitted(&leader);
    let hole = take(&follower, 2, &more[4..]);
    assert!(
        matches!(
            hole,
            Err(ReplicaError::OutOfOrder {
                expected: Offset(3),
                ..
            })
        ),
        "{hole:?}"
    );
    let again = take(&follower, 2, &more[2..]);
    assert!(matches!(again, Err(ReplicaError::OutOfOrder { .. })));
    for epoch in [1, 3] {
        let other = take(&follower, epoch, &more[3..]);
        assert!(matches!(other, Err(ReplicaError::WrongEpoch { .. })));
    }
    let leading = take(&leader, 2, &more[3..]);
    assert!(matches!(
        leading,
        Err(ReplicaError::WrongEpoch {
            role: "leading",
            ..
        })
    ));
    take_synced(&follower, 2, &more[3..]);
    for partition in [&leader, &follower] {
        partition.commit_to(Offset(5));
        assert_eq!(committed(partition), ["a", "b", "c", "d", "e"]);
    }
    let mut damaged = more[0].bytes().to_vec();
    *damaged.last_mut().expect("a byte") ^= 1;
    assert!(follower.decode(damaged).is_err());
}

#[test]
fn a_batch_of_an_earlier_epoch_than_the_one_before_is_refused() {
    let (one, two) = (SimFiles::new(5), SimFiles::new(6));
    let [(_a, first), (_b, second)] = pair([&one, &two], &["a"]);
    append_synced(&first, &["of 2"]);
    let old = uncommitted(&first);
    second.lead(Epoch(3)).expect("it leads");
    append_synced(&second, &["of 3"]);
    second.follow(Epoch(4)).expect("it follows");
    assert_eq!(epochs(&second), [(2, 0), (3, 1)]);
    let refused = take(&second, 4, &old[1..]);
    assert!(matches!(refused, Err(ReplicaError::OutOfOrder { .. })));
    // As if it continued there.
    second.truncate(Offset(1)).expect("it is not committed");
    take_synced(&second, 4, &old[1..]);
    assert_eq!(payloads(&uncommitted(&second)), ["a", "of 2"]);
    assert_eq!(epochs(&second), [(2, 0)]);
}

#[test]
fn the_end_of_an_earlier_term_drops_what_is_queued_and_keeps_what_is_written() {
    let files = SimFiles::new(10);
    let (_log, leader) = start(&files, 0, 0);
    leader.lead(Epoch(2)).expect("it leads");
    append_synced(&leader, &["a"]);
    files.hold("sync_data", ".seg");
    leader.append(records(1, &["b"])).expect("queued");
    files.await_held();
    leader.append(records(1, &["c"])).expect("queued");
    let follows = {
        let leader = leader.clone();
        std::thread::spawn(move || leader.follow(Epoch(3)))
    };
    await_that("appends are refused", || {
        leader.state() == PartitionState::Following
    });
    files.let_go();
    assert_eq!(follows.join().expect("no panic"), Ok(()));
    assert_eq!(payloads(&uncommitted(&leader)), ["a", "b"]);
    assert_eq!(leader.next_offset(), Offset(2));
    assert_eq!(leader.queued_bytes(), 0);
    assert!(matches!(
        leader.follow(Epoch(2)),
        Err(ReplicaError::WrongEpoch { .. })
    ));
    assert!(matches!(
        leader.lead(Epoch(2)),
        Err(ReplicaError::WrongEpoch { .. })
    ));
}

/// Whatever is not committed lies in one segment, so a writer at its end waits, and a full queue refuses.
#[test]
fn a_segment_ends_when_all_of_it_is_committed() {
    let files = SimFiles::new(11);
    let settings = LogConfig {
        queue_bytes: 40 << 10,
        ..settings(0, 0)
    };
    let log = open_with(settings, files.seams());
    let leader = log.partitions()[0].clone();
    leader.lead(Epoch(2)).expect("it leads");
    let large = "x".repeat(10 << 10);
    let mut ends = Vec::new();
    let refused = loop {
        match leader.append(records(1, &[&large])) {
            Ok(range) => ends.push(range.end),
            Err(error) => break error,
        }
        assert!(ends.len() < 10, "the bound is 40 KiB");
    };
    assert!(
        matches!(refused, AppendError::QueueFull { .. }),
        "{refused}"
    );
    let all = ends[ends.len() - 1];
    await_that("they are on the disk", || leader.synced() == all);
    assert!(leader.queued_bytes() > 20 << 10, "until they are committed");
    // More than one segment, in step with what is committed.
    for _ in 0..20 {
        leader.commit_to(leader.synced());
        let range = leader
            .append(records(1, &[&large]))
            .expect("there is room again");
        await_that("it is on the disk", || {
            leader.commit_to(leader.synced());
            leader.synced() >= range.end
        });
    }
    leader.commit_to(leader.synced());
    assert_eq!(committed(&leader).len(), ends.len() + 20);
    let segments = files
        .names()
        .iter()
        .filter(|path| path.ends_with("seg") || path.extension().is_some_and(|it| it == "seg"))
        .count();
    assert!(segments >= 3, "{segments} segments");
}

/// With an interval the leader's batches are announced at once and count once they are synced.
#[test]
fn an_interval_of_syncs_delays_what_a_replica_has_on_its_disk() {
    let files = SimFiles::new(18);
    let settings = LogConfig {
        sync: SyncMode::Interval(std::time::Duration::from_millis(300)),
        ..settings(0, 0)
    };
    let log = open_with(settings, files.seams());
    let leader = log.partitions()[0].clone();
    leader.lead(Epoch(2)).expect("it leads");
    let range = leader.append(records(1, &["a"])).expect("queued");
    await_that("it is written", || leader.written() == range.end);
    await_that("it is synced", || leader.synced() == range.end);
    assert_eq!(leader.high_watermark(), Offset(0));
    assert_eq!(leader.commit_to(range.end), range.end);
}

#[test]
fn a_follower_removes_what_its_leader_has_removed_and_nothing_by_itself() {
    let files = SimFiles::new(19);
    let class = ClassConfig {
        retention_bytes: Some(1),
        ..ClassConfig::new(Class::Telemetry)
    };
    let settings = LogConfig {
        classes: vec![class],
        ..settings(0, 0)
    };
    let log = open_with(settings, files.seams());
    let partition = log.partitions()[0].clone();
    partition.lead(Epoch(2)).expect("it leads");
    let large = "x".repeat(60 << 10);
    append_synced(&partition, &[&large]);
    partition.commit_to(Offset(1));
    append_synced(&partition, &[&large]);
    partition.commit_to(Offset(2));
    append_synced(&partition, &[&large]);
    partition.commit_to(Offset(3));
    partition.follow(Epoch(3)).expect("it follows");
    log.maintain();
    assert_eq!(partition.log_start(), Offset(0));
    partition.advance_log_start(Offset(1));
    assert_eq!(partition.log_start(), Offset(1));
    partition.lead(Epoch(4)).expect("it leads");
    log.maintain();
    assert_eq!(partition.log_start(), Offset(2), "as a leader it decides");
}

/// The hook of a leader ends with its office, and keeps everything from then on.
#[test]
fn a_follower_that_has_led_removes_what_its_leader_has_removed() {
    let files = SimFiles::new(20);
    let (log, partition) = start(&files, 0, 0);
    partition.lead(Epoch(2)).expect("it leads");
    let large = "x".repeat(60 << 10);
    for end in 1..=3 {
        append_synced(&partition, &[&large]);
        partition.commit_to(Offset(end));
    }
    let guard = partition.before_delete(Arc::new(|_| true));
    partition.follow(Epoch(3)).expect("it follows");
    drop(guard);
    partition.advance_log_start(Offset(2));
    assert_eq!(partition.log_start(), Offset(2));
    // A leader without a hook has nobody who looks after what it removes.
    partition.lead(Epoch(4)).expect("it leads");
    append_synced(&partition, &[&large]);
    partition.commit_to(Offset(4));
    partition.advance_log_start(Offset(3));
    assert_eq!(partition.log_start(), Offset(2));
    drop(log);
}
