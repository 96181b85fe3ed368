//! What the writer, the reader and the retention of a partition share.

pub(crate) mod context;
pub(crate) mod core;
pub(crate) mod disk_budget;
pub(crate) mod stats;
