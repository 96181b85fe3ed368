//! Who calls, with which rights, and how much of the common resources a caller may use.

pub mod bearer;
pub mod budget;
pub mod caller;
pub mod sessions;
pub mod shares;
