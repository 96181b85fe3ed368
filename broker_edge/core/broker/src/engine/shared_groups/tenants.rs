//! The tenant of a group: two tenants that use the same name and filter have separate groups, so that neither takes the
//! records of the other or delays them.
//!
//! Users without a tenant share the groups of all such users, as in any broker. A member stays in its group until it
//! unsubscribes, even if its tenant changes, so that no record of the group is lost.

use std::collections::HashMap;

use crate::engine::ids::GroupId;
use crate::engine::retained::to_hex;
use crate::engine::session::Session;
use crate::engine::{Engine, SessionKey};

const PREFIX: &str = "$share/";

/// The name under which a group is kept. No client can choose a name with a `+`.
pub fn name_of(filter: &str, tenant: Option<&str>) -> String {
    match (tenant, filter.strip_prefix(PREFIX)) {
        (Some(tenant), Some(rest)) => {
            format!("{PREFIX}+{}+{rest}", to_hex(tenant.as_bytes()))
        }
        _ => filter.to_owned(),
    }
}

/// The filter in the name under which a group is kept.
pub fn filter_behind(name: &str) -> Option<&str> {
    Some(name.strip_prefix(PREFIX)?.split_once('/')?.1)
}

impl Engine {
    /// The group that a session has joined with a filter.
    pub(super) fn group_held(&self, key: SessionKey, filter: &str) -> Option<GroupId> {
        let mut ids = self.clients.session(key)?.groups().iter().copied();
        ids.find(|id| {
            let group = self.groups.get(*id);
            group.is_some_and(|group| &*group.shown == filter)
        })
    }

    /// The name of the group that a session's shared filter refers to.
    pub(in crate::engine) fn group_name(&self, key: SessionKey, filter: &str) -> String {
        let held = self.group_held(key, filter);
        if let Some(group) = held.and_then(|id| self.groups.get(id)) {
            return group.name.to_string();
        }
        name_of(filter, self.tenant_for_groups(key))
    }

    /// The tenant of a session's user, if it has one.
    pub(super) fn tenant_for_groups(&self, key: SessionKey) -> Option<&str> {
        let rights = self.clients.session(key)?.rights.as_ref()?;
        rights.tenant().map(|tenant| &**tenant)
    }

    /// By filter, the tenants of the groups that a session is in.
    pub(in crate::engine) fn tenants_of_groups(&self, session: &Session) -> HashMap<&str, &str> {
        let groups = session.groups().iter();
        let groups = groups.filter_map(|id| self.groups.get(*id));
        let of_tenants = groups.filter_map(|group| Some((&*group.shown, group.tenant.as_deref()?)));
        of_tenants.collect()
    }
}
