//! The window of a session: deliveries that were sent with QoS 1 and are not acknowledged yet.
//!
//! Packet ids are given in order, so an entry's id is the front's id plus its place: an entry is 16 bytes and finding
//! one by its id is an addition. It holds places in the log, never payloads: what has to be sent again is read again.

use std::collections::VecDeque;

use headwater_log::Offset;

use super::stage::PartitionIndex;

/// Which of a session's cursors a delivery came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The session's own place in the partition.
    Cursor,
    /// A replaying subscription, by its number in the session.
    Replay(u16),
    /// A retained value: nothing remembers it but the window.
    Retained,
}

/// One delivery that waits for its acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    pub offset: Offset,
    pub partition: PartitionIndex,
    pub source: Source,
    /// The device that this record commands is the client: its PUBACK is a receipt.
    pub receipt: bool,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    sent: Sent,
    acked: bool,
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

impl Window {
    #[cfg(test)]
    fn unacked(&self) -> usize {
        usize::from(self.unacked)
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many deliveries fit. Acknowledged entries behind an unacknowledged one still hold their ids, so a client that
    /// never acknowledges one delivery gets at most half of all ids further.
    #[inline]
    pub fn room(&self, limit: u16) -> usize {
        let by_limit = usize::from(limit).saturating_sub(usize::from(self.unacked));
        by_limit.min((IDS as usize / 2).saturating_sub(self.entries.len()))
    }

    /// Remembers a delivery and gives its packet id. The caller has checked [`Window::room`].
    #[inline]
    pub fn push(&mut self, sent: Sent) -> u16 {
        let id = (u32::from(self.front_id) + self.entries.len() as u32) % IDS;
        self.entries.push_back(Entry { sent, acked: false });
        self.unacked += 1;
        id as u16 + 1
    }

    /// The delivery that `packet_id` acknowledges; nothing when it is not in flight.
    #[inline]
    pub fn ack(&mut self, packet_id: u16) -> Option<Sent> {
        let place = self.place(packet_id)?;
        let entry = self.entries.get_mut(place)?;
        if entry.acked {
            return None;
        }
        entry.acked = true;
        let sent = entry.sent;
        self.unacked -= 1;
        while self.entries.front().is_some_and(|entry| entry.acked) {
            self.entries.pop_front();
            self.front_id = ((u32::from(self.front_id) + 1) % IDS) as u16;
        }
        Some(sent)
    }

    /// Whether a delivery with this packet id waits for its acknowledgement.
    pub fn contains(&self, packet_id: u16) -> bool {
        self.place(packet_id)
            .and_then(|place| self.entries.get(place))
            .is_some_and(|entry| !entry.acked)
    }

    fn place(&self, packet_id: u16) -> Option<usize> {
        let id = u32::from(packet_id.checked_sub(1)?);
        Some(((id + IDS - u32::from(self.front_id)) % IDS) as usize)
    }

    /// The packet id of the oldest unacknowledged delivery.
    pub fn front(&self) -> Option<u16> {
        (!self.entries.is_empty()).then(|| self.front_id + 1)
    }

    /// Unacknowledged deliveries with their packet ids, oldest first, from `packet_id` on; from the front when that is
    /// acknowledged.
    pub fn unacked_from(&self, packet_id: u16) -> impl Iterator<Item = (u16, Sent)> + '_ {
        let front = u32::from(self.front_id);
        let skip = self
            .place(packet_id)
            .filter(|place| *place < self.entries.len())
            .unwrap_or(0);
        self.entries
            .iter()
            .enumerate()
            .skip(skip)
            .filter(|(_, entry)| !entry.acked)
            .map(move |(place, entry)| {
                let id = (front + place as u32) % IDS;
                (id as u16 + 1, entry.sent)
            })
    }

    /// How many unacknowledged deliveries are older than the one with this packet id.
    pub fn unacked_before(&self, packet_id: u16) -> usize {
        let older = self.place(packet_id).unwrap_or(0);
        let unacked = |entry: &&Entry| !entry.acked;
        self.entries.iter().take(older).filter(unacked).count()
    }

    /// The oldest unacknowledged offset of one partition that came from `source`.
    pub fn oldest(&self, partition: PartitionIndex, source: Source) -> Option<Offset> {
        let of_source = |entry: &&Entry| {
            !entry.acked && entry.sent.partition == partition && entry.sent.source == source
        };
        self.entries
            .iter()
            .filter(of_source)
            .map(|entry| entry.sent.offset)
            .min()
    }

    /// Whether anything from `source` waits.
    pub fn holds(&self, source: Source) -> bool {
        self.entries
            .iter()
            .any(|entry| !entry.acked && entry.sent.source == source)
    }

    /// Gives memory back that an empty window does not need.
    pub fn shrink(&mut self) {
        if self.entries.is_empty() {
            self.entries.shrink_to(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(offset: u64) -> Sent {
        Sent {
            offset: Offset(offset),
            partition: PartitionIndex(1),
            source: Source::Cursor,
            receipt: false,
        }
    }

    #[test]
    fn acknowledgements_in_any_order_free_the_window_and_keep_the_oldest_offset() {
        let mut window = Window::default();
        let ids: Vec<u16> = (0..4).map(|n| window.push(sent(n))).collect();
        assert_eq!(ids, [1, 2, 3, 4]);
        assert_eq!(window.ack(2), Some(sent(1)));
        assert_eq!(window.ack(2), None, "twice");
        assert_eq!(
            window.oldest(PartitionIndex(1), Source::Cursor),
            Some(Offset(0))
        );
        assert_eq!(window.oldest(PartitionIndex(2), Source::Cursor), None);
        assert_eq!(window.ack(1), Some(sent(0)));
        assert_eq!(
            window.oldest(PartitionIndex(1), Source::Cursor),
            Some(Offset(2))
        );
        assert_eq!(window.unacked(), 2);
        assert_eq!(window.ack(0), None);
        assert_eq!(window.ack(5), None);
        let left: Vec<u16> = window.unacked_from(1).map(|(id, _)| id).collect();
        assert_eq!(left, [3, 4]);
        assert_eq!(window.unacked_from(4).count(), 1);
    }

    #[test]
    fn packet_ids_go_round_without_zero_and_without_meeting_one_in_flight() {
        let mut window = Window::default();
        let stuck = window.push(sent(0));
        let mut pushed = 0;
        while window.room(u16::MAX) > 0 {
            let id = window.push(sent(1));
            assert_ne!(id, stuck);
            assert_ne!(id, 0);
            assert!(window.ack(id).is_some());
            pushed += 1;
        }
        assert!(pushed > 30_000);
        assert!(window.ack(stuck).is_some());
        for _ in 0..200_000 {
            let id = window.push(sent(2));
            assert_ne!(id, 0);
            assert!(window.ack(id).is_some());
        }
        assert!(window.is_empty());
    }
}
