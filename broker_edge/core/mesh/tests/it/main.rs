//! Meshes over real sockets of one machine, with a clock that the test moves.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic anywhere")]

mod links;
mod support;
mod tls;
