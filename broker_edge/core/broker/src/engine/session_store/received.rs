//! The durable part of the packet ids that clients have in use, and how a start restores them.
//!
//! Each record names its session and packet id. `received/<client id>` holds the ids of records below the offsets
//! stored with it, and `mark/received` bounds what a start has to scan.

use headwater_log::{Class, Offset, Partition, PublishId, ReadError};
use rustc_hash::FxHashMap;

use crate::engine::SessionKey;
use crate::engine::ids::PartitionIndex;
use crate::engine::session::Session;
use crate::engine::session::received::InboundId;
use crate::engine::stored::received::{self, Received};
use crate::engine::stored::received_mark::{self, Mark};
use crate::engine::stored::{Names, decode, encode};

use super::checkpoint::Checkpointing;

/// A mark is written after this many appended bytes: a start scans about this much of a partition.
const MARK_BYTES: u64 = 16 << 20;
const SCAN_BYTES: usize = 4 << 20;
/// How long a start waits for its first mark.
const MARK_WAIT: std::time::Duration = std::time::Duration::from_secs(10);

impl Checkpointing<'_> {
    /// The packet ids that a client has in use, for the state store.
    pub(super) fn received_value(&self, session: &Session) -> Vec<u8> {
        let received = &session.qos2_inbound;
        let mut held: Vec<u16> = received
            .held
            .iter()
            .filter(|(_, held)| self.ingest.is_acknowledged(held))
            .map(|(id, _)| *id)
            .collect();
        held.sort_unstable();
        let applied = received.partitions.iter();
        let applied =
            applied.map(|partition| (*partition, self.ingest.settled_below(*partition, self.env)));
        let applied = Names(&self.env.partitions).offsets(applied);
        encode(&Received { applied, held })
    }

    /// Writes a mark if enough was appended since the last one, or in any case if `now`.
    pub fn mark_received(&mut self, now: bool) {
        let due = |(partition, marked_bytes): (&Partition, &u64)| {
            let bytes = partition.size_bytes();
            bytes < *marked_bytes || bytes - *marked_bytes > MARK_BYTES
        };
        let marked_bytes = &self.store.marked_bytes;
        if !now && !self.env.partitions.iter().zip(marked_bytes).any(due) {
            return;
        }
        let unmarked = std::mem::take(&mut self.store.unmarked);
        let mut values = Vec::with_capacity(unmarked.len() + 1);
        for key in &unmarked {
            let Some(session) = self.clients.session(*key).filter(|session| session.stored) else {
                continue;
            };
            let received = &session.qos2_inbound;
            // Records below the mark are not scanned, so a session without ids needs no value.
            if !received.held.is_empty() && (received.is_behind || received.is_changed) {
                let value = self.received_value(session);
                values.push((received::key(&session.client_id), value));
            } else if received.held.is_empty() && received.is_stored {
                values.push((received::key(&session.client_id), Vec::new()));
            }
        }
        values.push((received_mark::KEY.to_owned(), encode(&self.mark())));
        let failure = "the packet ids in use cannot be stored now; the next mark tries again";
        let mut chunks = values.chunks(512);
        if !chunks.all(|chunk| self.store.try_write(chunk, failure)) {
            self.store.unmarked = unmarked;
            return;
        }
        for key in unmarked {
            self.marked(key);
        }
        let partitions = self.env.partitions.iter();
        self.store.marked_bytes = partitions.map(Partition::size_bytes).collect();
    }

    fn mark(&self) -> Mark {
        let partitions = self.env.data_partitions();
        let applied =
            partitions.map(|partition| (partition, self.ingest.settled_below(partition, self.env)));
        Mark {
            applied: Names(&self.env.partitions).offsets(applied),
        }
    }

    /// The session's value was written; records above the mark are covered by the next one.
    fn marked(&mut self, key: SessionKey) {
        let Some(session) = self.clients.session_mut(key) else {
            return;
        };
        let received = &mut session.qos2_inbound;
        let is_behind = !received
            .held
            .values()
            .all(|held| self.ingest.is_acknowledged(held));
        received.is_stored = !received.held.is_empty();
        received.is_changed = false;
        received.is_behind = is_behind;
        received.unmarked = false;
        if received.is_stored {
            self.store.note_unmarked(key, received);
        }
    }

    /// Restores the packet ids in use: from the stored values, and from the records after them. Returns how many there
    /// are.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn restore_received(&mut self) -> Result<usize, ReadError> {
        let mut by_life: FxHashMap<u64, SessionKey> = FxHashMap::default();
        let mut applied: FxHashMap<SessionKey, Received> = FxHashMap::default();
        for key in self.clients.session_keys() {
            let Some(session) = self.clients.session_mut(key) else {
                continue;
            };
            by_life.insert(session.life, key);
            let Some(value) = self.store.get(&received::key(&session.client_id)) else {
                continue;
            };
            session.qos2_inbound.is_stored = true;
            match decode::<Received>(&value) {
                Ok(stored) => {
                    for id in &stored.held {
                        session.qos2_inbound.held.insert(*id, InboundId::RESTORED);
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
            self.store.note_unmarked(key, &mut session.qos2_inbound);
        }
        let stored = self.store.get(received_mark::KEY);
        let mark: Option<Mark> = stored.and_then(|value| decode(&value).ok());
        // No session's publish is accepted before the first mark is durable: without a mark there are none to find.
        if let Some(mark) = &mark {
            let partitions: Vec<PartitionIndex> = self.env.data_partitions().collect();
            for partition in partitions {
                let name = Names(&self.env.partitions).of(partition);
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
        if mark.as_ref() != Some(&self.mark()) {
            self.mark_received(true);
            let state = &self.store.state;
            if !state.wait_durable(state.end(), MARK_WAIT) {
                tracing::error!(
                    "the state of sessions does not become durable; the broker starts without waiting for it"
                );
            }
        }
        let sessions = self.clients.sessions();
        Ok(sessions
            .map(|(_, session)| session.qos2_inbound.held.len())
            .sum())
    }

    /// Scans one partition for publishes of sessions; `owner` maps a record to its session and packet id.
    fn scan(
        &mut self,
        partition: PartitionIndex,
        from: Offset,
        owner: &mut dyn FnMut(PublishId, Offset) -> Option<SessionKey>,
    ) -> Result<(), ReadError> {
        let log = &self.env.partitions[partition.index()];
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
        received.held.insert(packet_id, InboundId::RESTORED);
        received.miss(partition);
        self.store.note_unmarked(key, received);
    }
}
