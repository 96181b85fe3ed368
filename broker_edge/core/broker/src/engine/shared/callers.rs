//! The distinct rights among the members of a group. A topic that no member could receive under any client id does not
//! concern the group: its records cost nothing, however many groups a user makes over topics of others.

use std::collections::HashMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::auth::{Access, Caller, Rights};

use super::super::stage::PartitionIndex;
use super::super::{Engine, SessionKey};
use super::{GroupId, Groups};

/// Nothing stands for whoever may do everything.
type Name = Option<Caller>;

/// Members by what they may do.
#[derive(Debug, Default)]
pub struct Callers {
    by_name: FxHashMap<Name, (Option<Arc<Rights>>, u32)>,
}

/// What was found of one topic.
#[derive(Debug, Default)]
pub struct Verdicts(HashMap<Name, bool, rustc_hash::FxBuildHasher>);

impl Callers {
    /// Counts a member. Gives what it is counted under.
    pub fn enter(&mut self, rights: Option<&Arc<Rights>>) -> Name {
        let name = rights.map(|rights| rights.caller());
        let entry = self.by_name.entry(name.clone());
        entry.or_insert_with(|| (rights.cloned(), 0)).1 += 1;
        name
    }

    pub fn leave(&mut self, name: &Name) {
        if let Some((_, count)) = self.by_name.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                self.by_name.remove(name);
            }
        }
    }

    /// Whether one of them might receive the records of a topic.
    pub fn might_receive(&self, topic: &str, verdicts: &mut Verdicts) -> bool {
        self.by_name.iter().any(|(name, (rights, _))| {
            let Some(rights) = rights else { return true };
            if let Some(known) = verdicts.0.get(name) {
                return *known;
            }
            let might = rights.might(Access::Receive, topic);
            verdicts.0.insert(name.clone(), might);
            might
        })
    }
}

impl Groups {
    /// Whether a record of a topic may be for members of the group now, or may make it wait for some.
    pub fn is_concerned(
        &self,
        id: GroupId,
        (topic, partition): (&str, PartitionIndex),
        verdicts: &mut Verdicts,
    ) -> bool {
        self.get(id).is_some_and(|group| {
            let members = &group.members;
            (!members.present().is_empty() || group.is_live(partition))
                && members.callers().might_receive(topic, verdicts)
        })
    }
}

impl Engine {
    /// The client of a session may do something else now.
    pub(in super::super) fn tell_groups_rights(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        for id in session.groups() {
            if let Some(group) = self.groups.get_mut(*id) {
                group.members.set_rights(key, session.rights.as_ref());
            }
        }
    }

    /// So may all.
    pub(in super::super) fn tell_all_groups_rights(&mut self) {
        for id in self.groups.ids() {
            let Some(group) = self.groups.get_mut(id) else {
                continue;
            };
            group.members.forget_rights();
            let keys: Vec<SessionKey> = group.members.keys().collect();
            for key in keys {
                let session = self.sessions.get(key);
                let rights = session.and_then(|session| session.rights.as_ref());
                group.members.set_rights(key, rights);
            }
        }
    }
}
