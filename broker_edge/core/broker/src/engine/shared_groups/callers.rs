//! The distinct rights among the members of a group. A topic that no member could receive under any client id does not
//! concern the group: its records cost nothing, however many groups a user creates for topics of others.

use std::collections::HashMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::auth::{Access, Caller, Rights};
use crate::engine::SessionKey;
use crate::engine::clients::Clients;
use crate::engine::ids::{GroupId, PartitionIndex};
use crate::engine::session::Session;

use super::Groups;

/// `None` stands for unrestricted rights.
type Name = Option<Caller>;

/// The number of members by rights.
#[derive(Debug, Default)]
pub struct Callers {
    by_name: FxHashMap<Name, (Option<Arc<Rights>>, u32)>,
}

/// The results for one topic.
#[derive(Debug, Default)]
pub struct Verdicts(HashMap<Name, bool, rustc_hash::FxBuildHasher>);

impl Callers {
    /// Counts a member. Returns the key under which it is counted.
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

    /// Whether any member might receive the records of a topic.
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
    /// Whether a record of a topic may be given to a member now, or may have to wait for one.
    pub fn is_concerned(
        &self,
        id: GroupId,
        (topic, partition): (&str, PartitionIndex),
        verdicts: &mut Verdicts,
    ) -> bool {
        self.get(id).is_some_and(|group| {
            let members = &group.members;
            (!group.is_deserted() || group.behind.is_live(partition))
                && members.callers().might_receive(topic, verdicts)
        })
    }
}

impl Groups {
    /// The rights of a session's client have changed.
    pub fn update_rights(&mut self, key: SessionKey, session: &Session) {
        for id in session.groups() {
            if let Some(group) = self.get_mut(*id) {
                group.members.set_rights(key, session.rights.as_ref());
            }
        }
    }

    /// The rights of all sessions may have changed.
    pub fn update_all_rights(&mut self, clients: &Clients) {
        for group in self.slots.iter_mut().flatten() {
            group.members.forget_rights();
            let keys: Vec<SessionKey> = group.members.keys().collect();
            for key in keys {
                let session = clients.session(key);
                let rights = session.and_then(|session| session.rights.as_ref());
                group.members.set_rights(key, rights);
            }
        }
    }
}
