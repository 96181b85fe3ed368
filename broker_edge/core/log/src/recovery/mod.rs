//! Recovery: a start reads the files of a partition and decides with which segment the partition goes on.

pub(crate) mod active;
pub(crate) mod anew;
pub(crate) mod checkpoint;
pub(crate) mod log_folder;
pub(crate) mod look;
pub(crate) mod lost_offsets;
pub(crate) mod meta;
pub(crate) mod partition;
pub(crate) mod quarantine;
pub(crate) mod replica;
pub(crate) mod rewrite;
pub(crate) mod sealed;
