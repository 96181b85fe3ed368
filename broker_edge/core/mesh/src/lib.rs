//! The connections between the nodes of a cluster: sockets, TLS, who dials when, and which connection is the link of a
//! peer.
//!
//! One thread owns a [`Mesh`] and everything behind it; times are given to it. What a connection says is decided in
//! `headwater_cluster::link`, and the reasons are in `docs/adr/0028-links.md`.
#![forbid(unsafe_code)]

mod dial;
mod mesh;
mod peer;
mod socket;

pub use mesh::{Mesh, MeshEvent, Setup};
pub use socket::Tls;
