//! The connection slots of one listener: what each connection counts against, and which one is closed for the next.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::gate::{Limits, Refused};
use super::pass::Pass;
use super::sites::{Held, Sites};
use crate::auth::Identity;
use crate::metrics::Closed;
use crate::peer::network_of;
use crate::words::words;

/// A connection that has sent nothing is closed before those that have, but only after the first time. When no network
/// holds more than the others, one that has sent something is closed for another only after the second.
const SILENT_GRACE: Duration = Duration::from_millis(100);
const GRACE: Duration = Duration::from_secs(1);
/// A connection in an entry slot that was quiet for this time leaves it before those that are in the middle of something.
const QUIET: Duration = Duration::from_millis(10);

#[derive(Default)]
pub struct ConnectionSlots {
    pub next: u64,
    pub passes: HashMap<u64, (Arc<Pass>, SlotOwner)>,
    /// The pending connections.
    pub sites: Sites,
    pub pending: usize,
    /// The connections in entry slots. They count against nothing else.
    pub entries: Sites,
    pub entry: usize,
    /// Connections of each site without a verified user: pending and anonymous ones.
    pub unknown: HashMap<IpAddr, usize>,
    pub users: HashMap<Arc<str>, usize>,
    pub tenants: HashMap<Arc<str>, usize>,
    /// Connections without credentials, which count as one user.
    pub anonymous: usize,
}

/// What a connection counts against.
#[derive(Clone)]
pub enum SlotOwner {
    Pending,
    Entry,
    Anonymous,
    Verified {
        identity: Arc<Identity>,
        tenant: Option<Arc<str>>,
    },
}

/// A user or tenant has reached its limit of connections.
#[derive(Debug)]
pub struct TooMany {
    pub max: usize,
    pub of: QuotaScope,
}

words! {
    pub enum QuotaScope {
        User = "user",
        Tenant = "tenant",
    }
}

impl QuotaScope {
    /// The setting behind the limit: a tenant gets half of all connections.
    pub fn setting(self) -> &'static str {
        match self {
            QuotaScope::User => "max_connections_per_user",
            QuotaScope::Tenant => "max_connections",
        }
    }
}

impl ConnectionSlots {
    pub fn add(&mut self, pass: Arc<Pass>, site: IpAddr) {
        self.sites.insert(site, pass.number);
        self.pending += 1;
        *self.unknown.entry(site).or_default() += 1;
        self.passes.insert(pass.number, (pass, SlotOwner::Pending));
    }

    pub fn add_to_entry(&mut self, pass: Arc<Pass>, site: IpAddr) {
        self.entries.insert(site, pass.number);
        self.entry += 1;
        self.passes.insert(pass.number, (pass, SlotOwner::Entry));
    }

    /// Adds a connection on which a call was authenticated.
    pub fn add_known(
        &mut self,
        pass: Arc<Pass>,
        identity: &Arc<Identity>,
        tenant: Option<&Arc<str>>,
    ) {
        let owner = match &identity.user {
            Some(user) => {
                *self.users.entry(Arc::clone(user)).or_default() += 1;
                if let Some(tenant) = tenant {
                    *self.tenants.entry(Arc::clone(tenant)).or_default() += 1;
                }
                SlotOwner::Verified {
                    identity: Arc::clone(identity),
                    tenant: tenant.cloned(),
                }
            }
            None => {
                self.anonymous += 1;
                *self.unknown.entry(pass.site()).or_default() += 1;
                SlotOwner::Anonymous
            }
        };
        self.passes.insert(pass.number, (pass, owner));
    }

    pub fn is_in_entry(&self, number: u64) -> bool {
        matches!(self.passes.get(&number), Some((_, SlotOwner::Entry)))
    }

    /// Removes a connection from every count.
    pub fn remove(&mut self, number: u64) -> Option<Arc<Pass>> {
        let (pass, place) = self.passes.remove(&number)?;
        self.uncount(&pass, &place);
        Some(pass)
    }

    pub fn uncount(&mut self, pass: &Pass, place: &SlotOwner) {
        let site = pass.site();
        if let SlotOwner::Verified { identity, tenant } = place {
            if let Some(user) = &identity.user {
                lower(&mut self.users, user);
            }
            if let Some(tenant) = tenant {
                lower(&mut self.tenants, tenant);
            }
            return;
        }
        if matches!(place, SlotOwner::Entry) {
            self.entry -= 1;
            self.entries.remove(site, pass.number);
            return;
        }
        lower(&mut self.unknown, &site);
        if matches!(place, SlotOwner::Anonymous) {
            self.anonymous -= 1;
        } else {
            self.pending -= 1;
            self.sites.remove(site, pass.number);
        }
    }

    /// The pending connection to close for a new one from `site`.
    pub fn victim(&self, site: IpAddr, pending_max: usize, now: Instant) -> Result<u64, Refused> {
        let is_silent = |pass: &Pass| {
            let age = now.saturating_duration_since(pass.came);
            !pass.has_spoken() && age >= SILENT_GRACE
        };
        let Some(from) = self.network_to_close_from(network_of(site), pending_max) else {
            // None holds more than the others.
            let is_old = |pass: &Pass| now.saturating_duration_since(pass.came) >= GRACE;
            return self
                .oldest(self.sites.all(), is_silent)
                .or_else(|| {
                    self.oldest(self.sites.all(), |pass| !pass.is_checking() && is_old(pass))
                })
                .ok_or(Refused::Later);
        };
        let own = self.sites.count(site);
        let is_own = own > 0 && own + 1 >= from.of_site;
        let candidates: Vec<&u64> = if is_own {
            self.sites.of_site(site).collect()
        } else {
            self.sites.of_largest_in(&[from]).collect()
        };
        let all = || candidates.iter().copied();
        // A request that has just come has not had the time to be read.
        let found = self
            .oldest(all(), is_silent)
            .or_else(|| self.oldest(all(), |pass| !pass.is_checking()));
        match found {
            Some(number) => Ok(number),
            // All of them wait for a password check.
            None if is_own => Err(Refused::For(Closed::Pending)),
            None => all().min().copied().ok_or(Refused::Later),
        }
    }

    /// The network that has to give up a pending connection for a new one of `network`: that itself if it holds half of
    /// all or more than any other, else the one with the most, if that holds more even then.
    fn network_to_close_from(&self, network: IpAddr, pending_max: usize) -> Option<Held> {
        let networks = self.sites.networks();
        let (own, others): (Vec<Held>, Vec<Held>) = networks
            .into_iter()
            .partition(|held| held.network == network);
        let own = own.first().copied();
        let most = others.into_iter().max_by_key(|held| held.connections);
        let held = own.map_or(0, |held| held.connections);
        let of_most = most.map_or(0, |held| held.connections);
        if held >= (pending_max / 2).max(1) || held > of_most.max(1) {
            own
        } else {
            most.filter(|_| of_most > held + 1)
        }
    }

    /// The connection that leaves its entry slot for a new one: the oldest quiet one of the sites that hold the most in
    /// the networks that do.
    pub fn oldest_entry(&self, now: Instant) -> Option<u64> {
        let mut networks = self.entries.networks();
        let most = networks.iter().map(|held| held.connections).max()?;
        networks.retain(|held| held.connections == most);
        let all = || self.entries.of_largest_in(&networks);
        self.oldest(all(), |pass| pass.quiet_for(now) >= QUIET)
            .or_else(|| self.oldest(all(), |_| true))
    }

    /// Checks that one more connection of this user (or without credentials) and of this tenant is within the limits.
    pub fn check_quota(
        &self,
        limits: &Limits,
        user: Option<&Arc<str>>,
        tenant: Option<&Arc<str>>,
    ) -> Result<(), TooMany> {
        let held = match user {
            Some(user) => self.users.get(user).copied().unwrap_or(0),
            None => self.anonymous,
        };
        let of_tenant = tenant.and_then(|tenant| self.tenants.get(tenant));
        let of_tenant = of_tenant.copied().unwrap_or(0);
        for (held, max, of) in [
            (held, limits.per_user, QuotaScope::User),
            (of_tenant, limits.per_tenant, QuotaScope::Tenant),
        ] {
            if held >= max {
                return Err(TooMany { max, of });
            }
        }
        Ok(())
    }

    fn oldest<'a>(
        &self,
        numbers: impl Iterator<Item = &'a u64>,
        wanted: impl Fn(&Pass) -> bool,
    ) -> Option<u64> {
        numbers
            .filter(|number| {
                self.passes
                    .get(number)
                    .is_some_and(|(pass, _)| wanted(pass))
            })
            .min()
            .copied()
    }
}

fn lower<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
