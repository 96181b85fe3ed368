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
mod clock;
mod config;
mod encode;
mod error;
mod files;
mod ids;
mod log;
mod partition;
mod records;
mod route;
mod view;

pub use batch::{Batch, DecodeError, TopicView};
pub use clock::{Clock, SystemClock};
pub use config::{ClassConfig, LogConfig, Seams, SyncMode};
pub use error::{AppendError, OpenError, ReadError};
pub use files::{File, Files, LockError, LockGuard, OpenMode, SystemFiles};
pub use ids::{Class, Epoch, LogId, Offset, ParseLogIdError, PartitionId};
pub use log::{Log, PartitionReport, RecoveryReport};
pub use partition::{DeleteHook, Gap, Partition, PartitionState, Placed, TopicRange, Watcher};
pub use records::{ClientIndex, MAX_RECORDS_BYTES, RecordMeta, Records, RecordsFull, TopicIndex};
pub use route::Route;
pub use view::{Headers, RecordView};
