//! A start: reads the replica file, opens the log with what it says, and begins the state machine with what was found.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use headwater_cluster::clocked::Clocked;
use headwater_cluster::divergence::History;
use headwater_cluster::marks::{
    DiskId, Epoch, Member, Node, Offset, PartitionId, ShardId, Starts, Trust,
};
use headwater_cluster::replica_file::ReplicaFile;
use headwater_cluster::rules::Rules;
use headwater_cluster::shard::{Found, Held, Place};
use headwater_log::{
    Log, LogConfig, LogId, OpenError, Partition, RecoveryReport, ReplicaConfig, Seams, Secret,
};

use crate::file;
use crate::progress::Local;
use crate::replica::Replica;

/// The first step of the design has one shard: the whole log.
pub(crate) const SHARD: ShardId = ShardId(0);

/// What a replica is told when it starts.
#[derive(Debug, Clone)]
pub struct Setup {
    /// `expected_id` and `replica` are set by the start.
    pub log: LogConfig,
    pub log_id: LogId,
    pub secret: Secret,
    pub node: Node,
    /// The in-sync set never has fewer members.
    pub min_in_sync: usize,
    /// Bytes of batches that a leader may send before the first answer.
    pub credit_bytes: u32,
    /// How often this node has started as far as others know: a disk that has lost its count goes on behind it. One
    /// that has its count does not, so that a folder which was rolled back is noticed.
    pub starts_known: Starts,
    /// By partition number, as [`Output::BeginAnew`](crate::Output::BeginAnew) of the life before said.
    pub begin_anew_at: Vec<Option<Offset>>,
    pub rules: Rules,
}

/// Why a replica does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Log(#[from] OpenError),
    #[error("cannot begin with {path}: {reason}")]
    File { path: PathBuf, reason: String },
}

impl Replica {
    /// Opens the log and begins. The replica file of this life is on the disk when this returns.
    ///
    /// # Errors
    /// A log that does not open, or a replica file that can not be written.
    pub fn start(
        setup: Setup,
        seams: &Seams,
        now_ms: u64,
    ) -> Result<(Self, RecoveryReport), StartError> {
        let dir = setup.log.dir.clone();
        let found = file::load(&*seams.files, &dir).filter(|file| file.shard == SHARD);
        let (log, report) = Log::open(config(&setup, found.as_ref()), seams.clone())?;
        let disk = DiskId(log.disk_id().map_or(0, |disk| disk.0));
        let file = known(&log, disk, found, setup.starts_known);
        let me = Member {
            node: setup.node,
            disk,
        };
        let place = Place {
            log_id: *setup.log_id.as_bytes(),
            shard: SHARD,
            me: me.clone(),
            starts: Starts(file.starts.0 + 1),
            partitions: partitions_of(&log),
            min_in_sync: setup.min_in_sync,
            credit_bytes: setup.credit_bytes,
            rules: setup.rules,
        };
        let partitions: Vec<_> = log.partitions().iter().map(held).collect();
        let has_doubts = log.partitions().iter().any(|one| one.doubt().is_some());
        let found = Found {
            stopped_cleanly: file.stopped_cleanly,
            is_damaged: has_doubts,
            file: Some(file.clone()),
            partitions: partitions.clone(),
        };
        let starts = place.starts;
        let (clocked, effects) = Clocked::start(Arc::new(place), found, now_ms);
        let mut replica = Self {
            me,
            starts,
            files: Arc::clone(&seams.files),
            dir: dir.clone(),
            locals: partitions.iter().map(Local::at).collect(),
            log,
            clocked,
            file,
            streams: BTreeMap::new(),
            events: VecDeque::new(),
            outputs: Vec::new(),
            credit_bytes: setup.credit_bytes,
            has_room: true,
            takes_no_more: false,
            has_doubts,
            reaches_etcd: true,
            follow_again_at_ms: None,
            is_over: false,
        };
        replica
            .begin(effects, now_ms)
            .map_err(|reason| StartError::File {
                path: file::path_in(&dir),
                reason,
            })?;
        Ok((replica, report))
    }
}

fn config(setup: &Setup, file: Option<&ReplicaFile>) -> LogConfig {
    let count = setup.log.classes.iter().map(|class| class.partitions).sum();
    let hint_of = |number: u32| {
        let is_anew = setup.begin_anew_at.get(number as usize);
        if is_anew.is_some_and(Option::is_some) {
            return headwater_log::Offset(0);
        }
        let hints = file.map_or(&[][..], |file| &file.hints);
        let hint = hints.iter().find(|hint| hint.0 == PartitionId(number));
        headwater_log::Offset(hint.map_or(0, |hint| hint.1.0))
    };
    let anew_at = setup.begin_anew_at.iter();
    let replica = ReplicaConfig {
        node: setup.node.as_str().to_owned(),
        committed: (0..count).map(hint_of).collect(),
        begin_anew_at: anew_at
            .map(|at| at.map(|at| headwater_log::Offset(at.0)))
            .collect(),
        secret: Some(setup.secret),
        epoch: headwater_log::Epoch(file.map_or(0, |file| file.epoch.0)),
    };
    LogConfig {
        expected_id: Some(setup.log_id),
        replica: Some(replica),
        ..setup.log.clone()
    }
}

/// The file of this disk, or one that says as little as can be: suspect, in the newest epoch that the log knows.
fn known(log: &Log, disk: DiskId, found: Option<ReplicaFile>, starts_known: Starts) -> ReplicaFile {
    let log_id = *log.id().as_bytes();
    let found = found.filter(|file| file.disk == disk && file.log_id == log_id);
    found.unwrap_or_else(|| {
        let epochs = log.partitions().iter().map(|one| one.epoch().0);
        // A new log begins with 1, which no leader had.
        let epoch = epochs.max().filter(|epoch| *epoch > 1).unwrap_or(0);
        ReplicaFile {
            log_id,
            disk,
            shard: SHARD,
            epoch: Epoch(epoch),
            trust: Trust::Suspect,
            starts: starts_known,
            stopped_cleanly: false,
            hints: Vec::new(),
        }
    })
}

fn partitions_of(log: &Log) -> Vec<PartitionId> {
    let numbers = log.partitions().iter().map(|one| one.id().0);
    numbers.map(PartitionId).collect()
}

/// What the log has of a partition. One with a hole is offered without its epochs, and nothing of one in doubt counts
/// as synced before it was cut, which copies what is left.
pub(crate) fn held(partition: &Partition) -> Held {
    let is_doubtful = partition.doubt().is_some();
    let epochs = match partition.gaps().is_empty() {
        true => partition.epochs(),
        false => Vec::new(),
    };
    let epochs = epochs.into_iter();
    let history = epochs.map(|(epoch, at)| (Epoch(epoch.0), Offset(at.0)));
    let high_watermark = Offset(partition.high_watermark().0);
    let synced = match is_doubtful {
        true => high_watermark,
        false => Offset(partition.synced().0),
    };
    Held {
        log_start: Offset(partition.log_start().0),
        end: Offset(partition.written().0),
        synced,
        high_watermark,
        history: History::new(history.collect()).unwrap_or_default(),
    }
}
