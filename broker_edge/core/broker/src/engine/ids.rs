//! Numbers that identify things.

use headwater_log::{Offset, PartitionId};

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

/// The index of a record in the sequence that this loop stages for one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// The number of a commit of QoS 2 state. Number 0 is durable from the beginning: it stands for changes that need not
/// be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct CommitSeq(pub u64);

/// Identifies a group while it exists. Small, because each delivery in a window carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u16);

impl GroupId {
    pub fn to_bits(self) -> u16 {
        self.0
    }
}
