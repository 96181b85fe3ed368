//! Whole clusters in one thread: replicas with real logs on simulated disks, links, clocks and an etcd that fail as a
//! seed says.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic anywhere")]
#![allow(
    clippy::print_stdout,
    reason = "larger runs report what they have seen"
)]

mod cluster;
mod hints;
mod runs;
#[path = "../../../log/tests/it/support/sim/mod.rs"]
#[allow(dead_code, reason = "the tests of the log use the rest")]
mod sim;
mod stopped;
mod support;
