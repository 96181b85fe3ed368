//! A replica shows what is committed and nothing else, takes what its leader has, and is cut where the leader differs.

use crate::support::sim::SimFiles;
use crate::support::*;
use headwater_log::{
    AppendError, Batch, Class, ClassConfig, Epoch, Log, LogConfig, LogId, Offset, OpenError,
    Partition, PartitionState, ReadError, ReplicaConfig, ReplicaError, Secret, SyncMode,
};

const ID: LogId = LogId::from_bytes([7; 16]);
const SECRET: Secret = Secret::from_bytes([9; 8]);

/// One telemetry partition of a replica that knows these offsets to be committed.
fn settings(committed: u64, epoch: u64) -> LogConfig {
    LogConfig {
        expected_id: Some(ID),
        replica: Some(ReplicaConfig {
            node: "a".to_owned(),
            committed: vec![Offset(committed)],
            begin_anew_at: Vec::new(),
            secret: Some(SECRET),
            epoch: Epoch(epoch),
        }),
        ..with_class(ClassConfig::new(Class::Telemetry), 64 << 10)
    }
}

fn start(files: &SimFiles, committed: u64, epoch: u64) -> (Log, Partition) {
    let log = open_with(settings(committed, epoch), files.seams());
    let partition = log.partitions()[0].clone();
    (log, partition)
}

/// Appends each payload in a batch of its own, and waits until they are on the disk.
fn append_synced(partition: &Partition, payloads: &[&str]) {
    for payload in payloads {
        let range = partition.append(records(1, &[payload])).expect("queued");
        await_that("the sync", || partition.synced() == range.end);
    }
}

fn take(partition: &Partition, epoch: u64, batches: &[Batch]) -> Result<(), ReplicaError> {
    let bytes = batches.iter().flat_map(|batch| batch.bytes().to_vec());
    let decoded = partition.decode(bytes.collect()).expect("they are whole");
    partition.take(Epoch(epoch), decoded)
}

fn take_synced(partition: &Partition, epoch: u64, batches: &[Batch]) {
    take(partition, epoch, batches).expect("they fit");
    let end = batches.last().expect("there are some").next_offset();
    await_that("the sync", || partition.synced() == end);
}

/// All that is written and not committed.
fn uncommitted(partition: &Partition) -> Vec<Batch> {
    let from = partition.high_watermark();
    partition
        .read_uncommitted(from, usize::MAX)
        .unwrap_or_default()
}

fn payloads(batches: &[Batch]) -> Vec<String> {
    let of = |batch: &Batch| {
        let payloads = (0..batch.len()).map(|at| batch.payload(at).to_vec());
        payloads.collect::<Vec<_>>()
    };
    let payloads = batches.iter().flat_map(of);
    payloads
        .map(|payload| String::from_utf8(payload).expect("text"))
        .collect()
}

fn committed(partition: &Partition) -> Vec<String> {
    let found = read_all(partition).into_iter();
    found
        .map(|(_, payload)| String::from_utf8(payload).expect("text"))
        .collect()
}

fn epochs(partition: &Partition) -> Vec<(u64, u64)> {
    let epochs = partition.epochs().into_iter();
    epochs.map(|(epoch, offset)| (epoch.0, offset.0)).collect()
}

/// A leader in epoch 1 with these batches on its disk, and a follower that has them too; nothing is committed.
fn pair(files: [&SimFiles; 2], shared: &[&str]) -> [(Log, Partition); 2] {
    let [leader, follower] = files.map(|files| start(files, 0, 0));
    leader.1.lead(Epoch(2)).expect("it leads");
    follower.1.follow(Epoch(2)).expect("it follows");
    append_synced(&leader.1, shared);
    if !shared.is_empty() {
        take_synced(&follower.1, 2, &uncommitted(&leader.1));
    }
    [leader, follower]
}

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

#[test]
fn a_start_takes_for_committed_what_was_noted_and_what_is_in_sealed_segments() {
    let files = SimFiles::new(14);
    let (log, leader) = start(&files, 0, 0);
    leader.lead(Epoch(2)).expect("it leads");
    let large = "x".repeat(40 << 10);
    append_synced(&leader, &["a", "b", &large]);
    leader.commit_to(Offset(3));
    append_synced(&leader, &[&large]);
    drop((log, leader));
    let (_log, again) = start(&files, 1, 2);
    assert_eq!(
        again.high_watermark(),
        Offset(3),
        "a segment was begun behind it"
    );
    assert_eq!(again.written(), Offset(4));
}

/// All records from the log start on that are written, committed or not.
fn written(partition: &Partition) -> Vec<String> {
    let mut all = committed(partition);
    all.extend(payloads(&uncommitted(partition)));
    all
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

#[test]
fn a_replica_of_another_secret_or_without_syncs_is_refused_and_a_log_alone_is_none() {
    let files = SimFiles::new(16);
    drop(start(&files, 0, 0));
    let mut other = settings(0, 0);
    let replica = other.replica.as_mut().expect("it is one");
    replica.secret = Some(Secret::from_bytes([8; 8]));
    let refused = Log::open(other, files.seams()).map(drop);
    assert!(matches!(refused, Err(OpenError::OtherSecret { .. })));
    let unsynced = LogConfig {
        sync: SyncMode::Never,
        ..settings(0, 0)
    };
    let refused = Log::open(unsynced, files.seams()).map(drop);
    assert!(matches!(refused, Err(OpenError::Settings { .. })));
    let alone = LogConfig {
        replica: None,
        ..settings(0, 0)
    };
    let log = open_with(alone, SimFiles::new(17).seams());
    let partition = &log.partitions()[0];
    let none = Err(ReplicaError::NoReplica {
        partition: partition.id(),
    });
    assert_eq!(partition.follow(Epoch(9)), none);
    assert_eq!(partition.lead(Epoch(9)).map(drop), none);
    assert!(partition.truncate(Offset(0)).is_err());
    assert!(partition.take(Epoch(1), Vec::new()).is_err());
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

/// Two replicas through changes of leader, kills and power cuts. Whatever was committed stays in both, as it was.
#[test]
fn what_was_committed_on_both_is_in_both_whatever_happens_to_either() {
    for seed in 0..30 {
        changes_of_leader(seed);
    }
}

fn changes_of_leader(seed: u64) {
    let mut random = crate::support::sim::Random(seed * 7919 + 1);
    let files = [SimFiles::new(seed * 2 + 1), SimFiles::new(seed * 2 + 2)];
    let mut nodes: Vec<Option<(Log, Partition)>> =
        files.iter().map(|it| Some(start(it, 0, 0))).collect();
    let (mut epoch, mut number) = (1, 0);
    let mut reference: Vec<String> = Vec::new();
    for _ in 0..12 {
        epoch += 1;
        let leads = random.below(2);
        for (at, node) in nodes.iter_mut().enumerate() {
            if node.is_none() || random.below(4) == 0 {
                if random.below(2) == 0 {
                    files[at].power_cut();
                } else {
                    files[at].kill();
                }
                drop(node.take());
                let noted = random.below(reference.len() + 1) as u64;
                *node = Some(start(&files[at], noted, epoch - 1));
            }
        }
        let (_, leader) = nodes[leads].as_ref().expect("it runs");
        let (_, follower) = nodes[1 - leads].as_ref().expect("it runs");
        leader.follow(Epoch(epoch)).expect("an epoch that begins");
        leader.lead(Epoch(epoch)).expect("it leads");
        follower.follow(Epoch(epoch)).expect("it follows");
        let cut = divergence(leader, follower);
        follower
            .truncate(cut)
            .expect("both have what was committed");
        for _ in 0..random.below(6) {
            number += 1;
            append_synced(leader, &[&format!("{number} in {epoch}")]);
        }
        // From the leader's files below its high watermark, else from what waits there.
        while follower.written() < leader.synced() && random.below(5) > 0 {
            let from = follower.written();
            let batches = leader
                .read_uncommitted(from, 1)
                .unwrap_or_else(|| leader.read(from, 1).expect("it is committed"));
            take_synced(follower, epoch, &batches);
        }
        let all = leader.synced().min(follower.synced());
        let end = Offset(random.below(all.0 as usize + 1) as u64);
        let before = reference.len();
        leader.commit_to(end);
        follower.commit_to(end);
        for partition in [leader, follower] {
            let shown = committed(partition);
            let common = shown.len().min(before);
            assert_eq!(shown[..common], reference[..common], "seed {seed}");
            if shown.len() > reference.len() {
                reference = shown;
            }
        }
        assert_eq!(
            written(leader)[..before],
            reference[..before],
            "seed {seed}"
        );
    }
    assert!(number > 0);
}

/// Where a follower's history leaves that of its leader: the end of the newest epoch that both have, or where the
/// shorter one of them ends in it.
fn divergence(leader: &Partition, follower: &Partition) -> Offset {
    let ends = |partition: &Partition| {
        let epochs = partition.epochs();
        let next = epochs.iter().skip(1).map(|(_, offset)| *offset);
        let ends = next.chain([partition.written()]);
        let epochs = epochs.iter().map(|(epoch, _)| *epoch);
        epochs.zip(ends).collect::<Vec<_>>()
    };
    let (of_leader, of_follower) = (ends(leader), ends(follower));
    let common = of_follower.iter().rev().find_map(|(epoch, end)| {
        let other = of_leader.iter().find(|(other, _)| other == epoch)?;
        Some((*end).min(other.1))
    });
    common.unwrap_or(Offset(0))
}
