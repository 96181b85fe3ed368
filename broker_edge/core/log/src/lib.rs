//! The commit log: segments, index, recovery, retention and tail cache.
//!
//! This crate owns every data file of a broker and is the only code that opens one. A record appended here gets an
//! offset; it is readable, and may be acknowledged, once it lies below the high watermark of its partition, which moves
//! only after the sync of its bytes returned. The bytes on disk are described in `docs/format.md`.
//!
//! It never speaks a network protocol, never interprets payloads or MQTT properties, and decides nothing about who may
//! read or write. File system and clock enter through [`Seams`].
#![forbid(unsafe_code)]

mod age;
mod append;
mod aside;
mod batch;
mod buffers;
mod by_name;
mod by_topic;
mod clock;
mod config;
mod context;
mod core;
mod damage;
mod direct;
mod disk;
mod encode;
mod error;
pub mod faults;
mod figures;
mod files;
mod group;
mod growing;
mod heads;
mod ids;
mod index;
mod index_file;
mod keys;
mod log;
mod lookup;
mod lost;
mod maintain;
mod mark;
mod meta;
mod names;
mod partition;
mod payloads;
mod places;
mod plan;
mod queue;
mod read;
mod rebuild;
mod records;
mod recovery;
mod recovery_active;
mod retention;
mod route;
mod run_walk;
mod runs;
mod salvage;
mod saved_index;
mod sealed_index;
mod sealed_topics;
mod segment;
mod single;
mod space;
mod stretches;
mod tail;
pub mod tools;
mod topics_file;
mod view;
mod walk;
mod writer;

pub use batch::{Batch, DecodeError, TopicView};
pub use clock::{Clock, SystemClock};
pub use config::{ClassConfig, LogConfig, Seams, SyncMode};
pub use disk::{DiskAction, DiskConfig, DiskLevel, DiskUse};
pub use error::{AppendError, OpenError, ReadError};
pub use figures::{Cause, Figures, Removed, SYNC_BOUNDS_US};
pub use files::{File, Files, LockError, LockGuard, OpenMode, SystemFiles};
pub use ids::{Class, Epoch, LogId, Offset, ParseLogIdError, PartitionId};
pub use index::RetainedPlace;
pub use log::{Log, PartitionReport, RecoveryReport};
pub use partition::{
    DeleteHook, Gap, GapKind, HeldLoss, Hold, Holders, Partition, PartitionState, Placed,
    TopicRange, Watcher,
};
pub use records::{ClientIndex, MAX_RECORDS_BYTES, RecordMeta, Records, RecordsFull, TopicIndex};
pub use route::Route;
pub use single::Record;
pub use stretches::{Selection, Stretches, Wanted};
pub use view::{Headers, PublishId, RecordView};
