//! Checkpoints: the cursors of sessions and groups, once a second and at a clean stop.

use headwater_log::Offset;

use crate::engine::SessionKey;
use crate::engine::clients::Clients;
use crate::engine::clients::timers::Timer;
use crate::engine::effects::Effects;
use crate::engine::env::Env;
use crate::engine::ids::GroupId;
use crate::engine::ingest::Ingest;
use crate::engine::ingest::own::OwnRecords;
use crate::engine::observe::Observe;
use crate::engine::quotas::Quotas;
use crate::engine::routing::Routing;
use crate::engine::shared_groups::Groups;
use crate::engine::stored::KeyValue;

use super::Store;

/// Sessions whose cursors are written in one turn, with one append.
const CHECKPOINT_PART: usize = 256;
/// Cursors of groups per append: with all their ranges they fit into one batch.
const CHECKPOINT_GROUPS: usize = 32;

/// What writes sessions and groups to the state store, and restores them from it.
pub struct Checkpointing<'a> {
    pub env: &'a Env,
    /// The positions of the live stream, by partition.
    pub live: &'a [Offset],
    pub store: &'a mut Store,
    pub clients: &'a mut Clients,
    pub groups: &'a mut Groups,
    pub quotas: &'a mut Quotas,
    pub routing: &'a mut Routing,
    pub ingest: &'a mut Ingest,
    pub observe: &'a mut Observe,
    pub effects: &'a mut Effects,
}

impl Checkpointing<'_> {
    /// Begins a checkpoint of the sessions with acknowledgements since the last one.
    pub fn begin_checkpoint(&mut self) {
        self.store.stored_lately.forget();
        if self.store.due.is_empty() {
            self.store.due = std::mem::take(&mut self.store.dirty);
            self.checkpoint_some();
        }
        self.checkpoint_groups(false);
    }

    /// Checkpoints the next part of them, so that many sessions do not block the loop.
    pub fn checkpoint_some(&mut self) {
        let from = self.store.due.len().saturating_sub(CHECKPOINT_PART);
        let part = self.store.due.split_off(from);
        let mut values = Vec::with_capacity(part.len());
        for key in &part {
            lend!(self => OwnRecords).stage_receipts(*key);
            let Some(session) = self.clients.session_mut(*key) else {
                continue;
            };
            session.window.shrink();
            session.extras.trim();
            session.dirty = false;
            if !session.extras.receipts.is_empty() {
                self.store.note_dirty(*key, session);
            }
            if session.outbound_changed {
                self.store.change(*key, session);
            }
            if let Some(session) = self.clients.session(*key).filter(|session| session.stored) {
                values.push(self.cursor_value(session));
            }
        }
        let failure = "cursors cannot be stored now; the next checkpoint tries again";
        if !self.store.try_write(&values, failure) {
            for key in part {
                if let Some(session) = self.clients.session_mut(key)
                    && session.stored
                {
                    self.store.note_dirty(key, session);
                }
            }
        }
        if !self.store.due.is_empty() {
            self.clients
                .set_timer(self.env.now.mono_ms + 1, Timer::Cursors);
        }
    }

    /// Stores every persistent session, for a clean stop.
    pub fn store_all(&mut self) {
        let keys: Vec<SessionKey> = self
            .clients
            .sessions()
            .filter(|(_, session)| session.stored)
            .map(|(key, _)| key)
            .collect();
        for key in keys {
            // A receipt that became durable since the last checkpoint no longer holds the cursor back. Without this, a
            // device would get its last command again after a clean stop.
            lend!(self => OwnRecords).stage_receipts(key);
            self.store_session(key);
            if let Some(session) = self.clients.session_mut(key) {
                self.store.change(key, session);
            }
        }
        self.checkpoint_groups(true);
        self.store.forget_settled_wills(self.clients, self.env);
        self.mark_received(true);
        self.write_state_commit();
    }

    /// Checkpoints the cursors of groups with acknowledgements since the last checkpoint, or of all groups.
    fn checkpoint_groups(&mut self, all: bool) {
        for ids in self.groups.to_checkpoint(all).chunks(CHECKPOINT_GROUPS) {
            let values = self.group_values(ids);
            let failure =
                "cursors of shared groups cannot be stored now; the next checkpoint tries again";
            if !self.store.try_write(&values, failure) {
                return;
            }
            self.groups.note_checkpointed(ids);
        }
        let ended = self.groups.ended_values();
        if !ended.is_empty() && self.store.write(&ended).is_ok() {
            self.groups.forget_ended();
        }
    }

    /// The cursors of groups for the state store.
    pub fn group_values(&self, ids: &[GroupId]) -> Vec<KeyValue> {
        let value = |id: &GroupId| self.groups.value(*id, self.live, self.clients, self.env);
        ids.iter().filter_map(value).collect()
    }
}
