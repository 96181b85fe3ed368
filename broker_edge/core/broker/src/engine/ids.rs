//! Numbers that identify things.

use headwater_log::{Offset, PartitionId};

use super::SessionKey;

/// The number of a partition, small because each delivery stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PartitionIndex(pub u16);

impl PartitionIndex {
    /// The partitions come from the configuration, which allows far fewer than 65,536.
    pub fn of(id: PartitionId) -> Self {
        Self(u16::try_from(id.0).expect("a log has fewer than 65,536 partitions"))
    }

    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The partition and offset of a record.
pub type PartitionOffset = (PartitionIndex, Offset);

/// The number of an append of this loop; the numbers ascend. Number 0 is durable from the beginning: it stands for
/// whatever need not be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct CommitSeq(pub u64);

/// An append that something waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Commit {
    pub partition: PartitionIndex,
    pub seq: CommitSeq,
}

impl Commit {
    pub const DURABLE: Self = Self {
        partition: PartitionIndex(0),
        seq: CommitSeq(0),
    };
}

/// Identifies a group while it exists. Small, because each delivery in a window carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u16);

/// Who waits for reads from the files: a session with all its replays, or a shared group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Waiter {
    Session(SessionKey),
    Group(GroupId),
}

impl GroupId {
    pub fn to_bits(self) -> u16 {
        self.0
    }
}
