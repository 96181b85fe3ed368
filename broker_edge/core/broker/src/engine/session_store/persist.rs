//! Stored sessions: two state records per persistent session, and how a starting broker restores them.
//!
//! `session/<client id>` is written when subscriptions or attachment change, and is waited for; `cursor/<client id>` is
//! written once a second. In-flight deliveries are not stored: after a restart they are delivered again from the
//! cursor.

use std::collections::BTreeMap;
use std::rc::Rc;

use headwater_log::Offset;
use headwater_mqtt::packet::subscribe::RetainHandling;
use headwater_mqtt::{QoS, Version};
use serde::{Deserialize, Serialize};

use crate::engine::clients::timers::Timer;
use crate::engine::ids::PartitionIndex;
use crate::engine::lifecycle::will::{will_change, will_key};
use crate::engine::qos2::inbound::qos2_inbound_key;
use crate::engine::qos2::outbound::qos2_outbound_key;
use crate::engine::routing::router::Options;
use crate::engine::session::{NEVER_EXPIRES, Offline, Replay, Session, Subscription};
use crate::engine::shared_groups::is_shared;
use crate::engine::{Engine, SessionKey};
use crate::state::{Change, StateError};

/// Sessions whose cursors are written in one turn, with one append.
const CHECKPOINT_PART: usize = 256;

pub fn session_key(client_id: &str) -> String {
    format!("session/{client_id}")
}

pub fn cursor_key(client_id: &str) -> String {
    format!("cursor/{client_id}")
}

/// All keys of a session in the state store, with the value that removes them.
pub fn stored_keys(session: &Session) -> Vec<(String, Vec<u8>)> {
    let client_id = &session.client_id;
    let mut keys = vec![session_key(client_id), cursor_key(client_id)];
    if session.qos2_inbound.is_stored {
        keys.push(qos2_inbound_key(client_id));
    }
    if session.outbound_stored {
        keys.push(qos2_outbound_key(client_id));
    }
    if session.will_stored {
        keys.push(will_key(client_id));
    }
    keys.into_iter().map(|key| (key, Vec::new())).collect()
}

/// Value of `session/<client id>`.
#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct StoredSession {
    /// Seconds; `None` means never.
    expiry_s: Option<u32>,
    /// Unix microseconds; `None` while connected.
    away_since_us: Option<i64>,
    /// Identifies the session in the records of its QoS 2 publishes.
    #[serde(default)]
    life: u64,
    /// The user who owns the session: empty for an anonymous client, absent if no owner is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    subscriptions: Vec<StoredSubscription>,
}

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct StoredSubscription {
    filter: String,
    /// The tenant of the shared group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    qos: u8,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    no_local: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    retain_as_published: bool,
    #[serde(default)]
    retain_handling: u8,
    #[serde(default)]
    id: u32,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    offsets: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    offset_topics: bool,
    /// First offset per partition name.
    since: BTreeMap<String, u64>,
}

/// Value of `cursor/<client id>`: next offset per partition name, and those of replaying subscriptions by filter.
#[derive(Debug, Default, Serialize, Deserialize, PartialEq)]
struct StoredCursors {
    cursors: BTreeMap<String, u64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    replays: BTreeMap<String, BTreeMap<String, u64>>,
    /// Filters of replays that have caught up: they end where their subscription begins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    joined: Vec<String>,
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
        let client_id = Rc::clone(&session.client_id);
        let value = to_json(&self.stored_session(session));
        let cursors = to_json(&self.stored_cursors(session));
        let mut values = vec![
            (session_key(&client_id), value),
            (cursor_key(&client_id), cursors),
        ];
        let will = will_change(session);
        let has_will = will.as_ref().map(|(_, value)| !value.is_empty());
        values.extend(will);
        let groups = self.group_values_with(&[key]);
        let ids: Vec<_> = groups.iter().map(|(id, _, _)| *id).collect();
        values.extend(groups.into_iter().map(|(_, key, value)| (key, value)));
        let offset = self.write_values(&values)?;
        self.groups_stored(ids.into_iter());
        if let Some(session) = self.clients.session_mut(key) {
            session.will_stored = has_will.unwrap_or(session.will_stored);
            if !session.stored {
                session.stored = true;
                let account = session.account;
                self.note_stored(account, true);
            }
        }
        Ok(offset)
    }

    /// Stores a session when nobody waits for it; after a failure the next change or checkpoint stores it.
    pub(in crate::engine) fn store_session(&mut self, key: SessionKey) {
        if let Err(error) = self.try_store_session(key)
            && self.may_log_client()
        {
            tracing::warn!(%error, "a session cannot be stored now");
        }
    }

    /// Removes an ended session from the state store.
    pub(in crate::engine) fn forget_stored(&mut self, session: &Session) {
        if let Err(error) = self.write_values(&stored_keys(session)) {
            tracing::warn!(%error, client_id = &*session.client_id, "an ended session cannot be removed from the state store and stays there until it expires");
        }
        self.note_stored(session.account, false);
        self.store.last_removed = Some(Rc::clone(&session.client_id));
    }

    /// Begins a checkpoint of the sessions with acknowledgements since the last one.
    pub(in crate::engine) fn begin_checkpoint(&mut self) {
        if self.store.dirty_left == 0 {
            self.store.dirty_left = self.store.dirty.len();
            self.checkpoint_some();
        }
        self.checkpoint_groups(false);
    }

    /// Checkpoints the next part of them, so that many sessions do not block the loop.
    pub(in crate::engine) fn checkpoint_some(&mut self) {
        let count = self.store.dirty_left.min(CHECKPOINT_PART);
        let mut left = Vec::new();
        let mut changes: Vec<(SessionKey, String, Vec<u8>)> = Vec::new();
        // They stay in the list meanwhile: if the log refuses receipts, the list is searched for them.
        let part = self.store.dirty[..count].to_vec();
        for key in part {
            self.stage_receipts(key);
            self.drain();
            let Some(session) = self.clients.session_mut(key) else {
                continue;
            };
            session.window.shrink();
            session.extras.trim();
            session.dirty = !session.extras.receipts.is_empty();
            if session.dirty {
                left.push(key);
            }
            if let Some(session) = self.clients.session(key).filter(|session| session.stored) {
                let (cursor_key, cursors) = self.cursor_value(session);
                changes.push((key, cursor_key, cursors));
                if session.outbound_changed {
                    self.change(key);
                }
            }
        }
        let writes: Vec<Change<'_>> = changes
            .iter()
            .map(|(_, key, value)| Change {
                key,
                value: Some(value),
            })
            .collect();
        if let Err(error) = self.store.state.write(&writes) {
            tracing::warn!(%error, "cursors cannot be stored now; the next checkpoint tries again");
            for (key, _, _) in &changes {
                if let Some(session) = self.clients.session_mut(*key)
                    && !session.dirty
                {
                    session.dirty = true;
                    left.push(*key);
                }
            }
        }
        self.store.dirty.drain(..count);
        self.store.dirty.append(&mut left);
        self.store.dirty_left -= count;
        if self.store.dirty_left > 0 {
            self.clients
                .timers
                .set(self.env.now.mono_ms + 1, Timer::Cursors);
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
            self.stage_receipts(key);
            self.drain();
            self.store_session(key);
            self.change(key);
        }
        self.checkpoint_groups(true);
        self.forget_published_wills();
        self.mark_qos2_inbound(true);
        self.write_state_commit();
    }

    fn stored_session(&self, session: &Session) -> StoredSession {
        let tenants = self.tenants_of_groups(session);
        let subscription = |held: &Subscription| StoredSubscription {
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
            since: held
                .since
                .iter()
                .map(|(partition, offset)| (self.name_of(*partition), offset.0))
                .collect(),
        };
        StoredSession {
            expiry_s: (session.expiry_s != NEVER_EXPIRES).then_some(session.expiry_s),
            away_since_us: session.offline.as_ref().map(|away| away.since_us),
            life: session.life,
            user: session.owner().map(str::to_owned),
            subscriptions: session.subscriptions.iter().map(subscription).collect(),
        }
    }

    /// The checkpoint of a session as a key and value of the state store.
    pub(super) fn cursor_value(&self, session: &Session) -> (String, Vec<u8>) {
        let cursors = to_json(&self.stored_cursors(session));
        (cursor_key(&session.client_id), cursors)
    }

    fn stored_cursors(&self, session: &Session) -> StoredCursors {
        let cursor = |partition: PartitionIndex| {
            (
                self.name_of(partition),
                session
                    .cursor(partition, self.delivery.dispatched[partition.index()])
                    .0,
            )
        };
        let replay = |replay: &Replay| {
            let cursors = replay.cursors.iter().filter_map(|(partition, _)| {
                Some((
                    self.name_of(*partition),
                    session.replay_cursor(replay, *partition)?.0,
                ))
            });
            (replay.filter.to_string(), cursors.collect())
        };
        StoredCursors {
            cursors: self.data_partitions().map(cursor).collect(),
            replays: session.replays.iter().map(replay).collect(),
            joined: session
                .replays
                .iter()
                .filter(|replay| replay.joined || !replay.until.is_empty())
                .map(|replay| replay.filter.to_string())
                .collect(),
        }
    }

    pub(in crate::engine) fn name_of(&self, partition: PartitionIndex) -> String {
        self.env.partitions[partition.index()].name().to_owned()
    }

    /// Restores the sessions of the state store.
    pub(in crate::engine) fn restore_sessions(&mut self) {
        let mut stored = Vec::new();
        self.store.state.for_each_prefix("session/", |key, value| {
            stored.push((key["session/".len()..].to_owned(), value.clone()));
        });
        for (client_id, value) in stored {
            let session = match serde_json::from_slice::<StoredSession>(&value) {
                Ok(session) => session,
                Err(error) => {
                    tracing::error!(%error, client_id, "a stored session cannot be read and is skipped");
                    continue;
                }
            };
            let cursors = self.store.state.get(&cursor_key(&client_id));
            let cursors = cursors
                .and_then(|value| serde_json::from_slice(&value).ok())
                .unwrap_or_default();
            self.restore(&client_id, session, &cursors);
        }
        self.finish_restoring_groups();
        self.publish_left_wills();
    }

    fn restore(&mut self, client_id: &str, stored: StoredSession, cursors: &StoredCursors) {
        let client_id: Rc<str> = client_id.into();
        let life = if stored.life == 0 {
            self.next_life()
        } else {
            stored.life
        };
        let mut session = Session::new(Rc::clone(&client_id), Version::V311, life);
        session.stored = true;
        session.rights = stored
            .user
            .map(|user| self.protocol.auth_gate.authority.stored_rights(&user));
        self.quotas.stored_sessions += 1;
        session.expiry_s = stored.expiry_s.unwrap_or(NEVER_EXPIRES);
        let now = self.env.now;
        let away_since_us = stored.away_since_us.unwrap_or(now.wall_us).min(now.wall_us);
        let mut away = Offline::since(away_since_us);
        for partition in self.data_partitions() {
            // A partition added after the session was stored is read from its beginning.
            let next = cursors
                .cursors
                .get(self.env.partitions[partition.index()].name())
                .copied()
                .unwrap_or(0);
            session.fall_behind(partition, self.within_log(partition, next), Offset(0));
        }
        session.subscriptions = stored
            .subscriptions
            .iter()
            .map(|held| self.restored_subscription(held))
            .collect();
        let joined = &cursors.joined;
        for (number, (filter, cursors)) in (0..).zip(&cursors.replays) {
            let Some(subscription) = session.subscription(filter) else {
                continue;
            };
            let has_joined = joined.contains(filter);
            let until = if has_joined {
                subscription.since.to_vec()
            } else {
                Vec::new()
            };
            session.replays.push(Replay {
                number,
                filter: filter.as_str().into(),
                cursors: self.by_partition(cursors),
                joined: has_joined && until.is_empty(),
                until,
            });
            session.next_replay = number + 1;
        }
        for held in &stored.subscriptions {
            if is_shared(&held.filter) {
                let user = session.owner().map(str::to_owned);
                self.restore_group(&held.filter, held.tenant.as_deref(), user.as_deref());
            }
        }
        self.restore_qos2_outbound(&mut session);
        let away_ms = u64::try_from(now.wall_us - away_since_us).unwrap_or(0) / 1000;
        let expiry_ms = u64::from(session.expiry_s) * 1000;
        let expires = session.expiry_s != NEVER_EXPIRES;
        let held: Vec<(Box<str>, Options)> = session
            .subscriptions
            .iter()
            .map(|held| (held.filter.clone(), held.options))
            .collect();
        let due_ms = now.mono_ms + expiry_ms.saturating_sub(away_ms);
        away.expiry_due_ms = due_ms;
        session.offline = Some(away);
        session.is_unlisted = true;
        let key = self.clients.sessions.insert(session);
        for (of, (filter, options)) in stored.subscriptions.iter().zip(held) {
            if is_shared(&filter) {
                self.restore_member(key, (&filter, of.tenant.as_deref()), options);
            } else {
                self.routing.router.insert_away(&filter);
            }
        }
        self.clients.by_client.insert(client_id, key);
        self.restore_will(key);
        self.recount_bytes(key);
        if expires {
            self.clients.timers.set(due_ms, Timer::Expiry(key));
        }
    }

    fn restored_subscription(&self, held: &StoredSubscription) -> Subscription {
        Subscription {
            filter: held.filter.as_str().into(),
            options: Options {
                qos: QoS::from_u8(held.qos).unwrap_or(QoS::AtLeastOnce),
                no_local: held.no_local,
                retain_as_published: held.retain_as_published,
                id: held.id,
                offsets: held.offsets,
                offset_topics: held.offset_topics,
            },
            retain_handling: match held.retain_handling {
                1 => RetainHandling::SendIfNew,
                2 => RetainHandling::DoNotSend,
                _ => RetainHandling::Send,
            },
            since: self.by_partition(&held.since).into(),
        }
    }

    fn by_partition(&self, named: &BTreeMap<String, u64>) -> Vec<(PartitionIndex, Offset)> {
        let known = |(name, offset): (&String, &u64)| {
            let partition = PartitionIndex::of(self.env.log.by_name(name)?.id());
            Some((partition, self.within_log(partition, *offset)))
        };
        named.iter().filter_map(known).collect()
    }

    /// Limits a session's offset to the log. If a partition was restored from an older copy, it ends before that
    /// offset, and new records there are new to the session.
    fn within_log(&self, partition: PartitionIndex, offset: u64) -> Offset {
        let end = self.env.partitions[partition.index()].high_watermark();
        Offset(offset).min(end)
    }
}

pub(in crate::engine) fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("a plain structure becomes JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_session_reads_back() {
        let stored = StoredSession {
            expiry_s: Some(60),
            away_since_us: Some(5),
            user: Some("ann".to_owned()),
            life: 3,
            subscriptions: vec![StoredSubscription {
                filter: "devices/+/actions".to_owned(),
                tenant: None,
                qos: 1,
                no_local: true,
                retain_as_published: false,
                retain_handling: 2,
                id: 9,
                offsets: true,
                offset_topics: false,
                since: BTreeMap::from([("control-0".to_owned(), 7)]),
            }],
        };
        let back: StoredSession = serde_json::from_slice(&to_json(&stored)).expect("own JSON");
        assert_eq!(back, stored);
        let cursors: StoredCursors =
            serde_json::from_str(r#"{"cursors":{"telemetry-0":3}}"#).expect("no replays");
        assert_eq!(cursors.cursors["telemetry-0"], 3);
    }
}
