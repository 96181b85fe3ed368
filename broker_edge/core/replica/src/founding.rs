//! The log of a broker alone becomes the first replica of a cluster, with its id, secret, offsets and epochs.
//!
//! The folder is given away in two steps: the replica file, which only a member reads, then `log.meta`. After a crash
//! between them the log is still one of its own, and the steps are done again.

use std::io;
use std::path::{Path, PathBuf};

use headwater_cluster::marks::{DiskId, Epoch, Node, Offset, PartitionId, Starts, Trust};
use headwater_cluster::replica_file::ReplicaFile;
use headwater_log::{Log, LogConfig, LogId, OpenError, Seams, Secret, give_folder_to_node};

use crate::file;
use crate::open::SHARD;

/// What a log of its own brings into a cluster.
#[derive(Debug, Clone)]
pub struct OwnLog {
    pub log_id: LogId,
    pub secret: Secret,
    /// The newest that a batch may have.
    pub epoch: Epoch,
    /// By partition: everything below is on the disk, and acknowledged.
    ends: Vec<(PartitionId, Offset)>,
}

/// Why a log does not begin a cluster.
#[derive(Debug, thiserror::Error)]
pub enum FoundingError {
    #[error(transparent)]
    Log(#[from] OpenError),
    #[error(
        "{dir}: {partition} has lost offsets {start} to {end}, and a cluster keeps a log without such gaps; begin the \
         cluster with an empty folder, and keep this broker until its records are read"
    )]
    Gap {
        dir: PathBuf,
        partition: String,
        start: u64,
        end: u64,
    },
    #[error("cannot write {path}: {reason}")]
    File { path: PathBuf, reason: io::Error },
}

impl OwnLog {
    /// Opens the log as its broker does, which repairs what a crash left, and closes it again.
    ///
    /// # Errors
    /// A log that does not open or has lost records, or is that of a node already.
    pub fn look(config: LogConfig, seams: &Seams) -> Result<Self, FoundingError> {
        let dir = config.dir.clone();
        let (log, _) = Log::open(config, seams.clone())?;
        let found = Self::of(&log, &dir);
        log.shutdown();
        found
    }

    fn of(log: &Log, dir: &Path) -> Result<Self, FoundingError> {
        for partition in log.partitions() {
            if let Some(gap) = partition.gaps().first() {
                return Err(FoundingError::Gap {
                    dir: dir.to_owned(),
                    partition: partition.name().to_owned(),
                    start: gap.range.start.0,
                    end: gap.range.end.0,
                });
            }
        }
        let epochs = log.partitions().iter().map(|one| one.epoch().0);
        let ends = log.partitions().iter();
        let ends = ends.map(|one| (PartitionId(one.id().0), Offset(one.high_watermark().0)));
        Ok(Self {
            log_id: log.id(),
            secret: log.secret(),
            epoch: Epoch(epochs.max().unwrap_or(1)),
            ends: ends.collect(),
        })
    }

    /// Sum of the ends of all partitions, as the key of a shard has it.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.ends.iter().map(|(_, end)| end.0).sum()
    }

    /// Gives the folder to the node. It is opened as that node or not at all when this has returned.
    ///
    /// # Errors
    /// Somebody has opened the log since the look, or a file cannot be written.
    pub fn give_to(
        &self,
        dir: &Path,
        seams: &Seams,
        node: &Node,
        disk: DiskId,
    ) -> Result<(), FoundingError> {
        let content = ReplicaFile {
            log_id: *self.log_id.as_bytes(),
            disk,
            shard: SHARD,
            epoch: self.epoch,
            trust: Trust::Sound,
            starts: Starts(0),
            stopped_cleanly: true,
            hints: self.ends.clone(),
        };
        file::save(&*seams.files, dir, &content).map_err(|reason| FoundingError::File {
            path: file::path_in(dir),
            reason,
        })?;
        let epoch = headwater_log::Epoch(self.epoch.0);
        give_folder_to_node(dir, seams, node.as_str(), disk_id(disk), epoch)?;
        Ok(())
    }
}

fn disk_id(disk: DiskId) -> headwater_log::DiskId {
    headwater_log::DiskId(disk.0)
}
