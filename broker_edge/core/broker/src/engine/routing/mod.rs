//! Which topic goes where: subscribers by filter, and interned topics. It knows sessions and groups only by their keys.

pub mod costly;
pub mod entries;
pub mod index;
pub mod position;
pub mod router;
pub mod topics;
pub mod walk;

use std::cell::Cell;

use super::ids::GroupId;

use costly::CostlyTopics;
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
    pub costly: CostlyTopics,
    /// The cost of finding receivers since it was last taken, in visited nodes.
    visits: Cell<u64>,
    /// The cost of having many, in the same unit.
    deliveries: Cell<u64>,
}
