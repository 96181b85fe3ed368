//! etcd as the cluster uses it: keys that change by compare-and-swap, a watch of a prefix, leases.
//!
//! [`MetaStore`] is what the rest of the cluster sees; [`Client`] is etcd, [`fake`] is a store in memory for simulators
//! and tests. Nothing here starts a thread, and nothing knows what the values mean.

#![forbid(unsafe_code)]

mod belief;
mod client;
mod connect;
mod error;
pub mod fake;
mod options;
mod proto;
mod status;
mod store;
mod watch;
mod wire;

pub use client::Client;
pub use error::{Error, Fault};
pub use options::{Endpoint, Identity, Options, OptionsError, Patience, Tls, User};
pub use store::{
    CasOutcome, Change, KEYS_MAX, KeyValue, LISTING_BYTES_MAX, LeaseId, Listing, MetaStore, Read,
    Renewal, Revision, Update, VALUE_BYTES_MAX, Watch, Why,
};
pub use watch::EtcdWatch;
