//! Delayed wills survive the broker, and each is published once.
//!
//! A delayed will is a value of the internal partition, `will/<client id>`, written in the same append as the session
//! that was disconnected. It is published under its own idempotency key and removed once the record is durable; after a
//! crash in between, the record is found by its key. `session_store/wills.rs` writes and reads it.
//!
//! Wills of connected clients are only kept in memory, as in Mosquitto: when the broker is killed they are lost with
//! the connections, because which clients are gone is only known after they had time to reconnect.

use std::rc::Rc;

use headwater_log::{AppendError, RecordMeta};

use crate::auth::Access;
use crate::engine::SessionKey;
use crate::engine::clients::timers::Timer;
use crate::engine::observe::Count;
use crate::engine::quotas::AccountId;
use crate::engine::session::connection::Will;
use crate::engine::session_store::wills::SettledWill;

use super::Lifecycle;

/// When to retry a will that the log did not accept.
const RETRY_MS: u64 = 100;

impl Lifecycle<'_> {
    /// Whether a will may be published to a topic: the same rules as for a publish of the client.
    fn may_publish_will(&self, key: SessionKey, will: &Will) -> bool {
        self.env.refusal_of_name(&will.topic).is_none() && self.has_right_to_will(key, will)
    }

    pub fn has_right_to_will(&self, key: SessionKey, will: &Will) -> bool {
        let topic = &*will.topic;
        let session = self.clients.session(key);
        session.is_some_and(|session| {
            session.may(Access::Publish, topic)
                && (!will.is_by_files || session.files_allow_stored(topic))
        })
    }

    /// Makes a will wait for its delay, or for the end of the session if that is earlier.
    pub fn await_will(&mut self, key: SessionKey, mut will: Box<Will>) {
        if !self.may_publish_will(key, &will) {
            // It is refused now, because the rights may be unknown after a restart.
            return self.publish_will(key, &will);
        }
        let now = self.env.now;
        let Some(session) = self.clients.session_mut(key) else {
            return;
        };
        let delay_s = u64::from(will.delay_s.min(session.expiry_s));
        let due_ms = now.mono_ms + delay_s * 1000;
        let due_us = now.wall_us + i64::try_from(delay_s * 1_000_000).unwrap_or(i64::MAX / 2);
        let token = format!("will/{:x}/{due_us:x}", session.life);
        will.waits = Some((due_us, token.into()));
        let rights = session.rights.as_ref();
        will.is_by_files = rights.is_some_and(|rights| rights.identity().proof.is_by_files());
        if let Some(away) = &mut session.offline {
            away.will = Some((due_ms, will));
        }
        self.clients.set_timer(due_ms, Timer::Will(key));
    }

    /// The will of a session is due, by its delay or by the session's end. Returns the will if the log accepts nothing
    /// now.
    pub fn fire_will(&mut self, key: SessionKey, will: Box<Will>) -> Option<Box<Will>> {
        let session = self.clients.session(key)?;
        if will.waits.is_none() {
            self.publish_will(key, &will);
            return None;
        }
        let (client_id, account) = (Rc::clone(&session.client_id), session.account);
        if !self.may_publish_will(key, &will) {
            // The rights have changed since. No later start may publish it either.
            self.publish_will(key, &will);
            self.store.note_settled(SettledWill {
                client_id,
                record: None,
            });
            if let Some(session) = self.clients.session_mut(key) {
                session.will_stored = false;
            }
            return None;
        }
        if !self.publish_once(client_id, account, &will) {
            return Some(will);
        }
        if let Some(session) = self.clients.session_mut(key) {
            session.will_stored = false;
        }
        None
    }

    /// Publishes the due will of a session that continues.
    pub fn check_will(&mut self, key: SessionKey) {
        let now_ms = self.env.now.mono_ms;
        let Some(session) = self.clients.session_mut(key) else {
            return;
        };
        let waiting = session.offline.as_mut().map(|away| &mut away.will);
        let due = waiting.and_then(|will| will.take_if(|(due_ms, _)| *due_ms <= now_ms));
        let Some((_, will)) = due else {
            return;
        };
        if let Some(will) = self.fire_will(key, will)
            && let Some(session) = self.clients.session_mut(key)
            && let Some(away) = &mut session.offline
        {
            let due_ms = now_ms + RETRY_MS;
            away.will = Some((due_ms, will));
            self.clients.set_timer(due_ms, Timer::Will(key));
        }
        self.clients.recount_bytes(key, self.quotas);
    }

    /// Whether a will is published with its retain flag: over a quota it is published without it.
    pub fn may_retain(&mut self, account: Option<AccountId>, will: &Will) -> bool {
        if account.is_none() || !will.retain || will.payload.is_empty() {
            return will.retain;
        }
        let (message, now_ms) = ((&*will.topic, will.payload.len()), self.env.now.mono_ms);
        let retained = self.retained.lock();
        let over = retained.over_quota(self.quotas, account, message);
        if over.is_some() {
            self.observe.count(Count::RetainedRefused, 1);
        } else {
            retained.claim(self.quotas, account, message, now_ms);
        }
        over.is_none()
    }

    /// Appends a stored will, unless an earlier start did that. Returns false if the log accepts nothing now.
    fn publish_once(
        &mut self,
        client_id: Rc<str>,
        account: Option<AccountId>,
        will: &Will,
    ) -> bool {
        let Some((_, token)) = &will.waits else {
            return true;
        };
        if self.env.refusal_of_name(&will.topic).is_some() {
            // It was stored by an earlier version of the broker.
            self.observe.count(Count::PublishesRefused, 1);
            return true;
        }
        let retain = self.may_retain(account, will);
        let id = self.routing.intern(&will.topic, &self.env.log);
        let Some(topic) = self.routing.topic(id) else {
            return true;
        };
        let index = topic.partition;
        let partition = &self.env.partitions[index.index()];
        let mut records = partition.take_records();
        let pushed = (|| {
            let topic = records.topic(&topic.name, topic.key.clone())?;
            let client = records.client(&client_id)?;
            let mut meta = RecordMeta::new(topic, client, will.qos);
            meta.retain = retain;
            meta.properties = &will.properties;
            meta.idempotency_key = Some(token);
            records.push(meta, &will.payload)
        })();
        if pushed.is_err() {
            tracing::warn!(
                topic = &*will.topic,
                "a will is too large for the log and is lost"
            );
            return true;
        }
        let appended = if will.is_restored {
            let placed = partition.append_unique(records);
            placed.map(|placed| placed.first().map(|placed| placed.offset))
        } else {
            // Nobody else has its key, and to look for that may read the disk.
            partition.append(records).map(|range| Some(range.start))
        };
        match appended {
            Ok(offset) => {
                if let Some(offset) = offset {
                    self.store.note_settled(SettledWill {
                        client_id,
                        record: Some((index, offset)),
                    });
                }
                true
            }
            Err(AppendError::TooLarge { .. }) => true,
            Err(error) => {
                tracing::debug!(%error, "a will waits until the log accepts it");
                false
            }
        }
    }

    /// Publishes the wills of sessions that ended together with the broker.
    pub fn publish_left_wills(&mut self) {
        for (client_id, will) in self.store.left_wills(self.clients) {
            if !self.publish_once(Rc::clone(&client_id), None, &will) {
                tracing::warn!(
                    client_id = &*client_id,
                    "a will is published by the next start"
                );
            }
        }
    }
}
