//! The store of the cluster's metadata, as its users see it.

use std::future::Future;
use std::time::Duration;

pub use headwater_cluster::key::Revision;

use crate::error::Error;

/// A larger value is not given to anybody: the cluster's own are below 1 KiB.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;
/// More keys under one prefix are refused.
pub const KEYS_MAX: usize = 16 * 1024;
/// More bytes of keys and values under one prefix are refused.
pub const LISTING_BYTES_MAX: usize = 32 * 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    pub key: String,
    /// Of the last change of this key.
    pub revision: Revision,
    pub value: Vec<u8>,
    pub lease: Option<LeaseId>,
}

/// One key, read linearizably.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// Of the whole store when it was read.
    pub revision: Revision,
    pub found: Option<KeyValue>,
}

/// All keys of a prefix as of one revision, in the order of their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub revision: Revision,
    pub keys: Vec<KeyValue>,
}

/// How a compare-and-swap ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum CasOutcome {
    /// Written. No other write of this key lies between the expected revision and this one.
    Done(Revision),
    /// Not written, because the key is this; `None`: there is no such key. An earlier write whose outcome was unknown
    /// may be the reason.
    Conflict(Option<KeyValue>),
    /// Not written: it was not sent, or etcd refused it.
    NotDone(Error),
    /// Written, not written, or still on its way.
    Unknown(Error),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub key: String,
    pub revision: Revision,
    /// `None` when it was deleted or its lease ended.
    pub value: Option<Vec<u8>>,
}

/// Why a watch shows all keys instead of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    First,
    /// The store has compacted changes that this watch has not seen, or they are too large for one answer. Keys that
    /// were deleted are missing here.
    Missed,
}

/// What a watch has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// Forget what was known of the prefix: this is all of it.
    All { why: Why, listing: Listing },
    /// In the order in which they were made. Never empty.
    Changes(Vec<Change>),
    /// Nothing is seen for now. The watch goes on by itself, without a gap; only of a value that is too large
    /// ([`Fault::LargeValue`](crate::Fault::LargeValue)) nothing but this error is shown.
    Failed(Error),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// The lease ends after this time unless it is renewed again.
    Alive(Duration),
    /// Its keys are gone, or are about to go.
    Expired,
}

/// Changes of a prefix.
pub trait Watch: Send {
    /// Waits for the next update. May be dropped while it waits, without losing one.
    fn next(&mut self) -> impl Future<Output = Update> + Send;
}

/// Keys that all nodes of a cluster see alike. Clones share one store.
pub trait MetaStore: Clone + Send + Sync + 'static {
    type Watch: Watch;

    /// Reads a key linearizably: it shows every write that ended before the read began.
    fn get(&self, key: &str) -> impl Future<Output = Result<Read, Error>> + Send;

    /// Reads all keys that begin with `prefix`, linearizably.
    fn get_all(&self, prefix: &str) -> impl Future<Output = Result<Listing, Error>> + Send;

    /// Writes a key if its last change has this revision; [`Revision`] 0: if there is no such key.
    fn cas(
        &self,
        key: &str,
        expected: Revision,
        value: Vec<u8>,
        lease: Option<LeaseId>,
    ) -> impl Future<Output = CasOutcome> + Send;

    /// Writes a key if there is none.
    fn put_if_absent(
        &self,
        key: &str,
        value: Vec<u8>,
        lease: Option<LeaseId>,
    ) -> impl Future<Output = CasOutcome> + Send {
        self.cas(key, Revision(0), value, lease)
    }

    /// All keys of a prefix, then its changes. Nothing is sent before the first [`Watch::next`].
    fn watch(&self, prefix: &str) -> Self::Watch;

    /// Begins a lease: its keys are deleted when it has not been renewed for this time, in whole seconds. etcd may give
    /// a longer time than asked for. After an error there may be a lease that nobody knows; it ends by itself.
    fn grant(&self, ttl: Duration) -> impl Future<Output = Result<LeaseId, Error>> + Send;

    fn renew(&self, lease: LeaseId) -> impl Future<Output = Result<Renewal, Error>> + Send;

    /// Ends a lease and deletes its keys. A lease that has ended already is no error.
    fn revoke(&self, lease: LeaseId) -> impl Future<Output = Result<(), Error>> + Send;
}
