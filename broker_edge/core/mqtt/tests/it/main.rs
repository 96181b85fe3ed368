//! What the codec promises, in one program. Its allocator counts for each thread, and each test has a thread.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic anywhere")]

mod allocation;
mod codec;
mod counting;
mod fuzz;
