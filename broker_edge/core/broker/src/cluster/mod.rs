//! A node of a cluster: what puts replica, links and etcd together into a broker.
//!
//! [`join`] asks etcd and opens the log; [`Joined::run`] begins three threads: `headwater-cluster` drives the replica
//! and the links, `headwater-etcd` speaks with etcd, `headwater-office` opens and leaves the office.
//! `docs/adr/0029-node.md` has the reasons. A broker alone has nothing of this.

mod clock;
mod desk;
pub mod inbox;
pub mod join;
pub mod keys;
mod leaving;
mod meta;
mod mistakes;
mod node;
mod reopening;
mod replicas;
pub mod report;
mod start;
pub mod transfer;
mod wake;

pub use desk::Clients;
pub use node::{Ended, OnEnd};
pub use start::{Joined, NodeError, Options, Running, join};
