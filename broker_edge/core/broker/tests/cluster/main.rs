//! Whole clusters: three `headwaterd` and an etcd, as processes of their own. What they acknowledge survives kills and
//! stops, and clients are told where to go.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic anywhere")]

mod bad;
#[path = "../it/common/mod.rs"]
#[allow(dead_code)]
mod common;
#[path = "../../../etcd/tests/it/support.rs"]
#[allow(dead_code)]
mod etcd;
mod failover;
mod founding;
mod office;
mod site;
mod transfer;
