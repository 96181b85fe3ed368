//! The connections of Flight and of admin HTTP: accepted, limited, and closed with their pass.

mod expiry;
pub mod gate;
mod gate_limits;
pub mod guarded_socket;
pub mod incoming;
pub mod pass;
mod sites;
pub mod slots;
