//! How much of the shared limits each user and each tenant uses. A user without a tenant counts as a tenant of its own.
//!
//! Only clients of a broker with rights are counted; an open broker has no accounts and pays one branch. Code that
//! changes what a session holds reports it here. A test compares these counts with a recount of everything.

mod claims;
mod kinds;
mod tenants;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::auth::Rights;

use super::ids::GroupId;

use claims::Claim;
#[cfg(test)]
pub use kinds::HeldBy;
use kinds::NONE;
pub use kinds::{Counts, Kind, QuotaLimits};
pub use tenants::FREE_STORED_BYTES;
use tenants::{Tenant, TenantName};

/// A user, while it uses something or is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountId(NonZeroU32);

impl AccountId {
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

#[derive(Debug)]
struct Account {
    user: Option<Arc<str>>,
    tenant: TenantName,
    held: Counts,
    /// Sessions and claims that refer to the account.
    uses: u32,
}

#[derive(Debug, Default)]
pub struct Quotas {
    limits: QuotaLimits,
    accounts: Vec<Option<Account>>,
    free: Vec<AccountId>,
    by_user: HashMap<Option<Arc<str>>, AccountId>,
    tenants: HashMap<TenantName, Tenant>,
    /// Members per group and account.
    groups: FxHashMap<(GroupId, AccountId), u32>,
    claims: HashMap<Box<str>, Claim>,
    /// Generation of the topic table that is counted.
    generation: u32,
    /// Number of sessions in the state store.
    stored_sessions: usize,
    /// Counted bytes of all sessions.
    session_bytes: u64,
    /// What is stored for clients without an account, as for a tenant.
    stored_until_ms: u64,
}

impl Quotas {
    pub fn new(limits: QuotaLimits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Whether any account exists.
    #[inline]
    pub fn is_used(&self) -> bool {
        !self.by_user.is_empty()
    }

    #[cfg(test)]
    pub fn limit(&mut self, limits: QuotaLimits) {
        self.limits = limits;
    }

    pub fn user_of(&self, id: AccountId) -> Option<&Arc<str>> {
        self.get(id)?.user.as_ref()
    }

    /// The account of a user; it stays until it is closed as often as it was opened and uses nothing. Updates the
    /// tenant, which may have changed.
    pub fn open(&mut self, rights: Option<&Arc<Rights>>) -> Option<AccountId> {
        let (user, tenant) = rights.map(|rights| (rights.user(), rights.tenant()))?;
        let name = TenantName::of(user, tenant);
        if let Some(id) = self.by_user.get(&user.cloned()).copied() {
            self.set_tenant(id, name);
            if let Some(account) = self.get_mut(id) {
                account.uses += 1;
            }
            return Some(id);
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.accounts.push(None);
            let count = u32::try_from(self.accounts.len()).unwrap_or(u32::MAX);
            AccountId(NonZeroU32::new(count).unwrap_or(NonZeroU32::MAX))
        });
        self.tenants.entry(name.clone()).or_default().accounts += 1;
        self.by_user.insert(user.cloned(), id);
        if let Some(slot) = self.accounts.get_mut(id.index()) {
            *slot = Some(Account {
                user: user.cloned(),
                tenant: name,
                held: NONE,
                uses: 1,
            });
        }
        Some(id)
    }

    pub fn close(&mut self, id: Option<AccountId>) {
        if let Some(id) = id
            && let Some(account) = self.get_mut(id)
        {
            account.uses -= 1;
            self.drop_unused(id);
        }
    }

    /// Whether this additional amount is within the quotas.
    pub fn allows(&self, id: Option<AccountId>, kind: Kind, amount: u64) -> bool {
        let at = kind as usize;
        let Some(account) = id.and_then(|id| self.get(id)) else {
            return true;
        };
        let of_tenant = self.tenants.get(&account.tenant);
        let of_tenant = of_tenant.map_or(0, |tenant| tenant.held[at]);
        amount == 0
            || (account.held[at].saturating_add(amount) <= self.limits.user[at]
                && of_tenant.saturating_add(amount) <= self.limits.tenant[at])
    }

    /// Which quota one more group member of the user would exceed, if any.
    pub fn refuses_member(&self, id: Option<AccountId>, group: Option<GroupId>) -> Option<Kind> {
        let id = id?;
        let account = self.get(id)?;
        if !self.allows(Some(id), Kind::SharedMembers, 1) {
            return Some(Kind::SharedMembers);
        }
        let at = Kind::SharedGroups as usize;
        let is_in = group.is_some_and(|group| self.groups.contains_key(&(group, id)));
        let tenant = self.tenants.get(&account.tenant)?;
        let has = group.is_some_and(|group| tenant.groups.contains_key(&group));
        let is_over = (!is_in && account.held[at] >= self.limits.user[at])
            || (!has && tenant.held[at] >= self.limits.tenant[at]);
        is_over.then_some(Kind::SharedGroups)
    }

    pub fn add(&mut self, id: Option<AccountId>, kind: Kind, amount: u64) {
        if let Some((account, tenant)) = id.and_then(|id| self.both(id)) {
            account.held[kind as usize] += amount;
            tenant.held[kind as usize] += amount;
        }
    }

    pub fn remove(&mut self, id: Option<AccountId>, kind: Kind, amount: u64) {
        let Some(id) = id else { return };
        if let Some((account, tenant)) = self.both(id) {
            take(&mut account.held[kind as usize], amount);
            take(&mut tenant.held[kind as usize], amount);
            self.drop_unused(id);
        }
    }

    /// Sessions in the state store.
    pub fn stored_sessions(&self) -> usize {
        self.stored_sessions
    }

    /// The state store holds a session, or no longer holds it.
    pub fn note_stored(&mut self, id: Option<AccountId>, is_stored: bool) {
        if is_stored {
            self.stored_sessions += 1;
            self.add(id, Kind::Sessions, 1);
        } else {
            self.stored_sessions -= 1;
            self.remove(id, Kind::Sessions, 1);
        }
    }

    /// Counted bytes of all sessions.
    pub fn session_bytes(&self) -> u64 {
        self.session_bytes
    }

    /// The counted bytes of a session have changed.
    pub fn resize_session(&mut self, id: Option<AccountId>, before: u64, bytes: u64) {
        self.session_bytes = self.session_bytes - before + bytes;
        self.add(id, Kind::SessionBytes, bytes);
        self.remove(id, Kind::SessionBytes, before);
    }

    /// One more session of the user is in a group.
    pub fn join(&mut self, id: Option<AccountId>, group: GroupId) {
        let Some(id) = id else { return };
        self.add(Some(id), Kind::SharedMembers, 1);
        let members = self.groups.entry((group, id)).or_default();
        *members += 1;
        let is_first = *members == 1;
        if let Some((account, tenant)) = self.both(id) {
            account.held[Kind::SharedGroups as usize] += u64::from(is_first);
            let members = tenant.groups.entry(group).or_default();
            *members += 1;
            tenant.held[Kind::SharedGroups as usize] += u64::from(*members == 1);
        }
    }

    pub fn leave(&mut self, id: Option<AccountId>, group: GroupId) {
        let Some(id) = id else { return };
        let is_last = count_down(&mut self.groups, (group, id));
        if let Some((account, tenant)) = self.both(id) {
            take(
                &mut account.held[Kind::SharedGroups as usize],
                u64::from(is_last),
            );
            let is_last = count_down(&mut tenant.groups, group);
            take(
                &mut tenant.held[Kind::SharedGroups as usize],
                u64::from(is_last),
            );
        }
        self.remove(Some(id), Kind::SharedMembers, 1);
    }

    /// Topics of an emptied table no longer count.
    pub fn begin_table(&mut self, generation: u32) {
        if self.generation == generation {
            return;
        }
        self.generation = generation;
        for tenant in self.tenants.values_mut() {
            tenant.held[Kind::Topics as usize] = 0;
        }
        let ids: Vec<AccountId> = self.by_user.values().copied().collect();
        for id in ids {
            if let Some(account) = self.get_mut(id) {
                account.held[Kind::Topics as usize] = 0;
                self.drop_unused(id);
            }
        }
    }

    fn get(&self, id: AccountId) -> Option<&Account> {
        self.accounts.get(id.index())?.as_ref()
    }

    fn get_mut(&mut self, id: AccountId) -> Option<&mut Account> {
        self.accounts.get_mut(id.index())?.as_mut()
    }

    fn both(&mut self, id: AccountId) -> Option<(&mut Account, &mut Tenant)> {
        let account = self.accounts.get_mut(id.index())?.as_mut()?;
        let tenant = self.tenants.get_mut(&account.tenant)?;
        Some((account, tenant))
    }

    fn drop_unused(&mut self, id: AccountId) {
        let Some(account) = self
            .get(id)
            .filter(|account| account.uses == 0 && account.held == NONE)
        else {
            return;
        };
        let (user, name) = (account.user.clone(), account.tenant.clone());
        self.by_user.remove(&user);
        if let Some(tenant) = self.tenants.get_mut(&name) {
            tenant.accounts -= 1;
            if tenant.accounts == 0 {
                self.tenants.remove(&name);
            }
        }
        if let Some(slot) = self.accounts.get_mut(id.index()) {
            *slot = None;
            self.free.push(id);
        }
    }

    /// The usage of all users and tenants, without those that use nothing.
    #[cfg(test)]
    pub fn held(&self) -> (HeldBy, HeldBy) {
        let accounts = self.accounts.iter().flatten();
        let mut users: HeldBy = accounts
            .filter(|account| account.held != NONE)
            .map(|account| (format!("{:?}", account.user), account.held))
            .collect();
        let tenants = self
            .tenants
            .iter()
            .filter(|(_, tenant)| tenant.held != NONE);
        let mut tenants: HeldBy = tenants
            .map(|(name, tenant)| (format!("{name:?}"), tenant.held))
            .collect();
        users.sort();
        tenants.sort();
        (users, tenants)
    }
}

fn take(count: &mut u64, amount: u64) {
    debug_assert!(*count >= amount, "{count} has no {amount} to be taken");
    *count = count.saturating_sub(amount);
}

/// Decrements a count. Returns whether it was the last.
fn count_down<K: Eq + std::hash::Hash>(counts: &mut FxHashMap<K, u32>, key: K) -> bool {
    let Some(count) = counts.get_mut(&key) else {
        return false;
    };
    *count -= 1;
    let is_last = *count == 0;
    if is_last {
        counts.remove(&key);
    }
    is_last
}
