//! What has to be stored of sessions, and what is on its way into the internal partition.

pub mod checkpoint;
mod lately;
mod persist;
mod received;
mod restore;
mod sent;
mod state_commit;
pub mod wills;

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use headwater_log::Offset;

use crate::state::{Change, StateError, StateStore};

use super::SessionKey;
use super::ids::{CommitSeq, PartitionIndex};
use super::ingest::commits::Commits;
use super::session::Session;
use super::session::received::Qos2Inbound;
use super::stored::KeyValue;

use lately::StoredLately;
use wills::SettledWill;

/// Stands for the changes of QoS 2 state in the place of a partition. They have commits of their own: they may find the
/// queue full after other values were written, whose clients need not wait for them.
pub const CHANGES: PartitionIndex = PartitionIndex(u16::MAX);

pub struct Store {
    state: Arc<StateStore>,
    /// The changes of QoS 2 state on their way into the internal partition, and the sessions that wait for them.
    changes: Commits<SessionKey>,
    /// Sessions whose QoS 2 state changed and has to be written, each at most once.
    changed: Vec<SessionKey>,
    /// Sessions with records that their stored value does not cover, each at most once.
    unmarked: Vec<SessionKey>,
    /// The sizes of the partitions at the last mark of the packet ids in use.
    marked_bytes: Vec<u64>,
    /// Sessions whose cursors have to be checkpointed or that have receipts in progress, each at most once; from the
    /// beginning of a checkpoint to its end, those that come later.
    dirty: Vec<SessionKey>,
    /// Those that are left in this checkpoint.
    due: Vec<SessionKey>,
    /// What was stored of sessions since the last checkpoint.
    stored_lately: StoredLately,
    /// Wills that were stored and are published, until their records are durable.
    settled_wills: Vec<SettledWill>,
    /// The clients whose stored sessions were removed, until that is durable, each with the offset that it needs.
    removed: VecDeque<(Offset, Rc<str>)>,
}

impl Store {
    pub fn new(state: Arc<StateStore>, partitions: usize) -> Self {
        Self {
            state,
            changes: Commits::new(CommitSeq(1)),
            changed: Vec::new(),
            unmarked: Vec::new(),
            marked_bytes: vec![0; partitions],
            dirty: Vec::new(),
            due: Vec::new(),
            stored_lately: StoredLately::default(),
            settled_wills: Vec::new(),
            removed: VecDeque::new(),
        }
    }

    /// A stored value.
    pub fn get(&self, key: &str) -> Option<Arc<[u8]>> {
        self.state.get(key)
    }

    /// A number that this log never gives again.
    pub fn unique_number(&self) -> u64 {
        self.state.unique_number()
    }

    #[cfg(test)]
    pub fn changes(&self) -> &Commits<SessionKey> {
        &self.changes
    }

    /// Appends values to the internal partition. Whatever waits for them may continue once the state is durable up to
    /// the returned offset.
    pub fn write(&self, values: &[KeyValue]) -> Result<Offset, StateError> {
        let changes: Vec<Change<'_>> = values
            .iter()
            .map(|(key, value)| Change {
                key,
                value: (!value.is_empty()).then_some(value),
            })
            .collect();
        self.state.write(&changes)
    }

    /// The same when nobody waits for them. `failure` says what is wrong if they cannot be written now.
    pub fn try_write(&self, values: &[KeyValue], failure: &str) -> bool {
        let result = self.write(values);
        if let Err(error) = &result {
            tracing::warn!(%error, "{failure}");
        }
        result.is_ok()
    }

    /// Removes a value. Returns the offset at which that is durable.
    pub fn delete(&self, key: String) -> Result<Offset, StateError> {
        self.write(&[(key, Vec::new())])
    }

    /// The end of the state log, if it is not durable yet.
    pub fn pending(&self) -> Option<Offset> {
        let end = self.state.end();
        (end > self.state.durable()).then_some(end)
    }

    /// Whether the next value of a session of about this size counts against its tenant, because more than a little was
    /// stored of it since the last checkpoint.
    pub fn counts_next(&self, key: SessionKey, bytes: usize) -> bool {
        self.stored_lately.counts(key, bytes)
    }

    /// Where the last value of a session ends, if it is not durable yet.
    pub fn pending_value(&self, key: SessionKey) -> Option<Offset> {
        let until = self.stored_lately.last(key)?;
        (until > self.state.durable()).then_some(until)
    }

    /// The stored session of a client was removed by a write up to this offset.
    fn note_removed(&mut self, client_id: &Rc<str>, until: Offset) {
        self.removed.push_back((until, Rc::clone(client_id)));
        self.drop_durable_removals();
    }

    /// Where the removal of a client's stored session ends, if it is not durable yet.
    pub fn pending_removal(&mut self, client_id: &str) -> Option<Offset> {
        self.drop_durable_removals();
        let mut newest_first = self.removed.iter().rev();
        let found = newest_first.find(|(_, removed)| **removed == *client_id);
        found.map(|(until, _)| *until)
    }

    fn drop_durable_removals(&mut self) {
        let durable = self.state.durable();
        while self
            .removed
            .front()
            .is_some_and(|(until, _)| *until <= durable)
        {
            self.removed.pop_front();
        }
    }

    /// The session has records that its stored value does not cover.
    pub fn note_unmarked(&mut self, key: SessionKey, received: &mut Qos2Inbound) {
        if !std::mem::replace(&mut received.unmarked, true) {
            self.unmarked.push(key);
        }
    }

    /// The session has to be checkpointed.
    #[inline]
    pub fn note_dirty(&mut self, key: SessionKey, session: &mut Session) {
        if !std::mem::replace(&mut session.dirty, true) {
            self.dirty.push(key);
        }
    }
}
