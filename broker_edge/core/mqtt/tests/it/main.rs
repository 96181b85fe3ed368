//! Tests of the codec, in one program. Its allocator counts per thread, and each test has its own thread.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic anywhere")]

mod allocation;
mod codec;
mod counting;
mod fuzz;
