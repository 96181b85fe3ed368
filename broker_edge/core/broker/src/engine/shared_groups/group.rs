//! One group: its cursors, its members, and the records that it has to deliver again.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use headwater_log::Offset;

use crate::auth::Access;
use crate::engine::SessionKey;
use crate::engine::ids::{PartitionIndex, PartitionOffset};
use crate::engine::routing::topics::EffectiveOptions;
use crate::engine::session::cursors::Cursors;
use crate::engine::session::window::Inflight;

use super::fair_queue::Owner;
use super::filter_of;
use super::group_cursor::DoneRanges;
use super::members::Members;

/// Records of a group that may be unacknowledged at members or wait to be given again; at the limit the group reads no
/// further.
const PENDING_MAX: usize = 100_000;
/// How many of those may be set aside because only full or disconnected members may receive them.
const ASIDE_MAX: usize = 50_000;
/// Records tried again when a member may have room; and records tried again each second and when a member connects.
pub(super) const ASIDE_TRIED: usize = 4;
pub(super) const ASIDE_TRIED_MORE: usize = 64;

/// The member of a record that was set aside.
const NOBODY: SessionKey = SessionKey::NONE;

/// `$share/<name>/<filter>`.
#[derive(Debug)]
pub struct Group {
    /// Prefixed with the group's tenant.
    pub(super) name: Rc<str>,
    /// As its members write it.
    pub(super) shown: Rc<str>,
    pub(super) tenant: Option<Rc<str>>,
    /// The group's turns are shared with the other groups of this owner.
    pub(super) owner: Owner,
    /// The end of the history at which the group began: older records are only given to members that may replay them.
    pub(super) past: Vec<PartitionOffset>,
    pub members: Members,
    /// Partitions in which it is not part of the live stream.
    pub behind: Cursors,
    /// Records returned by members, with the member that had each: given before anything new.
    pub(super) returned: BTreeMap<PartitionOffset, SessionKey>,
    /// Records that only full or disconnected members may receive: others do not wait for them.
    pub(super) aside: VecDeque<PartitionOffset>,
    /// Records that were done above the cursors at a restart.
    pub(super) skips: DoneRanges,
    /// Deliveries in the windows of members.
    pub(super) out: usize,
    /// In the list of groups with work to do.
    pub(super) queued: bool,
    /// Acknowledgements came since the last checkpoint.
    pub(super) dirty: bool,
    /// A QoS 2 delivery is done, and the state store does not know yet.
    pub(super) has_completed: bool,
    /// The state store holds its cursor.
    pub(super) stored: bool,
}

impl Group {
    pub(super) fn new(name: Rc<str>, shown: &str, epoch: u64) -> Self {
        Self {
            name,
            shown: shown.into(),
            tenant: None,
            owner: "".into(),
            past: Vec::new(),
            members: Members::new(epoch),
            behind: Cursors::default(),
            returned: BTreeMap::new(),
            aside: VecDeque::new(),
            skips: DoneRanges::default(),
            out: 0,
            queued: false,
            dirty: false,
            has_completed: false,
            stored: false,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The filter after the group's name.
    pub fn filter(&self) -> &str {
        filter_of(&self.shown).unwrap_or_default()
    }

    /// The access that a member needs to be given a record.
    #[inline]
    pub fn access_to(&self, partition: PartitionIndex, offset: Offset) -> Access {
        let mut past = self.past.iter();
        if past.any(|(of, until)| *of == partition && offset < *until) {
            Access::Replay
        } else {
            Access::Receive
        }
    }

    pub(super) fn has_work(&self) -> bool {
        !self.behind.is_empty() || !self.returned.is_empty()
    }

    /// The options of a member's subscription.
    pub fn effective_of(&self, session: SessionKey) -> Option<&EffectiveOptions> {
        Some(&self.members.get(session)?.effective)
    }

    /// Whether nobody is to be given records now.
    pub fn is_deserted(&self) -> bool {
        self.members.present().is_empty()
    }

    /// Whether a record above the cursor was done before a restart.
    pub fn skips(&self, partition: PartitionIndex, offset: Offset) -> bool {
        self.skips.contains(partition, offset)
    }

    /// The first record returned by a member, and the member.
    pub fn first_returned(&self) -> Option<(PartitionOffset, SessionKey)> {
        let (at, from) = self.returned.first_key_value()?;
        Some((*at, *from))
    }

    /// A member has got a record; with a packet id it counts until it is settled.
    pub fn note_given(&mut self, has_id: bool) {
        self.out += usize::from(has_id);
    }

    pub fn end_returned(&mut self, at: PartitionOffset) {
        self.returned.remove(&at);
        self.dirty = true;
    }

    /// Sets a record aside, if there is room for it.
    pub fn set_aside(&mut self, at: PartitionOffset) -> bool {
        let has_room = self.aside.len() < ASIDE_MAX;
        if has_room {
            self.aside.push_back(at);
            self.dirty = true;
        }
        has_room
    }

    /// Lets records that were set aside be tried again, in turn.
    pub(super) fn try_aside(&mut self, count: usize) {
        let count = count.min(self.aside.len());
        for at in self.aside.drain(..count) {
            self.returned.insert(at, NOBODY);
        }
    }

    /// Records at members, or waiting to be given again.
    pub fn pending(&self) -> usize {
        self.out + self.returned.len() + self.aside.len()
    }

    pub fn is_full(&self) -> bool {
        self.pending() >= PENDING_MAX
    }

    /// A member's delivery is over; if it was not done, the record goes to another member.
    pub(super) fn take_back(&mut self, sent: Inflight, from: Option<SessionKey>) {
        self.out = self.out.saturating_sub(1);
        self.dirty = true;
        if let Some(from) = from {
            self.returned.insert((sent.partition, sent.offset), from);
        }
    }
}
