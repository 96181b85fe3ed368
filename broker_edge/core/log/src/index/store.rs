//! The index of a sealed segment, wherever it is: in memory, in its file, or made again when that is not whole.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::error::ReadError;
use crate::ids::Offset;
use crate::index::model::{BlockSet, Blocks, Index};
use crate::index::rebuild::{build_index, open_index};
use crate::index::saved::{IndexDamaged, IndexReader, SavedIndex};
use crate::read::range::io_error;
use crate::segment::header::{IndexState, Segment};
use crate::state::core::Core;

/// The index of a sealed segment, wherever it is.
pub(crate) enum SealedIndex {
    Memory(Arc<Index>),
    Saved(Arc<SavedIndex>),
}

impl SealedIndex {
    pub fn blocks(&self) -> Blocks<'_> {
        match self {
            Self::Memory(index) => index.blocks(),
            Self::Saved(index) => index.blocks(),
        }
    }

    pub fn mark_topic(&self, topic: &str, held: &mut BlockSet) -> Result<(), IndexDamaged> {
        match self {
            Self::Memory(index) => {
                index.mark_topic(topic, held);
                Ok(())
            }
            Self::Saved(index) => index.mark_topic(topic, held),
        }
    }

    pub fn mark(
        &self,
        range: &Range<Offset>,
        wanted: &dyn Fn(&str) -> bool,
        held: &mut BlockSet,
    ) -> Result<(), IndexDamaged> {
        match self {
            Self::Memory(index) => {
                index.mark(range, wanted, held);
                Ok(())
            }
            Self::Saved(index) => index.mark(range, wanted, held),
        }
    }
}

impl Core {
    /// Asks the index of a sealed segment: in memory, in its file, or made again when that is not whole.
    pub(crate) fn with_index<T>(
        &self,
        segment: &Segment,
        f: &dyn Fn(&SealedIndex) -> Result<T, IndexDamaged>,
    ) -> Result<T, ReadError> {
        let index = match &*segment.index.lock() {
            IndexState::Memory(index) | IndexState::Provisional(index) => {
                Some(SealedIndex::Memory(Arc::clone(index)))
            }
            _ => None,
        };
        let index = match index {
            Some(index) => Some(index),
            None => self.saved_index(segment).map(SealedIndex::Saved),
        };
        if let Some(Ok(answer)) = index.map(|index| f(&index)) {
            return Ok(answer);
        }
        let index = SealedIndex::Memory(self.rebuild(segment)?);
        // An index in memory has no pieces that could be spoilt.
        f(&index).map_err(|error| {
            io_error(
                &segment.path,
                io::Error::new(io::ErrorKind::InvalidData, error),
            )
        })
    }

    fn saved_index(&self, segment: &Segment) -> Option<Arc<SavedIndex>> {
        if let Some(index) = self.cached_index(segment.base) {
            return Some(index);
        }
        let reader = self.open_saved(segment)?;
        let index = Arc::new(reader.load().ok()?);
        self.cache_index(segment.base, &index);
        Some(index)
    }

    /// The index file of a sealed segment, when it is of the segment as this start found it.
    pub(crate) fn open_saved(&self, segment: &Segment) -> Option<IndexReader> {
        let summary = segment.sealed.get()?;
        open_index(&self.context, segment.base, summary.next).filter(|reader| {
            let index = &reader.head.index;
            index.next == summary.next && index.data_end == summary.data_end
        })
    }

    /// Makes the index of a sealed segment again; the maintenance thread saves it.
    pub(crate) fn rebuild(&self, segment: &Segment) -> Result<Arc<Index>, ReadError> {
        let summary = segment
            .sealed
            .get()
            .expect("only the active segment is not sealed");
        let (limit, newest) = (summary.next, self.context.epoch);
        let index = build_index(&self.context, &segment.path, segment.base, limit, newest);
        let index = index
            .map(Arc::new)
            .map_err(|error| io_error(&segment.path, error))?;
        self.forget_files(segment.base);
        *segment.index.lock() = IndexState::Memory(Arc::clone(&index));
        Ok(index)
    }
}
