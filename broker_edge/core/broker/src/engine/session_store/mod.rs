//! What has to be stored of sessions, and what is on its way into the internal partition.

pub mod persist;
mod state_commit;

use std::rc::Rc;
use std::sync::Arc;

use crate::state::StateStore;

use super::SessionKey;
use super::lifecycle::will::Published;

use state_commit::StateCommits;

pub struct Store {
    pub(super) state: Arc<StateStore>,
    /// QoS 2 state on its way into the internal partition.
    pub(super) state_commits: StateCommits,
    /// Sessions whose cursors have to be checkpointed or that have receipts in progress, each at most once.
    pub(super) dirty: Vec<SessionKey>,
    /// Entries of `dirty` left in this checkpoint.
    pub(super) dirty_left: usize,
    /// Wills that were stored and are published, until their records are durable.
    pub(super) published_wills: Vec<Published>,
    /// The client whose stored session was removed last.
    pub(super) last_removed: Option<Rc<str>>,
}

impl Store {
    pub fn new(state: Arc<StateStore>) -> Self {
        Self {
            state,
            state_commits: StateCommits::default(),
            dirty: Vec::new(),
            dirty_left: 0,
            published_wills: Vec::new(),
            last_removed: None,
        }
    }
}
