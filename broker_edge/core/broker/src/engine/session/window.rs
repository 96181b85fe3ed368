//! The window of a session: QoS 1 and 2 deliveries that are not acknowledged or not completed.
//!
//! Packet ids are assigned in order, so an entry's id is the front's id plus its index: an entry is 24 bytes, and
//! finding one by id is an addition. It holds log offsets, never payloads: a retransmission reads the record again.

use std::collections::VecDeque;

use headwater_log::Offset;
use headwater_mqtt::QoS;

use crate::engine::containers::lazy_box::Blank;
use crate::engine::ids::{CommitSeq, GroupId, PartitionIndex};

/// Which of a session's cursors a delivery came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The session's own cursor in the partition.
    Cursor,
    /// A replaying subscription, by its number in the session.
    Replay(u16),
    /// A retained message: only the window remembers it.
    Retained,
    /// A shared group.
    Shared(GroupId),
    /// A shared group that has since given the record to another member.
    Moved,
    /// A shared group that no longer exists: only the window remembers the delivery.
    Unattached,
}

/// One delivery that waits for its acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inflight {
    pub offset: Offset,
    pub partition: PartitionIndex,
    pub source: Source,
    /// The record is a command for the client: its PUBACK is a receipt.
    pub receipt: bool,
}

/// The state of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InflightState {
    /// QoS 1, sent.
    AwaitsPuback,
    /// QoS 2, not sent: the assignment of the packet id has to be durable first.
    Assigned,
    /// QoS 2, sent.
    AwaitsPubrec,
    /// QoS 2, received by the client: PUBREL is sent once that is durable.
    AwaitsPubcomp,
    /// Acknowledged or completed; the entry only keeps its index.
    Done,
}

impl InflightState {
    /// The state after a PUBLISH of this QoS.
    #[inline]
    pub fn sent(qos: QoS) -> Self {
        if qos == QoS::ExactlyOnce {
            Self::AwaitsPubrec
        } else {
            Self::AwaitsPuback
        }
    }

    pub fn is_qos2(self) -> bool {
        matches!(
            self,
            Self::Assigned | Self::AwaitsPubrec | Self::AwaitsPubcomp
        )
    }
}

/// Windows make up most of what a busy session takes.
const _: () = assert!(size_of::<Entry>() <= 24);

#[derive(Debug, Clone, Copy)]
struct Entry {
    offset: Offset,
    /// The commit that the next PUBLISH or PUBREL waits for.
    after: CommitSeq,
    source: Source,
    partition: PartitionIndex,
    flight: InflightState,
    receipt: bool,
}

impl Entry {
    fn new(sent: Inflight, flight: InflightState, after: CommitSeq) -> Self {
        Self {
            offset: sent.offset,
            after,
            source: sent.source,
            partition: sent.partition,
            flight,
            receipt: sent.receipt,
        }
    }

    fn sent(&self) -> Inflight {
        Inflight {
            offset: self.offset,
            partition: self.partition,
            source: self.source,
            receipt: self.receipt,
        }
    }
}

/// Packet ids go from 1 to 65,535.
const IDS: u32 = 65_535;

#[derive(Debug, Default)]
pub struct Window {
    /// In order of packet id. The front is never acknowledged.
    entries: VecDeque<Entry>,
    /// Zero-based: the packet id of the front, less one.
    front_id: u16,
    unacked: u16,
    /// From this packet id on there may be deliveries that have only been assigned theirs; 0 if there are none.
    unsent_from: u16,
}

impl Blank for Window {
    const BLANK: &'static Self = &Self {
        entries: VecDeque::new(),
        front_id: 0,
        unacked: 0,
        unsent_from: 0,
    };

    fn is_blank(&self) -> bool {
        self.entries.is_empty() && self.front_id == 0
    }
}

impl Window {
    /// Number of deliveries that wait for the client.
    pub fn unacked(&self) -> usize {
        usize::from(self.unacked)
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many deliveries fit. Acknowledged entries after an unacknowledged one still hold their ids, so a client that
    /// never acknowledges one delivery gets at most half of all ids beyond it.
    #[inline]
    pub fn room(&self, limit: u16) -> usize {
        let by_limit = usize::from(limit).saturating_sub(usize::from(self.unacked));
        by_limit.min((IDS as usize / 2).saturating_sub(self.entries.len()))
    }

    /// Adds a delivery and returns its packet id. The caller has checked [`Window::room`].
    #[inline]
    pub fn push(&mut self, sent: Inflight, flight: InflightState) -> u16 {
        self.push_entry(Entry::new(sent, flight, CommitSeq(0)))
    }

    /// Adds a delivery that is sent once its packet id is durable.
    pub fn assign(&mut self, sent: Inflight, after: CommitSeq) -> u16 {
        let packet_id = self.push_entry(Entry::new(sent, InflightState::Assigned, after));
        if self.unsent_from == 0 {
            self.unsent_from = packet_id;
        }
        packet_id
    }

    #[inline]
    fn push_entry(&mut self, entry: Entry) -> u16 {
        let id = self.next_id();
        self.entries.push_back(entry);
        self.unacked += 1;
        id
    }

    /// The QoS 1 delivery that `packet_id` acknowledges; `None` if none is in flight.
    #[inline]
    pub fn ack(&mut self, packet_id: u16) -> Option<Inflight> {
        self.end(packet_id, |flight| flight == InflightState::AwaitsPuback)
    }

    /// Ends a delivery in any state; `None` if it is not in flight.
    pub fn finish(&mut self, packet_id: u16) -> Option<Inflight> {
        self.end(packet_id, |flight| flight != InflightState::Done)
    }

    #[inline]
    fn end(
        &mut self,
        packet_id: u16,
        may_end: impl FnOnce(InflightState) -> bool,
    ) -> Option<Inflight> {
        let index = self.index(packet_id)?;
        let entry = self.entries.get_mut(index)?;
        if !may_end(entry.flight) {
            return None;
        }
        entry.flight = InflightState::Done;
        let sent = entry.sent();
        self.unacked -= 1;
        while self
            .entries
            .front()
            .is_some_and(|entry| entry.flight == InflightState::Done)
        {
            self.entries.pop_front();
            self.front_id = ((u32::from(self.front_id) + 1) % IDS) as u16;
        }
        Some(sent)
    }

    /// The state of the delivery with this packet id; `None` if there is none or it is done.
    #[inline]
    pub fn flight(&self, packet_id: u16) -> Option<(Inflight, InflightState)> {
        let entry = self.entries.get(self.index(packet_id)?)?;
        (entry.flight != InflightState::Done).then_some((entry.sent(), entry.flight))
    }

    /// The commit that the next PUBLISH or PUBREL of a delivery waits for.
    pub fn after(&self, packet_id: u16) -> CommitSeq {
        let entry = self
            .index(packet_id)
            .and_then(|index| self.entries.get(index));
        entry.map_or(CommitSeq(0), |entry| entry.after)
    }

    /// Whether deliveries may be left that have only been assigned their packet ids.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.unsent_from != 0
    }

    /// The oldest delivery that has only been assigned its packet id, and the commit of that.
    pub fn next_unsent(&mut self) -> Option<(u16, CommitSeq)> {
        if !self.has_unsent() {
            return None;
        }
        let found = self
            .unacked_from(self.unsent_from)
            .find(|(_, _, flight)| *flight == InflightState::Assigned)
            .map(|(packet_id, _, _)| packet_id);
        self.unsent_from = found.unwrap_or(0);
        found.map(|packet_id| (packet_id, self.after(packet_id)))
    }

    fn entry_mut(&mut self, packet_id: u16) -> Option<&mut Entry> {
        let index = self.index(packet_id)?;
        self.entries.get_mut(index)
    }

    /// Notes that a delivery is a command of its client.
    pub fn note_receipt(&mut self, packet_id: u16) {
        if let Some(entry) = self.entry_mut(packet_id) {
            entry.receipt = true;
        }
    }

    /// Moves an in-flight delivery to its next state, which begins after a commit.
    pub fn advance(&mut self, packet_id: u16, flight: InflightState, after: CommitSeq) {
        if let Some(entry) = self.entry_mut(packet_id)
            && entry.flight != InflightState::Done
        {
            (entry.flight, entry.after) = (flight, after);
        }
    }

    /// Restores a delivery of before the restart under its packet id. Deliveries are restored oldest first, into an
    /// empty window; gaps between ids are skipped. Returns false if the id does not follow the last one.
    pub fn restore(&mut self, packet_id: u16, sent: Inflight, flight: InflightState) -> bool {
        if packet_id == 0 {
            return false;
        }
        if self.entries.is_empty() {
            self.front_id = packet_id - 1;
        }
        let done = Entry::new(sent, InflightState::Done, CommitSeq(0));
        match self.index(packet_id) {
            Some(index) if index >= self.entries.len() && index < IDS as usize / 2 => {
                self.entries.resize(index, done);
                self.push(sent, flight);
                true
            }
            _ => false,
        }
    }

    /// The next packet id to assign.
    pub fn next_id(&self) -> u16 {
        ((u32::from(self.front_id) + self.entries.len() as u32) % IDS) as u16 + 1
    }

    /// Unacknowledged deliveries older than the one that has, or will get, this packet id.
    pub fn unacked_until(
        &self,
        packet_id: u16,
    ) -> impl Iterator<Item = (u16, Inflight, InflightState)> + '_ {
        let until = self.index(packet_id);
        // Outside the window: the delivery has left it long ago, and so have all older ones.
        let older = until.filter(|index| *index <= self.entries.len());
        self.unacked_from(0)
            .take_while(move |(id, _, _)| older.is_some_and(|older| self.index(*id) < Some(older)))
    }

    /// Sets the current source of a delivery.
    pub fn set_source(&mut self, packet_id: u16, source: Source) {
        if let Some(entry) = self.entry_mut(packet_id) {
            entry.source = source;
        }
    }

    /// The same for all deliveries from `from`.
    pub fn reassign(&mut self, from: Source, to: Source) {
        for entry in &mut self.entries {
            if entry.source == from {
                entry.source = to;
            }
        }
    }

    fn index(&self, packet_id: u16) -> Option<usize> {
        let id = u32::from(packet_id.checked_sub(1)?);
        Some(((id + IDS - u32::from(self.front_id)) % IDS) as usize)
    }

    /// The packet id of the oldest unacknowledged delivery.
    pub fn front(&self) -> Option<u16> {
        (!self.entries.is_empty()).then(|| self.front_id + 1)
    }

    /// Unacknowledged deliveries with their packet ids, oldest first, from `packet_id` on; from the front if that one
    /// is acknowledged.
    pub fn unacked_from(
        &self,
        packet_id: u16,
    ) -> impl Iterator<Item = (u16, Inflight, InflightState)> + '_ {
        let front = u32::from(self.front_id);
        let skip = self
            .index(packet_id)
            .filter(|index| *index < self.entries.len())
            .unwrap_or(0);
        self.entries
            .iter()
            .enumerate()
            .skip(skip)
            .filter(|(_, entry)| entry.flight != InflightState::Done)
            .map(move |(index, entry)| {
                let id = (front + index as u32) % IDS;
                (id as u16 + 1, entry.sent(), entry.flight)
            })
    }

    /// Number of unacknowledged deliveries older than the one with this packet id.
    pub fn unacked_before(&self, packet_id: u16) -> usize {
        let older = self.index(packet_id).unwrap_or(0);
        let unacked = |entry: &&Entry| entry.flight != InflightState::Done;
        self.entries.iter().take(older).filter(unacked).count()
    }

    /// The oldest unacknowledged offset of one partition from `source`.
    pub fn oldest(&self, partition: PartitionIndex, source: Source) -> Option<Offset> {
        let of_source = |entry: &&Entry| {
            entry.flight != InflightState::Done
                && entry.partition == partition
                && entry.source == source
        };
        self.entries
            .iter()
            .filter(of_source)
            .map(|entry| entry.offset)
            .min()
    }

    /// Whether any QoS 2 delivery is in flight.
    pub fn has_qos2(&self) -> bool {
        let mut flights = self.entries.iter().map(|entry| entry.flight);
        flights.any(InflightState::is_qos2)
    }

    /// Whether any delivery from `source` is unacknowledged.
    pub fn holds(&self, source: Source) -> bool {
        self.entries
            .iter()
            .any(|entry| entry.flight != InflightState::Done && entry.source == source)
    }

    /// Frees the memory of an empty window.
    pub fn shrink(&mut self) {
        if self.entries.is_empty() {
            self.entries.shrink_to(0);
        }
    }
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
