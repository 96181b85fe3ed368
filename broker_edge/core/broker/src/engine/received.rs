//! QoS 2 from clients: the packet ids whose publish is in the log and whose PUBREL has not come.
//!
//! A publish under such an id is a repetition: it is answered and not appended. For sessions that outlive their
//! connection the ids survive a crash: each record names its session and packet id, `received/<client id>` holds the
//! ids of records below the offsets that it names, and `mark/received` bounds what a start has to look through.

use std::collections::BTreeMap;

use headwater_log::{Class, Offset, PartitionState, PublishId, ReadError, failpoint};
use headwater_mqtt::packet::ack::Ack;
use headwater_mqtt::{Publish, ReasonCode};
use rustc_hash::{FxBuildHasher, FxHashMap};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::ack::{AckKind, Reply};
use super::close::Cause;
use super::exactly_once::Round;
use super::persist::to_json;
use super::seldom::Blank;
use super::session::Session;
use super::stage::{PartitionIndex, Ticket};
use super::{ConnKey, Engine, SessionKey};

/// Held by all sessions together: so much memory clients can take with publishes that they never release.
const HELD_MAX: usize = 1 << 20;
/// A mark is written when so much was appended since the last one: that much a start reads of a partition.
const MARK_BYTES: u64 = 16 << 20;
const SCAN_BYTES: usize = 4 << 20;
const MARK_KEY: &str = "mark/received";
/// How long a start waits for its first mark.
const MARK_WAIT: std::time::Duration = std::time::Duration::from_secs(10);

pub fn received_key(client_id: &str) -> String {
    format!("received/{client_id}")
}

/// A packet id in use.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    /// Its record; nothing when that was durable when the broker started.
    place: Option<(PartitionIndex, Ticket)>,
    /// The connection whose receive maximum it counts in.
    counted: Option<ConnKey>,
    /// How often its publish was repeated on that connection.
    repeats: u8,
    /// Of its payload; nothing when that was seen by an earlier life of the broker.
    hash: Option<u64>,
}

/// A client repeats a publish when it comes back. One that does it over and over breaks the protocol, as Mosquitto has it.
const REPEATS_MAX: u8 = 1;

/// The packet ids that a client has in use.
#[derive(Debug, Default)]
pub struct Received {
    held: FxHashMap<u16, Held>,
    /// Where this session has published with QoS 2.
    partitions: Vec<PartitionIndex>,
    /// The round of the newest release: nobody is told that an id is free before it is durable.
    released_in: Round,
    /// The state store holds a value of it.
    pub is_stored: bool,
    /// That value is old.
    pub is_changed: bool,
    /// There are records that the value does not account for.
    is_behind: bool,
    /// In the list of sessions that the next mark has to look at.
    unmarked: bool,
}

impl Blank for Received {
    const BLANK: &'static Self = &Self {
        held: FxHashMap::with_hasher(FxBuildHasher),
        partitions: Vec::new(),
        released_in: Round(0),
        is_stored: false,
        is_changed: false,
        is_behind: false,
        unmarked: false,
    };

    fn is_blank(&self) -> bool {
        self.held.is_empty()
            && self.partitions.is_empty()
            && self.released_in == Round(0)
            && !(self.is_stored || self.is_changed || self.is_behind || self.unmarked)
    }
}

/// Value of `received/<client id>`.
#[derive(Debug, Default, Serialize, Deserialize, PartialEq)]
struct StoredReceived {
    /// Per partition name: records of the session below are accounted for.
    applied: BTreeMap<String, u64>,
    held: Vec<u16>,
}

/// Value of `mark/received`: below these offsets the values of all sessions account for all records.
#[derive(Debug, Default, Serialize, Deserialize, PartialEq)]
struct StoredMark {
    applied: BTreeMap<String, u64>,
}

impl Engine {
    /// Answers a publish whose packet id is in use. False when it is a new one.
    pub(super) fn answer_repeated(&mut self, key: ConnKey, publish: &Publish<'_>) -> bool {
        let Some(packet_id) = publish.packet_id.map(|id| id.get()) else {
            return false;
        };
        let Some(conn) = self.conns.get_mut(key) else {
            return true;
        };
        let Some(held) = conn
            .session
            .and_then(|session| self.sessions.get_mut(session))
            .and_then(|session| session.received.held.get_mut(&packet_id))
        else {
            return false;
        };
        if held
            .hash
            .is_some_and(|hash| hash != xxh3_64(publish.payload))
        {
            // A client that uses its packet id for another message has lost its state: as Mosquitto does, it is taken.
            conn.publishes_owed -= u16::from(held.counted == Some(key) && conn.publishes_owed > 0);
            return false;
        }
        self.tally.publishes_repeated += 1;
        if held.counted != Some(key) {
            held.counted = Some(key);
            held.repeats = 0;
            conn.publishes_owed = conn.publishes_owed.saturating_add(1);
        }
        held.repeats = held.repeats.saturating_add(1);
        if held.repeats > REPEATS_MAX {
            self.close(key, Cause::Reason(ReasonCode::ProtocolError));
            return true;
        }
        let too_many = conn.is_v5() && conn.publishes_owed > self.settings.receive_maximum;
        match held.place {
            Some((partition, ticket)) if self.stages[partition.index()].settled() <= ticket => {
                let stage = &mut self.stages[partition.index()];
                if matches!(stage.partition.state(), PartitionState::Stopped(_)) {
                    self.close(key, Cause::Reason(ReasonCode::UnspecifiedError));
                    return true;
                }
                stage.watch(ticket, key);
                let kind = AckKind::Pubrec;
                conn.acks
                    .push_ack(kind, partition, ticket, packet_id, ReasonCode::Success);
            }
            _ => {
                conn.acks.push(Reply::Ack {
                    kind: AckKind::Pubrec,
                    packet_id,
                    reason: ReasonCode::Success,
                });
                self.send_ready(key);
            }
        }
        if too_many {
            self.close(key, Cause::Reason(ReasonCode::ReceiveMaximumExceeded));
        }
        true
    }

    /// Whether clients hold as many packet ids as the broker remembers.
    pub(super) fn holds_too_many(&self) -> bool {
        self.held_ids >= HELD_MAX
    }

    /// A QoS 2 publish was staged: its packet id is in use from now on.
    pub(super) fn hold_id(
        &mut self,
        key: SessionKey,
        conn: ConnKey,
        (packet_id, payload): (u16, &[u8]),
        partition: PartitionIndex,
        ticket: Ticket,
    ) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let received = &mut session.received;
        let held = Held {
            place: Some((partition, ticket)),
            counted: Some(conn),
            repeats: 0,
            hash: Some(xxh3_64(payload)),
        };
        self.held_ids += usize::from(received.held.insert(packet_id, held).is_none());
        self.stages[partition.index()]
            .exactly_once
            .push((key, packet_id));
        failpoint!("qos2-publish-staged");
        if session.stored {
            received.is_behind = true;
            if !received.partitions.contains(&partition) {
                received.partitions.push(partition);
            }
            if !received.unmarked {
                received.unmarked = true;
                self.rounds.unmarked.push(key);
            }
        }
    }

    /// The log refused records: their packet ids are free.
    pub(super) fn free_refused(&mut self, refused: Vec<(SessionKey, u16)>) {
        for (key, packet_id) in refused {
            if let Some(session) = self.sessions.get_mut(key)
                && session.received.held.remove(&packet_id).is_some()
            {
                self.held_ids -= 1;
            }
        }
    }

    /// A partition has stopped: the packet ids of what was not durable are free in this process, or a later refusal
    /// would count them as settled and their publishes as acknowledged. A start takes those that did reach the disk
    /// from there.
    pub(super) fn free_abandoned(&mut self, partition: PartitionIndex) {
        let settled = self.stages[partition.index()].settled();
        let is_abandoned = |held: &Held| {
            held.place
                .is_some_and(|(of, ticket)| of == partition && ticket >= settled)
        };
        let holders: Vec<SessionKey> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.received.held.values().any(is_abandoned))
            .map(|(key, _)| key)
            .collect();
        for key in holders {
            if let Some(session) = self.sessions.get_mut(key) {
                let held = &mut session.received.held;
                let before = held.len();
                held.retain(|_, held| !is_abandoned(held));
                self.held_ids -= before - held.len();
            }
        }
    }

    pub(super) fn handle_pubrel(&mut self, key: ConnKey, ack: &Ack<'_>) {
        let packet_id = ack.packet_id.get();
        let Some(session_key) = self.conns.get(key).and_then(|conn| conn.session) else {
            return;
        };
        let Some(session) = self.sessions.get_mut(session_key) else {
            return;
        };
        // A release of what is unknown is complete, as Mosquitto answers.
        let mut after = session.received.released_in;
        if let Some(held) = session.received.held.get(&packet_id).copied() {
            if !self.is_settled(&held) {
                // Its PUBREC has never left.
                return self.close(key, Cause::Reason(ReasonCode::ProtocolError));
            }
            after = self.free(session_key, packet_id);
            if let Some(conn) = self.conns.get_mut(key)
                && held.counted == Some(key)
            {
                conn.publishes_owed = conn.publishes_owed.saturating_sub(1);
            }
        }
        if let Some(conn) = self.conns.get_mut(key) {
            conn.acks.push(Reply::Pubcomp { packet_id, after });
            failpoint!("qos2-release-staged");
            self.send_ready(key);
        }
    }

    /// The client has released a packet id; gives the round after which it may be told.
    fn free(&mut self, key: SessionKey, packet_id: u16) -> Round {
        let after = self.change(key);
        if let Some(session) = self.sessions.get_mut(key) {
            session.received.is_changed = session.stored;
            session.received.released_in = after;
            self.held_ids -= usize::from(session.received.held.remove(&packet_id).is_some());
        }
        after
    }

    /// Whether the record of a packet id in use is acknowledged.
    fn is_settled(&self, held: &Held) -> bool {
        held.place
            .is_none_or(|(partition, ticket)| self.stages[partition.index()].settled() > ticket)
    }

    /// The packet ids of a session that ends are forgotten.
    pub(super) fn forget_received(&mut self, session: &Session) {
        self.held_ids -= session.received.held.len();
    }

    /// What the state store is to hold; nothing when that is as good as no value.
    pub(super) fn received_value(&self, session: &Session) -> Vec<u8> {
        let received = &session.received;
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
        to_json(&StoredReceived { applied, held })
    }

    /// Every record below this offset is acknowledged, or was not of this loop.
    fn settled_below(&self, partition: PartitionIndex) -> Offset {
        let stage = &self.stages[partition.index()];
        stage.settled_below(self.mark_of(stage))
    }

    /// Writes a mark when enough was appended since the last one, or whatever was when `now`.
    pub(super) fn mark_received(&mut self, now: bool) {
        let due = |stage: &super::stage::Stage| {
            let bytes = stage.partition.size_bytes();
            bytes < stage.marked_bytes || bytes - stage.marked_bytes > MARK_BYTES
        };
        if !now && !self.stages.iter().any(due) {
            return;
        }
        if let Err(error) = self.write_mark() {
            tracing::warn!(%error, "the packet ids in use cannot be stored now and are tried again");
        }
    }

    fn write_mark(&mut self) -> Result<(), crate::state::StateError> {
        let unmarked = std::mem::take(&mut self.rounds.unmarked);
        let mut values = Vec::with_capacity(unmarked.len() + 1);
        for key in &unmarked {
            let Some(session) = self.sessions.get(*key).filter(|session| session.stored) else {
                continue;
            };
            let received = &session.received;
            // Below the mark no record is looked at, so a session that holds nothing needs no value.
            if !received.held.is_empty() && (received.is_behind || received.is_changed) {
                let value = self.received_value(session);
                values.push((received_key(&session.client_id), value));
            } else if received.held.is_empty() && received.is_stored {
                values.push((received_key(&session.client_id), Vec::new()));
            }
        }
        values.push((MARK_KEY.to_owned(), to_json(&self.mark())));
        let mut result = Ok(());
        for chunk in values.chunks(512) {
            result = result.and_then(|()| self.write_values(chunk).map(|_| ()));
        }
        if let Err(error) = result {
            self.rounds.unmarked = unmarked;
            return Err(error);
        }
        for key in unmarked {
            self.marked(key);
        }
        for stage in &mut self.stages {
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

    /// The session's value was written; records above the mark go into the next one.
    fn marked(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        let mut held = session.received.held.values();
        let is_behind = !held.all(|held| self.is_settled(held));
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let received = &mut session.received;
        received.is_stored = !received.held.is_empty();
        received.is_changed = false;
        received.is_behind = is_behind;
        received.unmarked = received.is_stored;
        if received.unmarked {
            self.rounds.unmarked.push(key);
        }
    }

    /// Finds the packet ids in use: those of the stored values, and of the records that came after them.
    pub(super) fn restore_received(&mut self) -> Result<(), ReadError> {
        let mut by_life: FxHashMap<u64, SessionKey> = FxHashMap::default();
        let mut applied: FxHashMap<SessionKey, StoredReceived> = FxHashMap::default();
        let keys: Vec<SessionKey> = self.sessions.keys().collect();
        for key in keys {
            let Some(session) = self.sessions.get_mut(key) else {
                continue;
            };
            by_life.insert(session.life, key);
            let Some(value) = self.state.get(&received_key(&session.client_id)) else {
                continue;
            };
            session.received.is_stored = true;
            match serde_json::from_slice::<StoredReceived>(&value) {
                Ok(stored) => {
                    for id in &stored.held {
                        session.received.held.insert(*id, Held::restored());
                    }
                    // A power cut may have taken records that were acknowledged when written: their offsets are given again.
                    session.received.is_behind = stored.applied.iter().any(|(name, offset)| {
                        let partition = self.log.by_name(name);
                        partition.is_some_and(|of| of.high_watermark().0 < *offset)
                    });
                    applied.insert(key, stored);
                }
                Err(error) => {
                    tracing::error!(%error, client_id = &*session.client_id, "the packet ids in use of a session cannot be read");
                }
            }
            session.received.unmarked = true;
            self.rounds.unmarked.push(key);
        }
        let stored = self.state.get(MARK_KEY);
        let mark: Option<StoredMark> = stored.and_then(|value| serde_json::from_slice(&value).ok());
        // No publish of a session is taken before the first mark is durable: without one there are none.
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
        self.held_ids = self
            .sessions
            .iter()
            .map(|(_, s)| s.received.held.len())
            .sum();
        if mark.as_ref() != Some(&self.mark()) {
            self.mark_received(true);
            if !self.state.wait_durable(self.state.end(), MARK_WAIT) {
                tracing::error!(
                    "the state of sessions does not become durable; the broker starts without waiting for it"
                );
            }
        }
        Ok(())
    }

    /// Looks through one partition for publishes of sessions; `owner` says whose packet id a record holds.
    fn scan(
        &mut self,
        partition: PartitionIndex,
        from: Offset,
        owner: &mut dyn FnMut(PublishId, Offset) -> Option<SessionKey>,
    ) -> Result<(), ReadError> {
        let log = self.stages[partition.index()].partition.clone();
        debug_assert_ne!(log.class(), Class::Internal);
        let mut next = from.max(log.log_start());
        while next < log.high_watermark() {
            let batches = match log.read(next, SCAN_BYTES) {
                Ok(batches) => batches,
                Err(error @ ReadError::Damaged { .. }) => {
                    tracing::error!(%error, "QoS 2 publishes in lost records may be taken once more");
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
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let received = &mut session.received;
        received.held.insert(packet_id, Held::restored());
        received.is_behind = true;
        if !received.partitions.contains(&partition) {
            received.partitions.push(partition);
        }
        if !received.unmarked {
            received.unmarked = true;
            self.rounds.unmarked.push(key);
        }
    }
}

impl Held {
    /// Its record was durable when the broker started.
    const fn restored() -> Self {
        Self {
            place: None,
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
        let stored = StoredReceived {
            applied: BTreeMap::from([("telemetry-0".to_owned(), 7)]),
            held: vec![1, 65_535],
        };
        let back: StoredReceived = serde_json::from_slice(&to_json(&stored)).expect("own JSON");
        assert_eq!(back, stored);
    }
}
