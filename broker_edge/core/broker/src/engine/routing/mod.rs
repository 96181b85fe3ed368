//! Which topic goes where: subscribers by filter, and interned topics. It knows sessions and groups only by their keys.

mod entries;
mod index;
pub mod position;
pub mod router;
pub mod topics;

use std::cell::Cell;

use super::ids::GroupId;

use index::Index;
use router::Subscriber;
use topics::Topics;

#[derive(Default)]
pub struct Routing {
    plain: Index<Subscriber>,
    /// Shared groups, by their filter without `$share/<name>/`.
    shared: Index<GroupId>,
    groups: usize,
    /// Incremented by every change, which invalidates cached matches.
    epoch: u64,
    subscriptions: usize,
    topics: Topics,
    /// The cost of finding receivers and of having many, since it was last taken.
    work: Cell<u64>,
}
