//! Holders, which still need records, and hooks, which may postpone a removal.

use std::ops::Range;
use std::sync::Arc;

use crate::ids::{Offset, PartitionId};
use crate::state::stats::Cause;

/// Called before retention removes the segment with these offsets; false postpones.
pub type DeleteHook = Arc<dyn Fn(Range<Offset>) -> bool + Send + Sync>;

/// A holder that still needs records of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    pub holder: String,
    /// The first offset that it has not finished.
    pub next: Offset,
}

/// Records that are removed although they are held.
#[derive(Debug, Clone)]
pub struct HeldLoss<'a> {
    pub partition: PartitionId,
    pub range: Range<Offset>,
    /// All of them begin below the end of the range.
    pub holds: &'a [Hold],
    pub cause: Cause,
}

/// Knows the holders. Called on the maintenance thread, and must not remove segments itself.
pub trait Holders: Send + Sync {
    /// The holders that have not finished the records below `end`.
    fn holding(&self, partition: PartitionId, end: Offset) -> Vec<Hold>;

    /// Held records are about to be removed.
    fn overridden(&self, loss: &HeldLoss<'_>);
}
