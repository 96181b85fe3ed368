//! The read path of a partition: by offset, by topic, by time, and the tail cache.

pub(crate) mod batch_headers;
pub(crate) mod batch_positions;
pub(crate) mod block_scan;
pub(crate) mod block_select;
pub(crate) mod candidates;
pub(crate) mod damage;
pub(crate) mod lookup;
pub(crate) mod range;
pub(crate) mod single;
pub(crate) mod tail;
