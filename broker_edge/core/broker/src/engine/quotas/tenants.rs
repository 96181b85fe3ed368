//! Tenants: the accounts of a tenant's users are counted together. A user without one counts as a tenant of its own.
//!
//! Questions about tenants belong here. Counts are 0 on an open broker; retained messages count from their last publish
//! after the start, and include claims.

use std::collections::HashMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::engine::ids::GroupId;

use super::kinds::{Counts, Kind};
use super::{AccountId, Quotas, take};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum TenantName {
    Named(Arc<str>),
    /// The tenant of a user that has none.
    Own(Arc<str>),
    Anonymous,
}

impl TenantName {
    pub(super) fn of(user: Option<&Arc<str>>, tenant: Option<&Arc<str>>) -> Self {
        match (tenant, user) {
            (Some(tenant), _) => Self::Named(Arc::clone(tenant)),
            (None, Some(user)) => Self::Own(Arc::clone(user)),
            (None, None) => Self::Anonymous,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Tenant {
    pub(super) held: Counts,
    pub(super) accounts: u32,
    /// Members per group.
    pub(super) groups: FxHashMap<GroupId, u32>,
    /// Until when what its sessions have stored takes at [`STORED_BYTES_PER_S`].
    pub(super) stored_until_ms: u64,
}

/// What of a session is stored between two checkpoints counts only beyond these bytes.
pub const FREE_STORED_BYTES: usize = 16 << 10;
/// The counted bytes that one tenant may have stored for long.
const STORED_BYTES_PER_S: u64 = 4 << 20;
/// And at once: a thousand subscriptions with a SUBSCRIBE each take about 150 MB.
const STORED_BYTES_BURST: u64 = 256 << 20;

impl Quotas {
    /// Counts `bytes` that were written to store a session of this account.
    pub fn note_stored_bytes(&mut self, id: Option<AccountId>, bytes: usize, now_ms: u64) {
        if bytes > 0 {
            let until_ms = self.stored_until_mut(id);
            *until_ms = (*until_ms).max(now_ms) + bytes as u64 * 1000 / STORED_BYTES_PER_S;
        }
    }

    /// When the account's tenant may have counted bytes stored again, if not now.
    pub fn stores_again_at(&self, id: Option<AccountId>, now_ms: u64) -> Option<u64> {
        let account = id.and_then(|id| self.get(id));
        let until_ms = match account.and_then(|account| self.tenants.get(&account.tenant)) {
            Some(tenant) => tenant.stored_until_ms,
            None => self.stored_until_ms,
        };
        let again_at = until_ms.saturating_sub(STORED_BYTES_BURST * 1000 / STORED_BYTES_PER_S);
        (again_at > now_ms).then_some(again_at)
    }

    fn stored_until_mut(&mut self, id: Option<AccountId>) -> &mut u64 {
        if let Some(id) = id
            && let Some(Some(account)) = self.accounts.get(id.index())
            && let Some(tenant) = self.tenants.get_mut(&account.tenant)
        {
            return &mut tenant.stored_until_ms;
        }
        &mut self.stored_until_ms
    }

    /// Gives every account the current tenant of its user.
    pub fn renew_tenants(&mut self, tenant_of: impl Fn(Option<&Arc<str>>) -> Option<Arc<str>>) {
        let ids: Vec<AccountId> = self.by_user.values().copied().collect();
        for id in ids {
            let tenant = tenant_of(self.user_of(id));
            self.renew_tenant(id, tenant.as_ref());
        }
    }

    /// Gives one account the current tenant of its user.
    pub fn renew_tenant(&mut self, id: AccountId, tenant: Option<&Arc<str>>) {
        let name = TenantName::of(self.user_of(id), tenant);
        self.set_tenant(id, name);
    }

    /// Adds up the usage of accounts by tenant.
    pub fn by_tenant(&self, mut held: FxHashMap<AccountId, usize>) -> FxHashMap<AccountId, usize> {
        let mut sums: HashMap<&TenantName, usize> = HashMap::new();
        for (id, count) in &held {
            if let Some(account) = self.get(*id) {
                *sums.entry(&account.tenant).or_default() += count;
            }
        }
        for (id, count) in &mut held {
            if let Some(account) = self.get(*id) {
                *count = sums[&account.tenant];
            }
        }
        held
    }

    pub(super) fn set_tenant(&mut self, id: AccountId, name: TenantName) {
        let Some(account) = self.get_mut(id).filter(|account| account.tenant != name) else {
            return;
        };
        let held = account.held;
        let before = std::mem::replace(&mut account.tenant, name.clone());
        let groups: Vec<(GroupId, u32)> = self
            .groups
            .iter()
            .filter(|((_, of), _)| *of == id)
            .map(|((group, _), members)| (*group, *members))
            .collect();
        let at = Kind::SharedGroups as usize;
        if let Some(tenant) = self.tenants.get_mut(&before) {
            for kind in Kind::ALL
                .into_iter()
                .filter(|kind| *kind != Kind::SharedGroups)
            {
                take(&mut tenant.held[kind as usize], held[kind as usize]);
            }
            for (group, members) in &groups {
                if let Some(left) = tenant.groups.get_mut(group) {
                    *left -= members;
                    if *left == 0 {
                        tenant.groups.remove(group);
                        take(&mut tenant.held[at], 1);
                    }
                }
            }
            tenant.accounts -= 1;
            if tenant.accounts == 0 {
                self.tenants.remove(&before);
            }
        }
        let tenant = self.tenants.entry(name).or_default();
        tenant.accounts += 1;
        for kind in Kind::ALL
            .into_iter()
            .filter(|kind| *kind != Kind::SharedGroups)
        {
            tenant.held[kind as usize] += held[kind as usize];
        }
        for (group, members) in groups {
            let there = tenant.groups.entry(group).or_default();
            tenant.held[at] += u64::from(*there == 0);
            *there += members;
        }
    }
}
