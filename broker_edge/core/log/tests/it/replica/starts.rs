//! A replica starts again with what was committed, whoever led it.

use super::*;
use headwater_log::{
    Epoch, Log, LogConfig, Offset, OpenError, Partition, ReplicaError, Secret, SyncMode,
};

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
