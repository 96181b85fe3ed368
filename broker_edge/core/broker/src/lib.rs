//! The edge broker: the listeners around the log.
#![forbid(unsafe_code)]

pub mod config;
pub mod data_plane;
pub mod metrics;
pub mod state;
