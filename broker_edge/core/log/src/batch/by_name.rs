//! Tables by names that clients choose.
//!
//! Each process picks its own hash key, so that nobody can choose names that collide.

use std::collections::HashMap;
use std::sync::LazyLock;

use ahash::RandomState;

pub(crate) type ByName<V> = HashMap<Box<str>, V, RandomState>;

/// The hash of a name, for tables of another shape.
pub(crate) fn name_hash(name: &str) -> u64 {
    static KEYED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    KEYED.hash_one(name)
}
