//! The outside world as seams of a few calls: files, the clock, a sick disk.

pub(crate) mod clock;
pub(crate) mod direct;
pub(crate) mod files;
pub(crate) mod salvage;
pub(crate) mod system;
