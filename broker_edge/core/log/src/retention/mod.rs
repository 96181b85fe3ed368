//! What is removed when, and the upkeep that the maintenance thread does.

pub(crate) mod age;
pub(crate) mod maintenance;
pub(crate) mod rules;
