//! Between etcd's messages and the values of a store.

use crate::error::Fault;
use crate::proto::{self, Operation, OperationAsk, Pair};
use crate::status::shortened;
use crate::store::{KeyValue, LeaseId, Revision, VALUE_BYTES_MAX};

pub fn compare_and_swap(
    key: &str,
    expected: Revision,
    value: Vec<u8>,
    lease: Option<LeaseId>,
) -> proto::TxnAsk {
    let operation = |operation| OperationAsk {
        operation: Some(operation),
    };
    proto::TxnAsk {
        compare: vec![proto::Compare {
            target: proto::TARGET_MOD_REVISION,
            key: key.into(),
            mod_revision: Some(wire(expected)),
        }],
        success: vec![operation(Operation::Put(proto::PutAsk {
            key: key.into(),
            value,
            lease: lease.map_or(0, |lease| lease.0),
        }))],
        failure: vec![operation(Operation::Range(proto::RangeAsk {
            key: key.into(),
            ..Default::default()
        }))],
    }
}

pub fn key_value(pair: Pair) -> Result<KeyValue, Fault> {
    let key = String::from_utf8_lossy(&pair.key).into_owned();
    if pair.value.len() > VALUE_BYTES_MAX {
        let bytes = pair.value.len();
        let key = shortened(&key);
        return Err(Fault::LargeValue { key, bytes });
    }
    Ok(KeyValue {
        key,
        revision: revision(pair.mod_revision),
        value: pair.value,
        lease: Some(LeaseId(pair.lease)).filter(|lease| lease.0 != 0),
    })
}

/// etcd counts from 1; below that it has not said a revision.
pub fn revision(number: i64) -> Revision {
    Revision(u64::try_from(number).unwrap_or(0))
}

/// A revision that no etcd can have is none that a key has.
pub fn wire(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}
