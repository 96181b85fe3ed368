//! The file format of a segment: its header, its names, and the scan over its batches.

pub(crate) mod header;
pub(crate) mod scan;
