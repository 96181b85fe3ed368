//! The write path of a partition: idempotency keys, queue, group commit, space, and what a replica does besides.

pub(crate) mod active;
pub(crate) mod append;
pub(crate) mod append_unique;
pub(crate) mod group_commit;
pub(crate) mod idempotency;
pub(crate) mod preallocate;
pub(crate) mod queue;
pub(crate) mod replica;
mod stepping;
pub(crate) mod uncommitted;
pub(crate) mod writer;
