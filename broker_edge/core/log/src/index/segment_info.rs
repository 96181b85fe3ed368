//! What is told of a segment to people who look into a log. Nothing is read of its file.

use crate::ids::Offset;
use crate::index::segment::{IndexState, Segment};

/// A segment as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentInfo {
    pub base: Offset,
    /// After the last offset. Of the active segment it may be above the high watermark.
    pub next: Offset,
    /// Bytes up to the last batch.
    pub bytes: u64,
    /// None while no record can be read.
    pub first_time_us: Option<i64>,
    /// The newest time in it, which clients do not set.
    pub last_time_us: Option<i64>,
    /// Nothing is written to it any more.
    pub is_sealed: bool,
    pub index: IndexPlace,
}

/// Where the index of a segment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexPlace {
    /// In memory, growing with the active segment.
    Growing,
    /// In memory; maintenance will save it.
    Unsaved,
    Saved,
    /// In memory only, because the segment could not be read in places.
    Provisional,
}

impl IndexPlace {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Growing => "growing",
            Self::Unsaved => "unsaved",
            Self::Saved => "saved",
            Self::Provisional => "provisional",
        }
    }
}

impl SegmentInfo {
    pub(crate) fn of(segment: &Segment) -> Self {
        let known = |time_us: i64| Some(time_us).filter(|time_us| *time_us != i64::MIN);
        let (next, first_time_us, last_time_us) = segment.with_head(|head| {
            (
                head.next,
                known(head.first_time_us),
                known(head.max_time_us),
            )
        });
        let index = match &*segment.index.lock() {
            IndexState::Building(_) => IndexPlace::Growing,
            IndexState::Memory(_) => IndexPlace::Unsaved,
            IndexState::Saved => IndexPlace::Saved,
            IndexState::Provisional(_) => IndexPlace::Provisional,
        };
        Self {
            base: segment.base,
            next,
            bytes: segment.data_end(),
            first_time_us,
            last_time_us,
            is_sealed: segment.sealed.get().is_some(),
            index,
        }
    }
}
