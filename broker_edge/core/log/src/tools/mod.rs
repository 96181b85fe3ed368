//! Tools for a log that no broker has open: inspect, repair, copy, remove. One file per verb.
//!
//! They open data files by the rules of `docs/format.md` and with the broker's code. None of them deletes bytes that it
//! cannot read.

mod backup;
mod dump;
mod folder;
mod manifest;
mod purge;
mod repair;
mod restore;
mod scan;
mod segment_writer;
mod verify;
mod work;

pub use backup::{BackedUp, BackupReport, backup};
pub use dump::{DumpWish, Dumped, dump};
pub use purge::{PurgeReport, PurgeWhat, purge};
pub use repair::{RepairReport, repair};
pub use restore::{RestoreReport, restore};
pub use verify::{FoundGap, PartitionCheck, VerifyReport, verify};
pub use work::{Access, ToolError, Work};
