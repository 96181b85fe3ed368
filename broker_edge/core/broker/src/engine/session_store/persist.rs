//! Stored sessions: what is written of a session, when, and what is removed with it.
//!
//! A session has up to five keys, one file each in `stored`. `session` and a waiting `will` are written when they
//! change, with the `cursor`, which is also written once a second; `received` and `sent` by `state_commit`, because
//! packets wait for them. A new key belongs in `stored_keys`: otherwise it outlives its session. QoS 1 deliveries in
//! flight are not stored: after a restart they are delivered again from the cursor.

use headwater_log::Offset;

use crate::engine::SessionKey;
use crate::engine::ids::PartitionIndex;
use crate::engine::quotas::Quotas;
use crate::engine::session::replay::Replay;
use crate::engine::session::{NEVER_EXPIRES, Session, Subscription};
use crate::engine::stored::{self, KeyValue, Names, encode};
use crate::state::StateError;

use super::Store;
use super::checkpoint::Checkpointing;
use super::wills::will_change;

/// All keys of a session in the state store, with the value that removes them.
fn stored_keys(session: &Session) -> Vec<KeyValue> {
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

impl Store {
    /// Removes an ended session from the state store.
    pub fn forget(&mut self, session: &Session, quotas: &mut Quotas) {
        match self.write(&stored_keys(session)) {
            Ok(until) => self.note_removed(&session.client_id, until),
            Err(error) => {
                tracing::warn!(%error, client_id = &*session.client_id, "an ended session cannot be removed from the state store and stays there until it expires");
            }
        }
        quotas.note_stored(session.account, false);
    }
}

impl Checkpointing<'_> {
    /// Stores session and cursors. Whatever waits for them may continue once the state is durable up to the returned
    /// offset.
    pub fn try_store_session(&mut self, key: SessionKey) -> Result<Offset, StateError> {
        let Some(session) = self.clients.session(key) else {
            return Ok(self.store.state.durable());
        };
        let value = encode(&self.stored_session(session));
        let (account, value_bytes) = (session.account, value.len());
        let mut values = vec![
            (stored::session::key(&session.client_id), value),
            self.cursor_value(session),
        ];
        let will = will_change(session);
        let has_will = will.as_ref().map(|(_, value)| !value.is_empty());
        values.extend(will);
        let offset = self.write_with_groups(values, &[key])?;
        let counted = self.store.stored_lately.note(key, value_bytes, offset);
        self.quotas
            .note_stored_bytes(account, counted, self.env.now.mono_ms);
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
        let ids = self.groups.to_store_with(keys, self.clients);
        values.extend(self.group_values(&ids));
        let end = self.store.write(&values)?;
        self.groups.note_stored(&ids);
        Ok(end)
    }

    /// Stores a session when nobody waits for it; after a failure the next change or checkpoint stores it.
    pub fn store_session(&mut self, key: SessionKey) {
        if let Err(error) = self.try_store_session(key)
            && self.observe.may_log_client(self.env.now.mono_ms)
        {
            tracing::warn!(%error, "a session cannot be stored now");
        }
    }

    /// Brings the state store in line with a session that was just attached. Returns the offset that its CONNACK has to
    /// wait for.
    ///
    /// # Errors
    /// The state store accepts nothing now.
    pub fn store_attached(&mut self, key: SessionKey) -> Result<Option<Offset>, StateError> {
        let Some(session) = self.clients.session_mut(key) else {
            return Ok(None);
        };
        if session.expiry_s > 0 {
            return self.try_store_session(key).map(Some);
        }
        if !session.stored {
            // A clean start may have deleted a stored session just now: the removal must be durable as well.
            return Ok(self.store.pending_removal(&session.client_id));
        }
        let offset = self.store.write(&stored_keys(session))?;
        session.stored = false;
        if session.qos2_inbound.is_stored {
            session.qos2_inbound.is_stored = false;
        }
        session.outbound_stored = false;
        session.will_stored = false;
        self.quotas.note_stored(session.account, false);
        Ok(Some(offset))
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
            let live_at = self.live[partition.index()];
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
            replays: session.extras.replays.iter().map(replay).collect(),
            joined: session
                .extras
                .replays
                .iter()
                .filter(|replay| replay.joined || !replay.until.is_empty())
                .map(|replay| replay.filter.to_string())
                .collect(),
        }
    }
}
