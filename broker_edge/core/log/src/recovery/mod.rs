//! What a start does: it finds out what the files hold and makes a partition of it.

pub(crate) mod active;
pub(crate) mod checkpoint;
pub(crate) mod lost_offsets;
pub(crate) mod meta;
pub(crate) mod quarantine;
pub(crate) mod sealed;
