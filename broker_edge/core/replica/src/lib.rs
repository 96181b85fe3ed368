//! A replica of a cluster: carries out on the log what the state machine of `headwater-cluster` decides.
//!
//! No sockets, no threads, no clock: frames, answers of etcd and times are given to a [`Replica`], and what it wants is
//! taken from it. `docs/adr/0026-driver-of-a-replica.md` has the reasons,
//! `docs/cluster-protocol.md` the contract.
#![forbid(unsafe_code)]

mod chunks;
mod effects;
mod file;
mod founding;
mod open;
mod progress;
mod replica;
mod stream;

pub use founding::{FoundingError, OwnLog};
pub use open::{Setup, StartError};
pub use replica::{Input, Output, Replica};
