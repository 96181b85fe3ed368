//! The order in which groups run: each tenant in turn, and the groups of each in turn, so that a tenant with many
//! groups does not delay the others.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use crate::engine::ids::GroupId;

/// Identifies a tenant.
pub type Owner = Rc<str>;

/// The tenant of a group. Groups without one are shared by users; the first user then counts as the tenant.
pub fn owner_of(tenant: Option<&str>, user: Option<&str>) -> Owner {
    match tenant {
        Some(tenant) => format!("tenant {tenant}").into(),
        None => format!("user {}", user.unwrap_or_default()).into(),
    }
}

/// Groups with something to do.
#[derive(Debug, Default)]
pub struct FairQueue {
    /// No list is empty.
    by_owner: HashMap<Owner, VecDeque<GroupId>>,
    order: VecDeque<Owner>,
    len: usize,
}

impl FairQueue {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn push(&mut self, owner: Owner, id: GroupId) {
        let own = self.by_owner.entry(Rc::clone(&owner)).or_default();
        if own.is_empty() {
            self.order.push_back(owner);
        }
        own.push_back(id);
        self.len += 1;
    }

    pub fn pop(&mut self) -> Option<GroupId> {
        let owner = self.order.pop_front()?;
        let own = self.by_owner.get_mut(&owner)?;
        let id = own.pop_front()?;
        self.len -= 1;
        if own.is_empty() {
            self.by_owner.remove(&owner);
        } else {
            self.order.push_back(owner);
        }
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_with_one_group_does_not_wait_for_all_those_of_another() {
        let (north, south) = (owner_of(Some("north"), None), owner_of(None, Some("ann")));
        let mut fair_queue = FairQueue::default();
        for id in 0..100 {
            fair_queue.push(Rc::clone(&north), GroupId(id));
        }
        fair_queue.push(Rc::clone(&south), GroupId(500));
        fair_queue.push(Rc::clone(&south), GroupId(501));
        let first: Vec<u16> = (0..5).filter_map(|_| Some(fair_queue.pop()?.0)).collect();
        assert_eq!(first, [0, 500, 1, 501, 2]);
        assert_eq!(fair_queue.len(), 97);
        fair_queue.push(south, GroupId(502));
        let rest: Vec<u16> = std::iter::from_fn(|| Some(fair_queue.pop()?.0)).collect();
        assert_eq!((rest[1], rest.len()), (502, 98));
        assert!(fair_queue.len() == 0 && fair_queue.by_owner.is_empty());
    }
}
