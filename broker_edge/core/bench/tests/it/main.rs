//! Tests of `headwater bench`, in one program.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic anywhere")]

mod layers;
mod load;
mod small_broker;
