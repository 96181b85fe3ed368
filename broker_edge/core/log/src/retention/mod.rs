//! Which segments go and why, and the upkeep that the maintenance thread does.

pub(crate) mod age;
pub(crate) mod holds;
pub(crate) mod maintenance;
pub(crate) mod removal;
pub(crate) mod rules;
