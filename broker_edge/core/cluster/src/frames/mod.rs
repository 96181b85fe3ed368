//! The frames between two nodes. `docs/cluster-protocol.md` has them byte by byte.
//!
//! A frame is bounded by its length before anything is buffered or allocated for it, and has a checksum. Who sends is
//! known from the `Hello` of the connection, so no other frame names its sender.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

pub use decode::{Decoded, FrameError, decode};
pub use encode::{encode, encode_but_batches};

use bytes::Bytes;

use crate::divergence::History;
use crate::marks::{Epoch, FollowNumber, Node, Offset, PartitionId, ShardId, Stamp, Starts, Trust};

/// The version of frames that this build speaks.
pub const VERSION: u8 = 1;
/// Length and checksum, then what the checksum covers: kind, version, shard.
pub const HEAD_BYTES: usize = 12;
/// A `Hello` is not longer, whole: before it nothing is known of the peer.
pub const HELLO_BYTES_MAX: usize = 512;
/// No other frame is longer, whole.
pub const FRAME_BYTES_MAX: usize = 4 << 20;
/// Bytes of batches in one frame; a longer batch comes in parts.
pub const CHUNK_BYTES_MAX: usize = 64 << 10;
/// Partitions that a frame names.
pub const PARTITIONS_MAX: usize = crate::replica_file::PARTITIONS_MAX;

/// The first frame of a connection, in both directions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hello {
    /// The lowest and the highest version of frames that the sender speaks.
    pub versions: (u8, u8),
    pub log_id: [u8; 16],
    pub cluster: Node,
    pub node: Node,
    pub disk: crate::marks::DiskId,
    pub starts: Starts,
    /// The sender's wall clock, Unix milliseconds.
    pub clock_ms: u64,
}

/// A partition of a `Follow`, in the order of the shard's partitions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FollowPart {
    pub log_start: Offset,
    pub end: Offset,
    pub history: History,
}

/// A partition of an `Align`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AlignPart {
    /// `true`: remove everything and begin at `from`; `false`: keep what is below `from`.
    pub restart: bool,
    pub from: Offset,
    pub log_start: Offset,
    pub high_watermark: Offset,
}

/// High watermark and log start of a partition, as the leader has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Told {
    pub high_watermark: Offset,
    pub log_start: Offset,
}

/// Whether a chunk begins or ends a run of whole batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Edges {
    pub first: bool,
    pub last: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Frame {
    Hello(Hello),
    /// Leader to replica, each 500 ms. `sent_ms` is the sender's clock, and comes back in the answer. `is_stuck`: a
    /// member of the set does not answer, so the leader does not serve.
    Beacon {
        epoch: Epoch,
        sent_ms: u64,
        is_stuck: bool,
        told: Vec<Told>,
    },
    BeaconAnswer {
        epoch: Epoch,
        sent_ms: u64,
        reaches_etcd: bool,
    },
    /// Begins a stream, and takes back everything that this follower said before.
    Follow {
        stamp: Stamp,
        trust: Trust,
        credit_bytes: u32,
        parts: Vec<FollowPart>,
    },
    /// Answers a `Follow`. With `doubt` the follower has lost bytes that it had synced, and is suspect.
    Align {
        stamp: Stamp,
        doubt: bool,
        parts: Vec<AlignPart>,
    },
    Batches {
        stamp: Stamp,
        partition: PartitionId,
        told: Told,
        edges: Edges,
        bytes: Bytes,
    },
    /// Everything below these offsets is on the follower's disk.
    Synced {
        stamp: Stamp,
        has_room: bool,
        credit_bytes: u32,
        parts: Vec<(PartitionId, Offset)>,
    },
    /// The follower is sound again: it has synced up to the high watermark and the start of the epoch.
    Sound {
        stamp: Stamp,
    },
    /// What do you have? `epoch` is that of the key, and is durable at whoever is asked before the answer.
    Ask {
        epoch: Epoch,
        number: FollowNumber,
        leader_resigned: bool,
    },
    /// `still_led`: the leader of the epoch was heard within the grace. `marks`: last epoch and end of each partition.
    Answer {
        epoch: Epoch,
        number: FollowNumber,
        trust: Trust,
        still_led: bool,
        marks: Vec<(Epoch, Offset)>,
    },
    /// A frame of a lower epoch came; this is the one that holds here.
    Refused {
        epoch: Epoch,
    },
    /// The leader gives up this epoch; take over.
    Resign {
        epoch: Epoch,
    },
    /// No replica in sync has `[from, to)`. The next batch begins at `to`.
    Gap {
        stamp: Stamp,
        partition: PartitionId,
        from: Offset,
        to: Offset,
    },
}

/// A frame and the shard it is about; `Hello` is about none and carries 0.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Addressed {
    pub shard: ShardId,
    pub frame: Frame,
}

impl Frame {
    /// The number of its kind on the wire.
    #[must_use]
    pub const fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => 1,
            Self::Beacon { .. } => 2,
            Self::BeaconAnswer { .. } => 3,
            Self::Follow { .. } => 4,
            Self::Align { .. } => 5,
            Self::Batches { .. } => 6,
            Self::Synced { .. } => 7,
            Self::Sound { .. } => 8,
            Self::Ask { .. } => 9,
            Self::Answer { .. } => 10,
            Self::Refused { .. } => 11,
            Self::Resign { .. } => 12,
            Self::Gap { .. } => 13,
        }
    }
}
