//! The active segment, the spare segment, and the reasons why a writer stops.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::Offset;
use crate::index::segment::Segment;
use crate::recovery::rewrite::ActiveFile;
use crate::state::context::Context;
use crate::vfs::files::{File, PAGE_BYTES};

/// The segment that is written. One thread at a time owns it.
pub(crate) struct Active {
    pub file: Arc<dyn File>,
    pub segment: Arc<Segment>,
    /// Where the next batch goes.
    pub position: u64,
    /// Bytes up to here need no new space.
    pub filled: u64,
    pub last_page: LastPage,
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

/// The bytes of the page that the next batch completes: a direct write writes them once more.
#[derive(Default)]
pub(crate) struct LastPage {
    bytes: Vec<u8>,
    end: u64,
}

impl LastPage {
    /// The bytes between the start of the page and `position`; `None` when they are unknown, as after a start.
    pub fn before(&self, position: u64) -> Option<&[u8]> {
        match position % PAGE_BYTES {
            0 => Some(&[]),
            _ => (self.end == position).then_some(&self.bytes),
        }
    }

    /// Notes what was written at `position`.
    pub fn note(&mut self, parts: &[&[u8]], mut position: u64) {
        for part in parts {
            let end = position + part.len() as u64;
            let length = (end % PAGE_BYTES) as usize;
            if part.len() >= length {
                self.bytes.clear();
            } else if self.before(position).is_none() {
                return;
            }
            self.bytes
                .extend_from_slice(&part[part.len().saturating_sub(length)..]);
            (self.end, position) = (end, end);
        }
    }
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
    /// The segment is at its end, and not all of it is committed.
    Uncommitted,
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
            last_page: LastPage::default(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_page_is_known_once_a_write_has_begun_it() {
        let file: Vec<u8> = (0..60_000_u32).map(|at| (at % 251) as u8).collect();
        let mut page = LastPage::default();
        let mut position = 5000;
        assert!(page.before(position).is_none(), "as after a start");
        for length in [
            100, 2000, 3000, 96, 1, 4095, 4096, 9000, 0, 3000, 1096, 20, 12_288,
        ] {
            let part = &file[position as usize..][..length];
            page.note(&[part], position);
            position += length as u64;
            let start = position - position % PAGE_BYTES;
            let expected = &file[start as usize..position as usize];
            match page.before(position) {
                Some(before) => assert_eq!(before, expected, "{position}"),
                None => assert!(position < 2 * PAGE_BYTES, "{position}"),
            }
        }
        assert!(
            page.before(position - 1).is_none(),
            "the end of another write"
        );
    }
}
