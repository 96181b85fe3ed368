//! Tests of the log, in one program. `fuzz` is a separate program, because its allocator measures the whole process.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic anywhere")]

mod append_read;
mod backup;
mod bit_flips;
mod crash_points;
mod disk_budget;
mod doubt;
mod epochs;
mod failing_calls;
mod faults;
mod fixture;
mod flash;
mod forged;
mod holds;
mod imports;
mod leftovers;
mod list_of_topics;
mod lookup;
mod members;
mod model;
mod open;
mod purge;
mod races;
mod recovery;
mod replica;
mod retention;
mod rooms;
mod sealing;
mod single_reads;
mod size;
mod space;
mod stretches;
mod support;
mod tools;
mod torn;
mod upkeep;
