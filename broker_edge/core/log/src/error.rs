//! Public errors: few kinds, by what a caller can do about them. Each text says what happened, where, and what to do.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::batch::records::Records;
use crate::ids::{Epoch, LogId, Offset, PartitionId};
use crate::vfs::files::is_full;

/// Why an append was refused. Nothing of it was queued; its records must not be acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    #[error("a record of {size_bytes} bytes is over the limit of {limit_bytes}")]
    TooLarge { size_bytes: u64, limit_bytes: u64 },
    /// The device is full. Appends resume once there is space.
    #[error("no space left for partition {partition}; appends resume once space is freed")]
    Full { partition: PartitionId },
    /// An earlier write or sync failed, so the content of the disk past the high watermark is unknown. Restart to
    /// recover.
    #[error("partition {partition} is read-only: {reason}")]
    ReadOnly {
        partition: PartitionId,
        reason: String,
    },
    /// The writer is behind. Slow down, and try again with these records after the high watermark has moved.
    #[error(
        "{queued_bytes} bytes wait for the writer of partition {partition}, the bound is {limit_bytes}"
    )]
    QueueFull {
        partition: PartitionId,
        queued_bytes: usize,
        limit_bytes: usize,
        /// The records of the refused append.
        records: Box<Records>,
    },
    /// This node does not lead the partition.
    #[error("partition {partition} is led by another node; append there")]
    NotLeader { partition: PartitionId },
    /// A record that may have this idempotency key could not be read, so it is unknown whether this is a repeat.
    #[error("cannot tell whether an idempotency key is known in partition {partition}: {reason}")]
    Unverified {
        partition: PartitionId,
        reason: String,
    },
}

/// Why a replica does not do what the protocol asks of it. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaError {
    #[error("partition {partition} is no replica")]
    NoReplica { partition: PartitionId },
    /// It leads, or follows in another epoch: what was asked belongs to a term that is over or has not begun.
    #[error("partition {partition} is {role} in epoch {current}, not a follower in epoch {asked}")]
    WrongEpoch {
        partition: PartitionId,
        role: &'static str,
        current: Epoch,
        asked: Epoch,
    },
    /// A batch that does not continue what is there. Align, and ask again.
    #[error(
        "partition {partition} expects offset {expected} in an epoch of {least} to {most}, not {batch}"
    )]
    OutOfOrder {
        partition: PartitionId,
        expected: Offset,
        least: Epoch,
        most: Epoch,
        batch: String,
    },
    /// Its start has found that it may lack what it had on its disk. Cut it where the leader says, or at its end when it
    /// has the most of all.
    #[error("partition {partition} may lack records that it had: {reason}")]
    Doubtful {
        partition: PartitionId,
        reason: String,
    },
    /// A cut there would remove committed records, or part of a batch.
    #[error("partition {partition} can not be cut at {to}: {reason}")]
    NoCut {
        partition: PartitionId,
        to: Offset,
        reason: String,
    },
    /// The device is full: try again later.
    #[error("partition {partition} can not be cut yet: {reason}")]
    Later {
        partition: PartitionId,
        reason: String,
    },
    /// Too many bytes wait for the writer. Try again once `synced` has moved.
    #[error(
        "{queued_bytes} bytes wait for the writer of partition {partition}, the bound is {limit_bytes}"
    )]
    QueueFull {
        partition: PartitionId,
        queued_bytes: usize,
        limit_bytes: usize,
    },
    /// An earlier write or sync failed, or the log is shut down.
    #[error("partition {partition} is read-only: {reason}")]
    ReadOnly {
        partition: PartitionId,
        reason: String,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Retention has removed the offset, or it is above the high watermark.
    #[error("offset {wanted} is outside [{log_start}, {high_watermark}]")]
    OutOfRange {
        wanted: Offset,
        log_start: Offset,
        high_watermark: Offset,
    },
    /// These offsets are lost. Reading goes on at `range.end`.
    #[error("offsets [{}, {}) are damaged on disk; reading goes on at {}", range.start, range.end, range.end)]
    Damaged { range: Range<Offset> },
    #[error("cannot read {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
}

/// Why a log does not open. Nothing was changed in the folder, unless `Io` or `NoSpace` says what was tried.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{dir} belongs to log {found}, not to {expected}; point data_dir to the right folder")]
    OtherLog {
        dir: PathBuf,
        expected: LogId,
        found: LogId,
    },
    /// Its log id was copied by hand, or it is a restored copy that was told to keep its id.
    #[error(
        "{dir} has the id of log {log_id}, but not its secret, so its batches can not be compared; move the folder away and let the node join again"
    )]
    OtherSecret { dir: PathBuf, log_id: LogId },
    /// A member of a cluster, opened without one.
    #[error(
        "{dir} belongs to node {node} of a cluster: alone it would give new records offsets that the cluster gives to others; start it as that node, or choose another data_dir"
    )]
    OfCluster { dir: PathBuf, node: String },
    #[error(
        "{dir} belongs to node {found}, not to {expected}; point data_dir to the folder of this node"
    )]
    OtherNode {
        dir: PathBuf,
        expected: String,
        found: String,
    },
    #[error(
        "{dir} holds a log of its own, not that of a cluster; let node {node} join with an empty folder, or begin a cluster with this log: `headwater cluster init`"
    )]
    NotOfCluster { dir: PathBuf, node: String },
    #[error("{dir} was opened by another process meanwhile; stop the broker and try again")]
    OpenedMeanwhile { dir: PathBuf },
    #[error(
        "{path} names log {found}, but this is log {expected}; move that partition folder back where it came from"
    )]
    ForeignSegment {
        path: PathBuf,
        expected: LogId,
        found: LogId,
    },
    #[error(
        "{path} has format {found} and this version reads up to {supported}; start a newer headwater on it"
    )]
    NewerFormat {
        path: PathBuf,
        found: u32,
        supported: u32,
    },
    #[error(
        "{what} of class {class} is {stored} in {dir} and {configured} in the settings; it is fixed at creation, so restore the setting"
    )]
    Changed {
        dir: PathBuf,
        class: String,
        what: &'static str,
        stored: String,
        configured: String,
    },
    #[error("{dir} is in use by process {pid}; stop it or choose another data_dir")]
    InUse { dir: PathBuf, pid: String },
    #[error(
        "{path} is damaged: {reason}; run `headwater log repair` on the data folder, or restore a backup"
    )]
    Damaged { path: PathBuf, reason: String },
    #[error(
        "{path} is missing, although log {log_id} has it; put the folder back, or run `headwater log repair` to begin an empty one"
    )]
    PartitionMissing { path: PathBuf, log_id: LogId },
    #[error(
        "{dir} holds partitions but no log.meta; run `headwater log repair` to build it from the segments, or choose an empty folder"
    )]
    MetaMissing { dir: PathBuf },
    #[error("bad log settings: {reason}")]
    Settings { reason: String },
    #[error("no space left in {path}; free some and start again")]
    NoSpace { path: PathBuf },
    #[error("cannot {action} {path}: {source}")]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

impl OpenError {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        Self::Io {
            action,
            path,
            source,
        }
    }

    /// A write that failed: a full disk is told apart.
    pub(crate) fn write(path: &Path, source: io::Error) -> Self {
        if is_full(&source) {
            let path = path.to_owned();
            return Self::NoSpace { path };
        }
        Self::io("write", path, source)
    }
}
