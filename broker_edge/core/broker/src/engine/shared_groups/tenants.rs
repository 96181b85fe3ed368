//! The tenant of a group: two tenants that use the same name and filter have separate groups, so that neither takes the
//! records of the other or delays them.
//!
//! Users without a tenant share the groups of all such users, as in any broker. A member stays in its group until it
//! unsubscribes, even if its tenant changes, so that no record of the group is lost.

use std::collections::HashMap;

use crate::engine::session::Session;
use crate::engine::stored::to_hex;

use super::Groups;

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

/// The tenant of a session's user, if it has one.
pub fn of(session: &Session) -> Option<&str> {
    let tenant = session.rights.as_ref()?.tenant();
    tenant.map(|tenant| &**tenant)
}

impl Groups {
    /// By filter, the tenants of the groups that a session is in.
    pub fn tenants_of(&self, session: &Session) -> HashMap<&str, &str> {
        let groups = session.groups().iter();
        let groups = groups.filter_map(|id| self.get(*id));
        let of_tenants = groups.filter_map(|group| Some((&*group.shown, group.tenant.as_deref()?)));
        of_tenants.collect()
    }
}
