//! Which members of a group may receive the records of a topic, if their rights differ.
//!
//! Most groups never ask: the member whose turn it is usually may receive the record. Only if the first members in line
//! may not, all are examined, once per topic and as long as no member joins, leaves, connects or disconnects. The
//! number examined per turn is limited: a group over the limit waits, without delaying others.

use std::collections::HashMap;
use std::rc::Rc;

use rustc_hash::FxHashMap;

use crate::auth::Access;
use crate::engine::SessionKey;
use crate::engine::clients::Clients;
use crate::engine::ids::GroupId;

use super::Groups;

/// Checks of members' rights in one turn. One lookup may exceed it, and the next turns make up for it.
const LOOKS_PER_TURN: i64 = 256;
/// Limit on cached members and topics, in words.
const KEPT_MAX: usize = 256 << 10;

/// Who may receive the records of one topic.
#[derive(Debug)]
pub struct Audience {
    epoch: u64,
    /// The connected ones, in order.
    pub present: Vec<SessionKey>,
    /// A disconnected member may receive them.
    pub has_away: bool,
}

impl Audience {
    pub fn contains(&self, key: SessionKey) -> bool {
        self.present.binary_search(&key).is_ok()
    }
}

/// The cached results of all groups.
#[derive(Debug, Default)]
pub struct Audiences {
    by_group: FxHashMap<(GroupId, Access), HashMap<Box<str>, Rc<Audience>>>,
    kept: usize,
    /// Checks left in this turn.
    left: i64,
    /// Checks since they were last taken.
    looks: u64,
}

impl Audiences {
    pub fn begin_turn(&mut self) {
        self.left = (self.left + LOOKS_PER_TURN).min(LOOKS_PER_TURN);
    }

    /// Whether this turn has used up its checks.
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

impl Groups {
    /// Which members may be given the records of a topic, according to `authorize`; `None` if the turn has used up its
    /// checks.
    pub fn audience(
        &mut self,
        id: GroupId,
        topic: &str,
        access: Access,
        clients: &Clients,
    ) -> Option<Rc<Audience>> {
        let group = self.get(id)?;
        let members = &group.members;
        let epoch = members.epoch();
        if let Some(audience) = self.audiences.get((id, access), topic, epoch) {
            return Some(audience);
        }
        if self.audiences.is_spent() {
            return None;
        }
        let mut looks = 0;
        let mut may = |key: &SessionKey| {
            looks += 1;
            let session = clients.session(*key);
            session.is_some_and(|session| session.may(access, topic))
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
        self.audiences.charge(looks);
        self.audiences.keep((id, access), topic, &audience);
        Some(audience)
    }
}
