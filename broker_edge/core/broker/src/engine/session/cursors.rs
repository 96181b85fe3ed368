//! Where a reader stands that is not served by the live stream: a session, one of its replays, or a shared group.

use headwater_log::Offset;

use crate::engine::containers::lazy_box::LazyBox;
use crate::engine::ids::PartitionIndex;

/// Where a reader stands in one partition; everything below `next` was examined.
#[derive(Debug, Clone, Copy)]
pub struct Cursor {
    pub partition: PartitionIndex,
    pub next: Offset,
    /// Records below are skipped if they would be delivered with QoS 0: the client was disconnected.
    pub qos0_from: Offset,
    /// The session is behind only because retained messages go first: QoS 0 messages that are late and find no room are
    /// dropped, as in the live stream.
    pub sheds_qos0: bool,
}

const _: () = assert!(size_of::<Cursor>() <= 24);

impl Cursor {
    pub fn new(partition: PartitionIndex, next: Offset) -> Self {
        Self {
            partition,
            next,
            qos0_from: Offset(0),
            sheds_qos0: false,
        }
    }
}

/// The partitions in which a reader is not live, each at most once.
#[derive(Debug, Default)]
pub struct Cursors(LazyBox<Vec<Cursor>>);

impl FromIterator<Cursor> for Cursors {
    fn from_iter<T: IntoIterator<Item = Cursor>>(cursors: T) -> Self {
        Self(Vec::from_iter(cursors).into())
    }
}

impl Cursors {
    pub fn iter(&self) -> impl Iterator<Item = &Cursor> {
        self.0.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn at(&self, partition: PartitionIndex) -> Option<&Cursor> {
        self.iter().find(|cursor| cursor.partition == partition)
    }

    /// Whether the live stream serves the reader in a partition.
    #[inline]
    pub fn is_live(&self, partition: PartitionIndex) -> bool {
        self.at(partition).is_none()
    }

    /// The offset from which the reader continues in a partition, if it is not live there.
    pub fn next(&self, partition: PartitionIndex) -> Option<Offset> {
        Some(self.at(partition)?.next)
    }

    /// Leaves the live stream: records from the cursor on are read later. A reader that has left it stays where it is.
    pub fn fall_behind(&mut self, cursor: Cursor) {
        if self.is_live(cursor.partition) {
            self.0.push(cursor);
        }
    }

    /// QoS 0 records from before the live offsets are skipped.
    pub fn skip_qos0(&mut self, live_at: &[Offset]) {
        for cursor in self.0.present_mut().into_iter().flatten() {
            cursor.qos0_from = live_at[cursor.partition.index()];
        }
    }

    /// Joins the live stream where nothing is left to examine.
    pub fn join_live(&mut self, live_at: &[Offset]) {
        if let Some(cursors) = self.0.present_mut() {
            cursors.retain(|cursor| cursor.next < live_at[cursor.partition.index()]);
            self.0.trim();
        }
    }

    /// The cursor at this place goes first the next time.
    pub fn begin_at(&mut self, place: usize) {
        if let Some(cursors) = self.0.present_mut() {
            cursors.rotate_left(place);
        }
    }

    /// The cursor of this partition goes first the next time.
    pub fn begin_with(&mut self, partition: PartitionIndex) {
        let place = self.iter().position(|cursor| cursor.partition == partition);
        self.begin_at(place.unwrap_or(0));
    }

    pub fn get(&self, place: usize) -> Option<Cursor> {
        self.0.get(place).copied()
    }

    pub fn move_to(&mut self, place: usize, next: Offset) {
        self.0[place].next = next;
    }

    pub fn remove(&mut self, place: usize) {
        self.0.swap_remove(place);
    }
}
