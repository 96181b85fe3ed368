//! The messages of etcd's protocol that are used here, with the fields that are used here. prost skips other fields.
//!
//! Numbers and types are those of `rpc.proto` and `kv.proto` in etcd 3.4 to 3.6, which only ever add fields.

use prost::{Message, Oneof};

pub const RANGE: &str = "/etcdserverpb.KV/Range";
pub const TXN: &str = "/etcdserverpb.KV/Txn";
pub const WATCH: &str = "/etcdserverpb.Watch/Watch";
pub const LEASE_GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
pub const LEASE_REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
pub const LEASE_KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
pub const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
pub const STATUS: &str = "/etcdserverpb.Maintenance/Status";

/// An answer, with the header that each of them has.
pub trait Answer: Message + Default {
    /// Whether the revision of its header is of the whole store, not of what the member has applied so far.
    const IS_LINEARIZABLE: bool = true;

    fn header(&self) -> Option<&Header>;
}

macro_rules! answers {
    ($($name:ident),*) => {
        $(impl Answer for $name {
            fn header(&self) -> Option<&Header> {
                self.header.as_ref()
            }
        })*
    };
}

answers!(
    RangeAnswer,
    TxnAnswer,
    WatchAnswer,
    LeaseGrantAnswer,
    LeaseRevokeAnswer,
    AuthenticateAnswer,
    StatusAnswer
);

impl Answer for LeaseKeepAliveAnswer {
    const IS_LINEARIZABLE: bool = false;

    fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct Header {
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Pair {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

/// Linearizable unless it says otherwise.
#[derive(Clone, PartialEq, Message)]
pub struct RangeAsk {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Empty: only this key.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub limit: i64,
    /// 0: the newest.
    #[prost(int64, tag = "4")]
    pub revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct RangeAnswer {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<Pair>,
    #[prost(bool, tag = "3")]
    pub more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct PutAsk {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Operation {
    #[prost(message, tag = "1")]
    Range(RangeAsk),
    #[prost(message, tag = "2")]
    Put(PutAsk),
}

#[derive(Clone, PartialEq, Message)]
pub struct OperationAsk {
    #[prost(oneof = "Operation", tags = "1, 2")]
    pub operation: Option<Operation>,
}

/// Of [`Compare::target`].
pub const TARGET_MOD_REVISION: i32 = 2;

/// Field 1, how to compare, is left out: 0 means equal.
#[derive(Clone, PartialEq, Message)]
pub struct Compare {
    #[prost(int32, tag = "2")]
    pub target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    /// Part of a oneof, which is why a zero has to be written.
    #[prost(int64, optional, tag = "6")]
    pub mod_revision: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TxnAsk {
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<OperationAsk>,
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<OperationAsk>,
}

#[derive(Clone, PartialEq, Message)]
pub struct OperationAnswer {
    /// Only that of a range is looked at.
    #[prost(message, optional, tag = "1")]
    pub range: Option<RangeAnswer>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TxnAnswer {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<OperationAnswer>,
}

#[derive(Clone, PartialEq, Message)]
pub struct WatchCreate {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct WatchProgress {}

#[derive(Clone, PartialEq, Oneof)]
pub enum WatchRequest {
    #[prost(message, tag = "1")]
    Create(WatchCreate),
    #[prost(message, tag = "3")]
    Progress(WatchProgress),
}

#[derive(Clone, PartialEq, Message)]
pub struct WatchAsk {
    #[prost(oneof = "WatchRequest", tags = "1, 3")]
    pub request: Option<WatchRequest>,
}

/// Of [`WatchEvent::kind`]; 0 is a put.
pub const EVENT_DELETE: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub struct WatchEvent {
    #[prost(int32, tag = "1")]
    pub kind: i32,
    #[prost(message, optional, tag = "2")]
    pub kv: Option<Pair>,
}

#[derive(Clone, PartialEq, Message)]
pub struct WatchAnswer {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(bool, tag = "3")]
    pub created: bool,
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    /// Above 0: the watch began below it and has missed changes.
    #[prost(int64, tag = "5")]
    pub compact_revision: i64,
    #[prost(string, tag = "6")]
    pub cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<WatchEvent>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseGrantAsk {
    #[prost(int64, tag = "1")]
    pub ttl_s: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseGrantAnswer {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(int64, tag = "2")]
    pub id: i64,
}

/// Also what a keep-alive asks.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseAsk {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseRevokeAnswer {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseKeepAliveAnswer {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// 0 or less: there is no such lease.
    #[prost(int64, tag = "3")]
    pub ttl_s: i64,
}

#[derive(Clone, PartialEq, Message)]
// What has a password or a token in it cannot be printed.
#[prost(skip_debug)]
pub struct AuthenticateAsk {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub password: String,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct AuthenticateAnswer {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(string, tag = "2")]
    pub token: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct StatusAsk {}

#[derive(Clone, PartialEq, Message)]
pub struct StatusAnswer {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(string, tag = "2")]
    pub version: String,
    /// 0: this member knows none.
    #[prost(uint64, tag = "4")]
    pub leader: u64,
}

/// The end of the range of all keys that begin with `prefix`.
pub fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // The bytes of a string are below 0xff.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}
