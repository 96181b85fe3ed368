//! Tests of a broker over real sockets, in one program. The broker runs as a library in this process, or as a child
//! `headwaterd` if a test needs a separate process (signals, limits of file descriptors, memory).
#![allow(clippy::unwrap_used, reason = "a test that fails may panic anywhere")]

mod auth;
mod backup;
mod common;
mod conformance;
mod damage;
mod flight_read;
mod flight_write;
#[path = "../../../log/tests/it/imports.rs"]
mod imports;
mod lifecycle;
mod limits;
mod mqtt;
mod office;
mod operate;
mod retention;
mod rooms;
mod searched_topics;
mod sessions;
mod support;
mod transports;
