//! The commit log: segments, index, recovery, retention and tail cache.
//!
//! This crate owns every data file of a broker and is the only code that opens one. A record appended here gets an
//! offset; it is readable, and may be acknowledged, once it lies below the high watermark of its partition, which moves
//! only after the sync of its bytes returned. `docs/format.md` describes the bytes on disk.
//!
//! It never speaks a network protocol, never interprets payloads or MQTT properties, and does not decide who may read
//! or write. File system and clock enter through [`Seams`]. `docs/adr/0017-log-rooms.md` says why the rooms are as they
//! are.
#![forbid(unsafe_code)]

mod batch;
mod config;
mod error;
pub mod faults;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzz;
mod ids;
mod index;
mod log;
mod partition;
mod read;
mod recovery;
mod retention;
mod route;
mod segment;
mod state;
pub mod tools;
mod vfs;
mod write;

pub use batch::layout::DecodeError;
pub use batch::record_batch::{Batch, TopicView};
pub use batch::records::{
    ClientIndex, MAX_RECORDS_BYTES, RecordMeta, Records, RecordsFull, TopicIndex,
};
pub use batch::view::{Headers, PublishId, RecordView};
pub use config::{ClassConfig, DiskAction, DiskConfig, LogConfig, ReplicaConfig, SyncMode};
pub use error::{AppendError, OpenError, ReadError, ReplicaError};
pub use ids::{Class, DiskId, Epoch, LogId, Offset, ParseLogIdError, PartitionId, Secret};
pub use index::model::RetainedOffset;
pub use index::segment_info::{IndexPlace, SegmentInfo};
pub use log::{Log, PartitionReport, RecoveryReport};
pub use partition::{Partition, RemovalGuard};
pub use read::candidates::{CandidateRanges, TopicFilter, TopicSelection};
pub use read::gap::{Gap, GapKind};
pub use read::lookup::TopicRange;
pub use recovery::log_folder::{FolderOwner, folder_owner, give_folder_to_node};
pub use recovery::quarantine::KeptFile;
pub use retention::holds::{DeleteHook, HeldLoss, Hold, Holders};
pub use route::Route;
pub use state::disk_budget::{DiskLevel, DiskUse};
pub use state::stats::{Cause, Removed, SYNC_BOUNDS_US, Stats};
pub use state::status::{PartitionState, Watcher};
pub use vfs::clock::{Clock, Seams, SystemClock};
pub use vfs::files::{File, Files, LockError, LockGuard, OpenMode, Padded};
pub use vfs::system::SystemFiles;
pub use write::append_unique::UniqueAppend;
