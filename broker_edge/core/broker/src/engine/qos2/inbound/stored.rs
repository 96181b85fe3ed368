//! The durable part of the in-use packet ids, and how a start restores them.
//!
//! Each record names its session and packet id. `received/<client id>` holds the ids of records below the offsets
//! stored with it, and `mark/received` bounds what a start has to scan.

use std::collections::BTreeMap;

use headwater_log::{Class, Offset, PublishId, ReadError};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::engine::ids::PartitionIndex;
use crate::engine::ingest::stage::Stage;
use crate::engine::session::Session;
use crate::engine::session_store::persist::to_json;
use crate::engine::{Engine, SessionKey};

use super::{InboundId, qos2_inbound_key};

/// A mark is written after this many appended bytes: a start scans about this much of a partition.
const MARK_BYTES: u64 = 16 << 20;
const SCAN_BYTES: usize = 4 << 20;
const MARK_KEY: &str = "mark/received";
/// How long a start waits for its first mark.
const MARK_WAIT: std::time::Duration = std::time::Duration::from_secs(10);

/// Value of `received/<client id>`.
#[derive(Debug, Default, Serialize, Deserialize, PartialEq)]
struct StoredInbound {
    /// Per partition name: the session's records below are covered.
    applied: BTreeMap<String, u64>,
    held: Vec<u16>,
}

/// Value of `mark/received`: the stored values of all sessions cover all records below these offsets.
#[derive(Debug, Default, Serialize, Deserialize, PartialEq)]
struct StoredMark {
    applied: BTreeMap<String, u64>,
}

impl Engine {
    /// The value for the state store; empty if no value is needed.
    pub(in crate::engine) fn qos2_inbound_value(&self, session: &Session) -> Vec<u8> {
        let received = &session.qos2_inbound;
        let mut held: Vec<u16> = received
            .held
            .iter()
            .filter(|(_, held)| self.is_settled(held))
            .map(|(id, _)| *id)
            .collect();
        held.sort_unstable();
        let applied = received
            .partitions
            .iter()
            .map(|partition| (self.name_of(*partition), self.settled_below(*partition).0))
            .collect();
        to_json(&StoredInbound { applied, held })
    }

    /// Every record below this offset is acknowledged or came from elsewhere than this loop.
    fn settled_below(&self, partition: PartitionIndex) -> Offset {
        let stage = &self.ingest.stages[partition.index()];
        stage.settled_below(self.mark_of(stage))
    }

    /// Writes a mark if enough was appended since the last one, or in any case if `now`.
    pub(in crate::engine) fn mark_qos2_inbound(&mut self, now: bool) {
        let due = |stage: &Stage| {
            let bytes = stage.partition.size_bytes();
            bytes < stage.marked_bytes || bytes - stage.marked_bytes > MARK_BYTES
        };
        if !now && !self.ingest.stages.iter().any(due) {
            return;
        }
        if let Err(error) = self.write_mark() {
            tracing::warn!(%error, "the packet ids in use cannot be stored now; the next mark tries again");
        }
    }

    fn write_mark(&mut self) -> Result<(), crate::state::StateError> {
        let unmarked = std::mem::take(&mut self.store.state_commits.unmarked);
        let mut values = Vec::with_capacity(unmarked.len() + 1);
        for key in &unmarked {
            let Some(session) = self.clients.session(*key).filter(|session| session.stored) else {
                continue;
            };
            let received = &session.qos2_inbound;
            // Records below the mark are not scanned, so a session without ids needs no value.
            if !received.held.is_empty() && (received.is_behind || received.is_changed) {
                let value = self.qos2_inbound_value(session);
                values.push((qos2_inbound_key(&session.client_id), value));
            } else if received.held.is_empty() && received.is_stored {
                values.push((qos2_inbound_key(&session.client_id), Vec::new()));
            }
        }
        values.push((MARK_KEY.to_owned(), to_json(&self.mark())));
        let mut result = Ok(());
        for chunk in values.chunks(512) {
            result = result.and_then(|()| self.write_values(chunk).map(|_| ()));
        }
        if let Err(error) = result {
            self.store.state_commits.unmarked = unmarked;
            return Err(error);
        }
        for key in unmarked {
            self.marked(key);
        }
        for stage in &mut self.ingest.stages {
            stage.marked_bytes = stage.partition.size_bytes();
        }
        Ok(())
    }

    fn mark(&self) -> StoredMark {
        let applied = self
            .data_partitions()
            .map(|partition| (self.name_of(partition), self.settled_below(partition).0))
            .collect();
        StoredMark { applied }
    }

    /// The session's value was written; records above the mark are covered by the next one.
    fn marked(&mut self, key: SessionKey) {
        let Some(session) = self.clients.session(key) else {
            return;
        };
        let mut held = session.qos2_inbound.held.values();
        let is_behind = !held.all(|held| self.is_settled(held));
        let Some(session) = self.clients.session_mut(key) else {
            return;
        };
        let received = &mut session.qos2_inbound;
        received.is_stored = !received.held.is_empty();
        received.is_changed = false;
        received.is_behind = is_behind;
        received.unmarked = received.is_stored;
        if received.unmarked {
            self.store.state_commits.unmarked.push(key);
        }
    }

    /// Restores the packet ids in use: from the stored values, and from the records after them.
    pub(in crate::engine) fn restore_qos2_inbound(&mut self) -> Result<(), ReadError> {
        let mut by_life: FxHashMap<u64, SessionKey> = FxHashMap::default();
        let mut applied: FxHashMap<SessionKey, StoredInbound> = FxHashMap::default();
        let keys: Vec<SessionKey> = self.clients.sessions.keys().collect();
        for key in keys {
            let Some(session) = self.clients.session_mut(key) else {
                continue;
            };
            by_life.insert(session.life, key);
            let Some(value) = self.store.state.get(&qos2_inbound_key(&session.client_id)) else {
                continue;
            };
            session.qos2_inbound.is_stored = true;
            match serde_json::from_slice::<StoredInbound>(&value) {
                Ok(stored) => {
                    for id in &stored.held {
                        session.qos2_inbound.held.insert(*id, InboundId::restored());
                    }
                    // A power cut may have taken acknowledged records: their offsets are then used again.
                    session.qos2_inbound.is_behind = stored.applied.iter().any(|(name, offset)| {
                        let partition = self.env.log.by_name(name);
                        partition.is_some_and(|of| of.high_watermark().0 < *offset)
                    });
                    applied.insert(key, stored);
                }
                Err(error) => {
                    tracing::error!(%error, client_id = &*session.client_id, "the packet ids in use of a session cannot be read");
                }
            }
            session.qos2_inbound.unmarked = true;
            self.store.state_commits.unmarked.push(key);
        }
        let stored = self.store.state.get(MARK_KEY);
        let mark: Option<StoredMark> = stored.and_then(|value| serde_json::from_slice(&value).ok());
        // No session's publish is accepted before the first mark is durable: without a mark there are none to find.
        if let Some(mark) = &mark {
            for partition in self.data_partitions() {
                let name = self.name_of(partition);
                let from = Offset(mark.applied.get(&name).copied().unwrap_or(0));
                self.scan(partition, from, &mut |id, offset| {
                    let key = by_life.get(&id.session).copied()?;
                    let below = applied
                        .get(&key)
                        .and_then(|stored| stored.applied.get(&name));
                    below.is_none_or(|below| offset.0 >= *below).then_some(key)
                })?;
            }
        }
        self.qos2.ids_in_use = self
            .clients
            .sessions
            .iter()
            .map(|(_, s)| s.qos2_inbound.held.len())
            .sum();
        if mark.as_ref() != Some(&self.mark()) {
            self.mark_qos2_inbound(true);
            if !self
                .store
                .state
                .wait_durable(self.store.state.end(), MARK_WAIT)
            {
                tracing::error!(
                    "the state of sessions does not become durable; the broker starts without waiting for it"
                );
            }
        }
        Ok(())
    }

    /// Scans one partition for publishes of sessions; `owner` maps a record to its session and packet id.
    fn scan(
        &mut self,
        partition: PartitionIndex,
        from: Offset,
        owner: &mut dyn FnMut(PublishId, Offset) -> Option<SessionKey>,
    ) -> Result<(), ReadError> {
        let log = self.env.partitions[partition.index()].clone();
        debug_assert_ne!(log.class(), Class::Internal);
        let mut next = from.max(log.log_start());
        while next < log.high_watermark() {
            let batches = match log.read(next, SCAN_BYTES) {
                Ok(batches) => batches,
                Err(error @ ReadError::Damaged { .. }) => {
                    tracing::error!(%error, "QoS 2 publishes in lost records may be accepted a second time");
                    next = match error {
                        ReadError::Damaged { range } => range.end.max(next.plus(1)),
                        _ => next.plus(1),
                    };
                    continue;
                }
                Err(error) => return Err(error),
            };
            for batch in &batches {
                next = batch.next_offset();
                for record in batch.records().filter(|record| record.offset >= from) {
                    let Some(id) = record.publish_id else {
                        continue;
                    };
                    let Some(key) = owner(id, record.offset) else {
                        continue;
                    };
                    self.take_scanned(key, id.packet_id, partition);
                }
            }
        }
        Ok(())
    }

    fn take_scanned(&mut self, key: SessionKey, packet_id: u16, partition: PartitionIndex) {
        let Some(session) = self.clients.session_mut(key) else {
            return;
        };
        let received = &mut session.qos2_inbound;
        received.held.insert(packet_id, InboundId::restored());
        received.is_behind = true;
        if !received.partitions.contains(&partition) {
            received.partitions.push(partition);
        }
        if !received.unmarked {
            received.unmarked = true;
            self.store.state_commits.unmarked.push(key);
        }
    }
}

impl InboundId {
    /// The record was durable when the broker started.
    const fn restored() -> Self {
        Self {
            record: None,
            counted: None,
            repeats: 0,
            hash: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_packet_ids_read_back() {
        let stored = StoredInbound {
            applied: BTreeMap::from([("telemetry-0".to_owned(), 7)]),
            held: vec![1, 65_535],
        };
        let back: StoredInbound = serde_json::from_slice(&to_json(&stored)).expect("own JSON");
        assert_eq!(back, stored);
    }
}
