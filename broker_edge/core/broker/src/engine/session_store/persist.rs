//! Stored sessions: what is written of a session, when, and what is removed with it.
//!
//! A session has up to five keys, one file each in `stored`. `session` and a waiting `will` are written when they
//! change, with the `cursor`, which is also written once a second; `received` and `sent` by `state_commit`, because
//! packets wait for them. A new key belongs in `stored_keys`: otherwise it outlives its session. QoS 1 deliveries in
//! flight are not stored: after a restart they are delivered again from the cursor.

use headwater_log::Offset;

use crate::engine::clients::timers::Timer;
use crate::engine::ids::PartitionIndex;
use crate::engine::ingest::own::OwnRecords;
use crate::engine::session::replay::Replay;
use crate::engine::session::{NEVER_EXPIRES, Session, Subscription};
use crate::engine::stored::{self, KeyValue, Names, encode, to_hex};
use crate::engine::{Engine, SessionKey};
use crate::state::StateError;

/// Sessions whose cursors are written in one turn, with one append.
const CHECKPOINT_PART: usize = 256;

/// All keys of a session in the state store, with the value that removes them.
pub fn stored_keys(session: &Session) -> Vec<KeyValue> {
    let id = &session.client_id;
    let keys = [
        (true, stored::session::key(id)),
        (true, stored::cursors::key(id)),
        (session.qos2_inbound.is_stored, stored::received::key(id)),
        (session.outbound_stored, stored::sent::key(id)),
        (session.will_stored, stored::will::key(id)),
    ];
    let stored = keys.into_iter().filter(|(is_stored, _)| *is_stored);
    stored.map(|(_, key)| (key, Vec::new())).collect()
}

/// The value of the session's will for the state store, if it has changed; an empty value removes it.
fn will_change(session: &Session) -> Option<KeyValue> {
    let away = session.offline.as_ref();
    let waiting = away
        .and_then(|away| away.will.as_ref())
        .and_then(|(_, will)| {
            let (due_us, token) = will.waits.as_ref()?;
            Some(stored::will::Will {
                due_us: *due_us,
                token: token.to_string(),
                topic: will.topic.to_string(),
                qos: will.qos,
                retain: will.retain,
                properties: to_hex(&will.properties),
                payload: to_hex(&will.payload),
            })
        });
    match (waiting, session.will_stored) {
        (Some(will), false) => Some((stored::will::key(&session.client_id), encode(&will))),
        (None, true) => Some((stored::will::key(&session.client_id), Vec::new())),
        _ => None,
    }
}

impl Engine {
    /// Stores session and cursors. Whatever waits for them may continue once the state is durable up to the returned
    /// offset.
    pub(in crate::engine) fn try_store_session(
        &mut self,
        key: SessionKey,
    ) -> Result<Offset, StateError> {
        let Some(session) = self.clients.session(key) else {
            return Ok(self.store.state.durable());
        };
        let value = encode(&self.stored_session(session));
        let mut values = vec![
            (stored::session::key(&session.client_id), value),
            self.cursor_value(session),
        ];
        let will = will_change(session);
        let has_will = will.as_ref().map(|(_, value)| !value.is_empty());
        values.extend(will);
        let offset = self.write_with_groups(values, &[key])?;
        if let Some(session) = self.clients.session_mut(key) {
            session.will_stored = has_will.unwrap_or(session.will_stored);
            if !session.stored {
                session.stored = true;
                let account = session.account;
                self.quotas.note_stored(account, true);
            }
        }
        Ok(offset)
    }

    /// Writes values of sessions, and in the same append the cursors of their groups that have to be stored with them.
    pub(super) fn write_with_groups(
        &mut self,
        mut values: Vec<KeyValue>,
        keys: &[SessionKey],
    ) -> Result<Offset, StateError> {
        let ids = self.groups_to_store_with(keys);
        values.extend(ids.iter().filter_map(|id| self.group_value(*id)));
        let end = self.store.write(&values)?;
        self.groups_stored(&ids);
        Ok(end)
    }

    /// Stores a session when nobody waits for it; after a failure the next change or checkpoint stores it.
    pub(in crate::engine) fn store_session(&mut self, key: SessionKey) {
        if let Err(error) = self.try_store_session(key)
            && self.observe.may_log_client(self.env.now.mono_ms)
        {
            tracing::warn!(%error, "a session cannot be stored now");
        }
    }

    /// Removes an ended session from the state store.
    pub(in crate::engine) fn forget_stored(&mut self, session: &Session) {
        match self.store.write(&stored_keys(session)) {
            Ok(until) => self.store.note_removed(&session.client_id, until),
            Err(error) => {
                tracing::warn!(%error, client_id = &*session.client_id, "an ended session cannot be removed from the state store and stays there until it expires");
            }
        }
        self.quotas.note_stored(session.account, false);
    }

    /// Begins a checkpoint of the sessions with acknowledgements since the last one.
    pub(in crate::engine) fn begin_checkpoint(&mut self) {
        if self.store.due.is_empty() {
            self.store.due = std::mem::take(&mut self.store.dirty);
            self.checkpoint_some();
        }
        self.checkpoint_groups(false);
    }

    /// Checkpoints the next part of them, so that many sessions do not block the loop.
    pub(in crate::engine) fn checkpoint_some(&mut self) {
        let from = self.store.due.len().saturating_sub(CHECKPOINT_PART);
        let part = self.store.due.split_off(from);
        let mut values = Vec::with_capacity(part.len());
        for key in &part {
            lend!(self => OwnRecords).stage_receipts(*key);
            self.drain();
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
            .sessions
            .iter()
            .filter(|(_, session)| session.stored)
            .map(|(key, _)| key)
            .collect();
        for key in keys {
            // A receipt that became durable since the last checkpoint no longer holds the cursor back. Without this, a
            // device would get its last command again after a clean stop.
            lend!(self => OwnRecords).stage_receipts(key);
            self.drain();
            self.store_session(key);
            self.change(key);
        }
        self.checkpoint_groups(true);
        self.forget_published_wills();
        self.mark_qos2_inbound(true);
        self.write_state_commit();
    }

    fn stored_session(&self, session: &Session) -> stored::session::Session {
        let names = Names(&self.env.partitions);
        let tenants = self.groups.tenants_of(session);
        let subscription = |held: &Subscription| stored::session::Subscription {
            filter: held.filter.to_string(),
            tenant: tenants
                .get(&*held.filter)
                .map(|tenant| (*tenant).to_owned()),
            qos: held.options.qos.as_u8(),
            no_local: held.options.no_local,
            retain_as_published: held.options.retain_as_published,
            retain_handling: held.retain_handling as u8,
            id: held.options.id,
            offsets: held.options.offsets,
            offset_topics: held.options.offset_topics,
            since: names.offsets(held.since.iter().copied()),
        };
        stored::session::Session {
            expiry_s: (session.expiry_s != NEVER_EXPIRES).then_some(session.expiry_s),
            away_since_us: session.offline.as_ref().map(|away| away.since_us),
            life: session.life,
            user: session.owner().map(str::to_owned),
            subscriptions: session.subscriptions.iter().map(subscription).collect(),
        }
    }

    /// The checkpoint of a session as a key and value of the state store.
    pub(super) fn cursor_value(&self, session: &Session) -> KeyValue {
        let cursors = encode(&self.stored_cursors(session));
        (stored::cursors::key(&session.client_id), cursors)
    }

    fn stored_cursors(&self, session: &Session) -> stored::cursors::Cursors {
        let names = Names(&self.env.partitions);
        let cursor = |partition: PartitionIndex| {
            let live_at = self.delivery.live_at(partition);
            (partition, session.cursor(partition, live_at))
        };
        let replay = |replay: &Replay| {
            (
                replay.filter.to_string(),
                names.offsets(session.replay_cursors(replay)),
            )
        };
        stored::cursors::Cursors {
            cursors: names.offsets(self.env.data_partitions().map(cursor)),
            replays: session.replays.iter().map(replay).collect(),
            joined: session
                .replays
                .iter()
                .filter(|replay| replay.joined || !replay.until.is_empty())
                .map(|replay| replay.filter.to_string())
                .collect(),
        }
    }
}
