//! Which topic goes where: subscribers by filter, and interned topics. It knows sessions and groups only by their keys.

pub mod costly;
pub mod entries;
pub mod index;
pub mod position;
pub mod router;
pub mod topics;
pub mod walk;
pub mod work;

use super::ids::GroupId;

use costly::CostlyTopics;
use index::Index;
use router::Subscriber;
use topics::Topics;
use work::Work;

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
    work: Work,
}
