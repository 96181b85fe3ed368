//! The outside world as seams of a few calls: files, the clock, reading a sick disk.

pub(crate) mod clock;
pub(crate) mod direct;
pub(crate) mod files;
pub(crate) mod salvage;
