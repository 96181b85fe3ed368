//! The window of a session: QoS 1 and 2 deliveries that are not acknowledged or not completed.
//!
//! Packet ids are assigned in order, so an entry's id is the front's id plus its index: an entry is 16 bytes, and
//! finding one by id is an addition. It holds log offsets, never payloads: a retransmission reads the record again.

use std::collections::VecDeque;

use headwater_log::Offset;

use crate::engine::containers::lazy_box::Blank;
use crate::engine::ids::{GroupId, PartitionIndex};

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
    sent: Inflight,
    flight: InflightState,
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
}

impl Blank for Window {
    const BLANK: &'static Self = &Self {
        entries: VecDeque::new(),
        front_id: 0,
        unacked: 0,
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
        let id = (u32::from(self.front_id) + self.entries.len() as u32) % IDS;
        self.entries.push_back(Entry { sent, flight });
        self.unacked += 1;
        id as u16 + 1
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
        let sent = entry.sent;
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
        (entry.flight != InflightState::Done).then_some((entry.sent, entry.flight))
    }

    /// Notes that a delivery is a command of its client.
    pub fn note_receipt(&mut self, packet_id: u16) {
        if let Some(index) = self.index(packet_id)
            && let Some(entry) = self.entries.get_mut(index)
        {
            entry.sent.receipt = true;
        }
    }

    /// Moves an in-flight delivery to its next state.
    pub fn advance(&mut self, packet_id: u16, flight: InflightState) {
        if let Some(index) = self.index(packet_id)
            && let Some(entry) = self.entries.get_mut(index)
            && entry.flight != InflightState::Done
        {
            entry.flight = flight;
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
        let done = Entry {
            sent,
            flight: InflightState::Done,
        };
        match self.index(packet_id) {
            Some(index) if index >= self.entries.len() && index < IDS as usize / 2 => {
                self.entries.resize(index, done);
                self.entries.push_back(Entry { sent, flight });
                self.unacked += 1;
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
        if let Some(index) = self.index(packet_id)
            && let Some(entry) = self.entries.get_mut(index)
        {
            entry.sent.source = source;
        }
    }

    /// The same for all deliveries from `from`.
    pub fn reassign(&mut self, from: Source, to: Source) {
        for entry in &mut self.entries {
            if entry.sent.source == from {
                entry.sent.source = to;
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
                (id as u16 + 1, entry.sent, entry.flight)
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
                && entry.sent.partition == partition
                && entry.sent.source == source
        };
        self.entries
            .iter()
            .filter(of_source)
            .map(|entry| entry.sent.offset)
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
            .any(|entry| entry.flight != InflightState::Done && entry.sent.source == source)
    }

    /// Frees the memory of an empty window.
    pub fn shrink(&mut self) {
        if self.entries.is_empty() {
            self.entries.shrink_to(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(offset: u64) -> Inflight {
        Inflight {
            offset: Offset(offset),
            partition: PartitionIndex(1),
            source: Source::Cursor,
            receipt: false,
        }
    }

    fn push(window: &mut Window, offset: u64) -> u16 {
        window.push(sent(offset), InflightState::AwaitsPuback)
    }

    #[test]
    fn restored_deliveries_keep_their_ids_and_new_ones_follow_them() {
        let mut window = Window::default();
        assert!(window.restore(65_535, sent(7), InflightState::AwaitsPubcomp));
        assert!(window.restore(3, sent(9), InflightState::AwaitsPubrec));
        assert!(
            !window.restore(2, sent(9), InflightState::AwaitsPubrec),
            "backwards"
        );
        assert_eq!(window.unacked(), 2);
        assert_eq!(window.flight(1), None);
        assert_eq!(
            window.flight(65_535),
            Some((sent(7), InflightState::AwaitsPubcomp))
        );
        assert_eq!(push(&mut window, 10), 4);
        assert_eq!(window.finish(65_535), Some(sent(7)));
        assert_eq!(window.front(), Some(3));
    }

    #[test]
    fn acknowledgements_in_any_order_free_the_window_and_keep_the_oldest_offset() {
        let mut window = Window::default();
        let ids: Vec<u16> = (0..4).map(|n| push(&mut window, n)).collect();
        assert_eq!(ids, [1, 2, 3, 4]);
        assert_eq!(window.finish(2), Some(sent(1)));
        assert_eq!(window.finish(2), None, "twice");
        assert_eq!(
            window.oldest(PartitionIndex(1), Source::Cursor),
            Some(Offset(0))
        );
        assert_eq!(window.oldest(PartitionIndex(2), Source::Cursor), None);
        assert_eq!(window.finish(1), Some(sent(0)));
        assert_eq!(
            window.oldest(PartitionIndex(1), Source::Cursor),
            Some(Offset(2))
        );
        assert_eq!(window.unacked(), 2);
        assert_eq!(window.finish(0), None);
        assert_eq!(window.finish(5), None);
        let left: Vec<u16> = window.unacked_from(1).map(|(id, _, _)| id).collect();
        assert_eq!(left, [3, 4]);
        assert_eq!(window.unacked_from(4).count(), 1);
    }

    #[test]
    fn packet_ids_go_round_without_zero_and_without_meeting_one_in_flight() {
        let mut window = Window::default();
        let stuck = push(&mut window, 0);
        let mut pushed = 0;
        while window.room(u16::MAX) > 0 {
            let id = push(&mut window, 1);
            assert_ne!(id, stuck);
            assert_ne!(id, 0);
            assert!(window.finish(id).is_some());
            pushed += 1;
        }
        assert!(pushed > 30_000);
        assert!(window.finish(stuck).is_some());
        for _ in 0..200_000 {
            let id = push(&mut window, 2);
            assert_ne!(id, 0);
            assert!(window.finish(id).is_some());
        }
        assert!(window.is_empty());
    }
}
