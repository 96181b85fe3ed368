//! The protocol of a cluster: which replica leads, what is committed, what nodes say to each other.
//!
//! Pure state and bytes: no I/O, no clock, no threads. Messages and times come in as values; the caller sends, writes
//! and waits. Nothing of the broker is imported here. The contract is
//! `docs/cluster-protocol.md`, the reasons are in `docs/adr/0023-cluster-protocol.md`.
#![forbid(unsafe_code)]

pub mod breaker;
pub mod clocked;
pub mod commit;
pub mod credit;
pub mod divergence;
pub mod election;
pub mod frames;
pub mod key;
pub mod lease;
pub mod link;
pub mod marks;
pub mod member_key;
#[cfg(test)]
mod model;
pub mod replica_file;
pub mod rules;
pub mod shard;
