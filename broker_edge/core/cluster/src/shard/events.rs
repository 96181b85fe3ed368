//! What comes into a shard and what it wants done.

use std::fmt;

use bytes::Bytes;

use crate::divergence::History;
use crate::frames::{Edges, Frame};
use crate::key::{Revision, ShardKey};
use crate::marks::{DiskId, Epoch, Member, Offset, PartitionId, ShardId, Stamp, Starts};
use crate::replica_file::ReplicaFile;
use crate::rules::Rules;

/// What does not change in one life of a replica.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    pub log_id: [u8; 16],
    pub shard: ShardId,
    pub me: Member,
    /// Of this disk, counted up and made durable before the shard is made.
    pub starts: Starts,
    /// In ascending order. Everything else names a partition by its index here.
    pub partitions: Vec<PartitionId>,
    /// The in-sync set never has fewer members. At least 2.
    pub min_in_sync: usize,
    /// Bytes of batches that a leader may send before the first answer.
    pub credit_bytes: u32,
    pub rules: Rules,
}

impl Place {
    #[must_use]
    pub fn disk(&self) -> DiskId {
        self.me.disk
    }
}

/// What the log has of a partition. `log_start <= high_watermark <= synced <= end`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Held {
    pub log_start: Offset,
    pub end: Offset,
    /// After a start: what recovery itself has synced, not what it has read.
    pub synced: Offset,
    pub high_watermark: Offset,
    pub history: History,
}

/// What the look at the disk found when the node started.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Found {
    /// `None` when it is missing or refused.
    pub file: Option<ReplicaFile>,
    /// The log was closed after everything was synced.
    pub stopped_cleanly: bool,
    /// Bytes or files are missing or wrong.
    pub is_damaged: bool,
    pub partitions: Vec<Held>,
}

/// A deadline. The shard says when it begins; how long it takes is decided outside.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timer {
    /// 500 ms: the next beacon of a leader.
    Beacon,
    /// 4 s: the follower has not heard its leader.
    Grace,
    /// 1 s: the leader has not answered a `Follow`.
    Follow,
    /// 300 ms: who lives has answered an `Ask`.
    Round,
    /// 250 ms: the election has not ended.
    Retry,
    /// 30 s: an unproven replica no longer waits for the whole set.
    Long,
    /// 10 s, doubling up to 10 min: a member that was removed for its lag may come back.
    HoldBack(Member),
    /// 2 s: the successor has not become ready; the leader goes on.
    HandOver,
    /// 5 s: the high watermarks go to the replica file.
    Hints,
}

/// How a compare-and-swap ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CasOutcome {
    Done(Revision),
    /// Not written, because the key is this.
    Conflict(Revision, ShardKey),
    /// Written, not written, or still on its way.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// A connection was made; the peer's `Hello` named this life.
    Linked {
        peer: Member,
        starts: Starts,
    },
    Unlinked {
        peer: Member,
    },
    /// The peer's host is alive and refused a connection: its process is gone.
    Gone {
        peer: Member,
    },
    Frame {
        from: Member,
        frame: Frame,
    },
    /// The answer to [`Effect::Stand`] of this number.
    Stood {
        number: u64,
        partitions: Vec<Held>,
    },
    /// The log has written batches up to `end`. `epochs`: those that began with them, and where.
    Written {
        partition: usize,
        end: Offset,
        epochs: Vec<(Epoch, Offset)>,
    },
    /// Everything below `to` is on this disk.
    Synced {
        partition: usize,
        to: Offset,
    },
    /// Whole segments were removed, and the log begins here.
    LogStart {
        partition: usize,
        to: Offset,
    },
    /// The log refused batches: there is a hole, or they are of another epoch.
    TakeRefused,
    /// Whether the disk has room for more batches.
    Room(bool),
    /// The key as etcd has it, by a watch or a linearizable read.
    Key {
        revision: Revision,
        key: ShardKey,
        was_read: bool,
    },
    Cas(CasOutcome),
    /// The lease on a member of the set is over.
    Silent(Member),
    /// The member answers beacons again.
    Heard(Member),
    /// The member has been behind the leader's end for 2 s.
    Lagging(Member),
    Expired(Timer),
    /// Give the shard to this follower.
    HandOver {
        to: Member,
    },
    /// A write or a sync failed. What the disk has is not known.
    Failed,
    /// The log is closed and synced: an orderly end.
    Stop,
}

/// How clients are served.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Office {
    /// Sessions, appends, acknowledgements.
    Open { epoch: Epoch },
    /// No CONNECT and no append; connections are kept.
    Pause,
    /// Connections are closed, and what waits for an acknowledgement is dropped unanswered.
    Close,
}

/// Why a replica has stopped. A person looks at it, or restarts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StopReason {
    Orderly,
    /// A write or a sync failed.
    DiskFailed,
    /// The leader wants to cut what is committed here.
    CutBelowHighWatermark,
    /// The leader wants to cut what this sound replica has synced in the same epoch.
    CutBelowSynced,
    /// Two nodes lead one epoch: the key was changed by hand, or etcd went back.
    TwoLeaders,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Orderly => "it was stopped",
            Self::DiskFailed => "a write or a sync failed; look at the disk and restart",
            Self::CutBelowHighWatermark => {
                "the leader lacks records that were committed here; keep both folders and ask for help"
            }
            Self::CutBelowSynced => {
                "the leader lacks records that were synced here in its own epoch; keep both folders and ask for help"
            }
            Self::TwoLeaders => {
                "another node leads the same epoch; was etcd restored, or its key changed by hand?"
            }
        })
    }
}

/// What a person should know. The replica goes on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Alarm {
    /// etcd has an epoch below one that this replica has seen: it went back.
    MetadataWentBack { key: Epoch, here: Epoch },
    /// No member of the set may take over by itself.
    NobodyMayLead,
    /// The follower dropped, as committed, offsets that this leader does not have.
    FollowerAhead(Member),
}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MetadataWentBack { key, here } => write!(
                f,
                "etcd has epoch {key}, and this node has seen epoch {here}: was etcd restored from a backup?"
            ),
            Self::NobodyMayLead => f.write_str(
                "no node may take over by itself: start the others, or look at what their logs say of their disks",
            ),
            Self::FollowerAhead(member) => write!(
                f,
                "{member} has removed, as committed, records that this leader does not have; keep both folders and ask \
                 for help"
            ),
        }
    }
}

/// What is to be done, in this order, before the next event. An effect that fails is an [`Event::Failed`], and the
/// effects after it are not done.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Effect {
    Send {
        to: Member,
        frame: Frame,
    },
    /// Replace the replica file and sync it.
    WriteFile(ReplicaFile),
    /// Have the log take batches of this epoch's leader only, drop what is queued, finish what is being written, sync
    /// it, and answer with [`Event::Stood`].
    Stand {
        number: u64,
        epoch: Epoch,
    },
    /// Have the log append in this epoch. It stands.
    Lead {
        epoch: Epoch,
    },
    /// Give these bytes to the log.
    Take {
        partition: usize,
        epoch: Epoch,
        edges: Edges,
        bytes: Bytes,
    },
    /// Remove what is at or above `to`.
    Truncate {
        partition: usize,
        to: Offset,
    },
    /// Remove everything; the next batch begins at `at`.
    Restart {
        partition: usize,
        at: Offset,
    },
    /// Remove whole segments below `to`, as the leader did.
    RemoveBelow {
        partition: usize,
        to: Offset,
    },
    /// Show what is below `to` to readers.
    CommitTo {
        partition: usize,
        to: Offset,
    },
    /// Send the log's batches from these offsets on, each in the frame `Batches` with this stamp, as credit allows.
    Stream {
        to: Member,
        stamp: Stamp,
        from: Vec<Offset>,
        credit_bytes: u32,
    },
    /// The follower of the stream has room for as many bytes more.
    Credit {
        to: Member,
        bytes: u32,
    },
    /// Send no more batches to anybody.
    EndStreams,
    /// Write the key if it still has this revision.
    Cas {
        expected: Revision,
        key: ShardKey,
    },
    /// Read the key, linearizably.
    ReadKey,
    Office(Office),
    /// Where clients should go.
    LeaderIs(Option<Member>),
    Arm(Timer),
    Disarm(Timer),
    Alarm(Alarm),
    Stop(StopReason),
}
