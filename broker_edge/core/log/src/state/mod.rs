//! Settings, marks, statistics and the disk budget: shared by the writer, the reader and the retention of a partition.

pub(crate) mod context;
pub(crate) mod disk_budget;
pub(crate) mod stats;
pub(crate) mod status;
