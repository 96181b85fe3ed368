//! The connections of Flight and of admin HTTP: accepted, limited, and closed with their pass.

pub mod gate;
pub mod guarded_socket;
pub mod health;
pub mod incoming;
pub mod slots;
