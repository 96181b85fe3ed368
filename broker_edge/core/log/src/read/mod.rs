//! The read path of a partition: by offset, topic and time, and the tail cache.

pub(crate) mod batch_positions;
pub(crate) mod block_scan;
pub(crate) mod candidates;
pub(crate) mod damage;
pub(crate) mod found;
pub(crate) mod gap;
pub(crate) mod lookup;
pub(crate) mod range;
pub(crate) mod reader;
pub(crate) mod tail;
