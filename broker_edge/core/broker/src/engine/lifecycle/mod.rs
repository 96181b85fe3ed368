//! How a client gets its session and leaves it.

mod attach;
pub mod close;
pub mod tick;
pub mod will;
