//! The active segment, the spare segment, and the reasons why a writer stops.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::Offset;
use crate::index::segment::Segment;
use crate::recovery::rewrite::ActiveFile;
use crate::state::context::Context;
use crate::vfs::files::File;

/// The segment that is written. One thread at a time owns it.
pub(crate) struct Active {
    pub file: Arc<dyn File>,
    pub segment: Arc<Segment>,
    /// Where the next batch goes.
    pub position: u64,
    /// Bytes up to here need no new space.
    pub filled: u64,
    /// The pages of the file that this process has written whole end here.
    pub whole_to: u64,
    /// Base offset of the next batch.
    pub next: Offset,
    /// Topics that its index holds in memory.
    pub topics: usize,
    /// Something was written since the last sync.
    pub unsynced: bool,
    pub synced_at: Duration,
    pub wrote_at: Duration,
    /// The checkpoint on disk says all this.
    pub is_checkpointed: bool,
    /// When idleness was noted last.
    pub idle_noted_at: Option<Duration>,
}

/// A segment file that is ready but for its header, under an unfinished name: removed by a start.
pub(crate) struct SpareSegment {
    pub path: PathBuf,
    pub file: Arc<dyn File>,
    pub bytes: u64,
    /// Holds stale batches of a removed segment.
    pub recycled: bool,
}

/// Why the writer cannot go on.
#[derive(Debug)]
pub(crate) enum Halt {
    /// No space; nothing was harmed.
    Full,
    /// The content of the disk is unknown from here on.
    Failed(String),
}

impl Active {
    /// The active segment as recovery left it.
    pub fn resume(context: &Context, from: ActiveFile) -> Self {
        let now = context.steady();
        Self {
            file: from.file,
            segment: from.segment,
            position: from.position,
            filled: from.filled,
            whole_to: 0,
            next: from.next,
            topics: 0,
            unsynced: false,
            synced_at: now,
            wrote_at: now,
            is_checkpointed: false,
            idle_noted_at: None,
        }
    }
}

impl Halt {
    pub fn failed(doing: &str, error: &io::Error) -> Self {
        Self::Failed(format!("{doing} failed: {error}"))
    }
}
