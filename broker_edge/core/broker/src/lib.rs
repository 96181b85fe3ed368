//! The edge broker: the listeners around the log.
//!
//! [`Broker::start`] opens the log of a [`config::Config`] and starts the MQTT data plane, which has its own threads,
//! and the service runtime with Flight and admin HTTP. This crate never opens a data file (the log crate does) and
//! never parses MQTT bytes (the mqtt crate does).
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod audit;
pub mod auth;
mod changes;
pub mod cli;
pub mod client_events;
mod clock;
pub mod cluster;
pub mod cluster_files;
pub mod config;
pub mod data_plane;
mod descriptors;
mod engine;
mod event_loop;
pub mod filter;
pub mod filter_work;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzz;
mod hosts;
mod kept_text;
mod log_settings;
mod logging;
pub mod metrics;
#[cfg(test)]
#[path = "../tests/it/common/numbers.rs"]
mod numbers;
mod one_line;
pub mod pattern;
pub mod peer;
mod regular_file;
pub mod reload;
pub mod service;
pub mod state;
mod transport;

mod broker;
mod words;

pub use broker::{Broker, Elsewhere, StartError, StartOptions};

/// Version of the broker, as in `headwaterd --version` and Flight's `version`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
