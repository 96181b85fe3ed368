//! The packet ids of QoS 2 that a client has in use.

use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::engine::ConnKey;
use crate::engine::containers::lazy_box::Blank;
use crate::engine::ids::{Commit, CommitSeq, PartitionIndex};

/// A packet id in use.
#[derive(Debug, Clone, Copy)]
pub struct InboundId {
    /// The record; `None` if it was durable when the broker started.
    pub record: Option<Commit>,
    /// The connection whose receive maximum the id counts against.
    pub counted: Option<ConnKey>,
    /// How often the publish was repeated on that connection.
    pub repeats: u8,
    /// Hash of the payload; `None` if the publish arrived before the broker's last start.
    pub hash: Option<u64>,
}

impl InboundId {
    /// The record was durable when the broker started.
    pub const RESTORED: Self = Self {
        record: None,
        counted: None,
        repeats: 0,
        hash: None,
    };
}

/// The packet ids that a client has in use.
#[derive(Debug, Default)]
pub struct Qos2Inbound {
    pub held: FxHashMap<u16, InboundId>,
    /// The partitions to which this session has published with QoS 2.
    pub partitions: Vec<PartitionIndex>,
    /// The commit of the newest release: no client is told that an id is free before that commit is durable.
    pub released_in: CommitSeq,
    /// The state store holds a value for it.
    pub is_stored: bool,
    /// The stored value is out of date.
    pub is_changed: bool,
    /// There are records that the stored value does not cover.
    pub is_behind: bool,
    /// In the list of sessions for the next mark.
    pub unmarked: bool,
}

impl Qos2Inbound {
    /// There is a record in the partition that the stored value does not cover.
    pub fn miss(&mut self, partition: PartitionIndex) {
        self.is_behind = true;
        if !self.partitions.contains(&partition) {
            self.partitions.push(partition);
        }
    }
}

impl Blank for Qos2Inbound {
    const BLANK: &'static Self = &Self {
        held: FxHashMap::with_hasher(FxBuildHasher),
        partitions: Vec::new(),
        released_in: CommitSeq(0),
        is_stored: false,
        is_changed: false,
        is_behind: false,
        unmarked: false,
    };

    fn is_blank(&self) -> bool {
        self.held.is_empty()
            && self.partitions.is_empty()
            && self.released_in == CommitSeq(0)
            && !(self.is_stored || self.is_changed || self.is_behind || self.unmarked)
    }
}
