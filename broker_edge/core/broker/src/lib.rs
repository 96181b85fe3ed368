//! The edge broker: the listeners around the log.
#![forbid(unsafe_code)]

pub mod config;
pub mod metrics;
