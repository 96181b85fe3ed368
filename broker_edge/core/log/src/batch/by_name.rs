//! Tables by names that clients choose.
//!
//! The hash has a key that is new in each process: nobody can choose names that all fall into one place.

use std::collections::HashMap;
use std::sync::LazyLock;

use ahash::RandomState;

pub(crate) type ByName<V> = HashMap<Box<str>, V, RandomState>;

/// The hash of a name, for tables of another shape.
pub(crate) fn name_hash(name: &str) -> u64 {
    static KEYED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    KEYED.hash_one(name)
}
