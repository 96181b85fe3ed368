//! The format of a segment file: its header, its name, and the scan over its batches.

pub(crate) mod create;
pub(crate) mod header;
pub(crate) mod scan;
