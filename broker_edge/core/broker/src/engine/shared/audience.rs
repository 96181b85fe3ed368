//! Which members of a group may receive the records of a topic, where their rights differ.
//!
//! Most groups never ask: the member whose turn it is may receive what its group gets. Only where the first in the line
//! may not, all are looked at, once per topic and for as long as nobody comes or goes. How many are looked at is bounded
//! per turn: a group that is over it waits, and nobody else does.

use std::collections::HashMap;
use std::rc::Rc;

use rustc_hash::FxHashMap;

use crate::auth::Access;

use super::super::{Engine, SessionKey};
use super::GroupId;

/// Rights of members that a turn may look at. One look may go over it, and the next turns make up for that.
const LOOKS_PER_TURN: i64 = 256;
/// Members and topics that are kept, in words.
const KEPT_MAX: usize = 256 << 10;

/// Who may receive the records of one topic.
#[derive(Debug)]
pub struct Audience {
    epoch: u64,
    /// Those that are present, in order.
    pub present: Vec<SessionKey>,
    /// One that is away may.
    pub has_away: bool,
}

impl Audience {
    pub fn contains(&self, key: SessionKey) -> bool {
        self.present.binary_search(&key).is_ok()
    }
}

/// What was found of all groups.
#[derive(Debug, Default)]
pub struct Audiences {
    by_group: FxHashMap<(GroupId, Access), HashMap<Box<str>, Rc<Audience>>>,
    kept: usize,
    /// What the turn has left.
    left: i64,
    /// What there was since they were taken last.
    looks: u64,
}

impl Audiences {
    pub fn begin_turn(&mut self) {
        self.left = (self.left + LOOKS_PER_TURN).min(LOOKS_PER_TURN);
    }

    /// Whether this turn has looked at enough.
    pub fn is_spent(&self) -> bool {
        self.left <= 0
    }

    pub fn charge(&mut self, looks: usize) {
        self.left = self.left.saturating_sub_unsigned(looks as u64);
        self.looks += looks as u64;
    }

    pub fn forget(&mut self) {
        self.by_group.clear();
        self.kept = 0;
    }

    pub fn forget_group(&mut self, id: GroupId) {
        for access in [Access::Receive, Access::Replay] {
            self.by_group.remove(&(id, access));
        }
    }

    pub fn take_looks(&mut self) -> u64 {
        std::mem::take(&mut self.looks)
    }

    fn get(&self, of: (GroupId, Access), topic: &str, epoch: u64) -> Option<Rc<Audience>> {
        let audience = self.by_group.get(&of)?.get(topic)?;
        (audience.epoch == epoch).then(|| Rc::clone(audience))
    }

    fn keep(&mut self, of: (GroupId, Access), topic: &str, audience: &Rc<Audience>) {
        self.kept += 16 + audience.present.len() + topic.len() / 8;
        if self.kept > KEPT_MAX {
            self.forget();
        }
        let of_group = self.by_group.entry(of).or_default();
        of_group.insert(topic.into(), Rc::clone(audience));
    }
}

impl Engine {
    /// Who may be given the records of a topic, by `authorize`; nothing when the turn has looked at enough.
    pub(super) fn audience(
        &mut self,
        id: GroupId,
        topic: &str,
        access: Access,
    ) -> Option<Rc<Audience>> {
        let group = self.groups.get(id)?;
        let members = &group.members;
        let epoch = members.epoch();
        if let Some(audience) = self.groups.audiences.get((id, access), topic, epoch) {
            return Some(audience);
        }
        if self.groups.audiences.is_spent() {
            return None;
        }
        let mut looks = 0;
        let mut may = |key: &SessionKey| {
            looks += 1;
            self.may(*key, access, topic)
        };
        let mut present = members.present().to_vec();
        present.retain(&mut may);
        present.sort_unstable();
        let has_away = present.is_empty() && members.away().any(|key| may(&key));
        let audience = Rc::new(Audience {
            epoch,
            present,
            has_away,
        });
        self.groups.audiences.charge(looks);
        self.groups.audiences.keep((id, access), topic, &audience);
        Some(audience)
    }
}
