//! A replica shows what is committed and nothing else, takes what its leader has, and is cut where the leader differs.

use crate::support::sim::SimFiles;
use crate::support::*;
use headwater_log::{
    Batch, Class, ClassConfig, Epoch, Log, LogConfig, LogId, Offset, Partition, ReplicaConfig,
    ReplicaError, Secret,
};

mod cuts;
mod marks;
mod starts;
mod steps;

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

/// All records from the log start on that are written, committed or not.
fn written(partition: &Partition) -> Vec<String> {
    let mut all = committed(partition);
    all.extend(payloads(&uncommitted(partition)));
    all
}
