//! What a broker promises over real sockets, in one program: its library in this process, or `headwaterd` as a child
//! where a test needs a process of its own (signals, limits of file descriptors, memory).
#![allow(clippy::unwrap_used, reason = "a test that fails may panic anywhere")]

mod auth;
mod backup;
mod common;
mod conformance;
mod damage;
mod flight_read;
mod flight_write;
mod lifecycle;
mod limits;
mod mqtt;
mod operate;
mod retention;
mod sessions;
mod support;
mod transports;
