//! The commit log: segments, index, recovery, retention and tail cache.
//!
//! This crate owns every data file of a broker and is the only code that opens one. A record appended here gets an
//! offset; it is readable, and may be acknowledged, once it lies below the high watermark of its partition, which moves
//! only after the sync of its bytes returned. The bytes on disk are described in `docs/format.md`.
//!
//! It never speaks a network protocol, never interprets payloads or MQTT properties, and decides nothing about who may
//! read or write. File system and clock enter through [`Seams`].
#![forbid(unsafe_code)]

mod batch;
mod config;
mod error;
pub mod faults;
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

pub use batch::decode::{Batch, DecodeError, TopicView};
pub use batch::records::{
    ClientIndex, MAX_RECORDS_BYTES, RecordMeta, Records, RecordsFull, TopicIndex,
};
pub use batch::view::{Headers, PublishId, RecordView};
pub use config::{ClassConfig, LogConfig, Seams, SyncMode};
pub use error::{AppendError, OpenError, ReadError};
pub use ids::{Class, Epoch, LogId, Offset, ParseLogIdError, PartitionId};
pub use index::model::RetainedOffset;
pub use log::{Log, PartitionReport, RecoveryReport};
pub use partition::{
    DeleteHook, Gap, GapKind, HeldLoss, Hold, Holders, Partition, PartitionState, TopicRange,
    UniqueAppend, Watcher,
};
pub use read::candidates::{CandidateRanges, TopicFilter, TopicSelection};
pub use read::single::Record;
pub use route::Route;
pub use state::disk_budget::{DiskAction, DiskConfig, DiskLevel, DiskUse};
pub use state::stats::{Cause, Removed, SYNC_BOUNDS_US, Stats};
pub use vfs::clock::{Clock, SystemClock};
pub use vfs::files::{File, Files, LockError, LockGuard, OpenMode, SystemFiles};
