//! Limits the connections of Flight and of admin HTTP: one gate for each.
//!
//! A connection is *pending* until a call on it has shown valid credentials. Then it counts against its user and no
//! longer against its address, because the executors of a cluster share one address. Pending connections have a
//! deadline and few slots. When these are full, the gate closes one for each new connection. It takes the address that
//! holds the most, and there the oldest connection that has sent nothing for a moment, else the oldest. A flood from
//! one address therefore closes only its own connections, and a new request has the time in which all others are closed.
//! A health probe has slots of its own ([`Gate::enter_for_health`]).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::slots::{ConnectionSlots, SlotOwner, TooMany};
use crate::auth::{Authority, Identity, ListenerKind};
use crate::descriptors::Share;
use crate::metrics::{Closed, Metrics};
use crate::peer::site_of;

#[derive(Clone, Debug)]
pub struct Limits {
    pub connections: usize,
    pub pending: usize,
    pub per_site: Option<usize>,
    pub per_user: usize,
    pub per_tenant: usize,
    pub timeout: Duration,
    /// A connection whose descriptor has this number or a higher one is closed.
    pub descriptors: u64,
}

impl Limits {
    /// The configured limits, reduced to the available descriptors.
    pub fn new(
        share: Share,
        connections: u16,
        pending: u16,
        per_site: Option<u16>,
        per_user: Option<u16>,
        timeout: Duration,
    ) -> Limits {
        let connections = usize::from(connections).min(share.connections);
        let half = (connections / 2).max(1);
        let per_user = per_user.map_or(half, usize::from);
        Limits {
            connections,
            pending: usize::from(pending).min(connections),
            per_site: per_site.map(usize::from),
            per_user,
            per_tenant: half.max(per_user),
            timeout,
            descriptors: share.below,
        }
    }

    fn is_full(&self, state: &ConnectionSlots) -> bool {
        state.pending >= self.pending || state.passes.len() - state.health >= self.connections
    }
}

/// Slots for health probes, beyond the limits. Each probe is complete when it gets one, so it is answered at once.
const HEALTH_SLOTS: usize = 4;

pub struct Gate {
    kind: ListenerKind,
    limits: Limits,
    metrics: Arc<Metrics>,
    state: Mutex<ConnectionSlots>,
    /// Notified when a connection leaves.
    left: Notify,
}

/// The state of a pass, which its connection reads without a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassState {
    Pending,
    In,
    Closed,
}

/// The slot of one connection.
pub struct Pass {
    pub number: u64,
    pub address: SocketAddr,
    gate: Arc<Gate>,
    pub came: Instant,
    spoke: AtomicBool,
    /// Number of calls whose credentials are being checked.
    checking: AtomicU32,
    is_in: AtomicBool,
    is_verified: AtomicBool,
    is_closed: AtomicBool,
    waker: AtomicWaker,
}

/// Why a connection gets no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// No other connection may be closed for it yet, so it has to wait.
    Later,
    For(Closed),
}

impl Gate {
    pub fn new(kind: ListenerKind, limits: Limits, metrics: Arc<Metrics>) -> Arc<Gate> {
        Arc::new(Gate {
            kind,
            limits,
            metrics,
            state: Mutex::default(),
            left: Notify::new(),
        })
    }

    pub fn kind(&self) -> ListenerKind {
        self.kind
    }

    /// Waits while authenticated connections take every slot.
    pub async fn place(&self) {
        loop {
            let left = self.left.notified();
            {
                let state = self.state.lock();
                if state.passes.len() - state.pending - state.health < self.limits.connections {
                    return;
                }
            }
            left.await;
        }
    }

    /// Whether a new connection would have to wait, or take the slot of another.
    pub fn is_full(&self) -> bool {
        self.limits.is_full(&self.state.lock())
    }

    /// Gives a slot to a connection that has sent a complete request for its health; `None` if none is free.
    pub fn enter_for_health(
        self: &Arc<Self>,
        address: SocketAddr,
        descriptor: u64,
    ) -> Option<Arc<Pass>> {
        let mut state = self.state.lock();
        if descriptor >= self.limits.descriptors || state.health >= HEALTH_SLOTS {
            return None;
        }
        let pass = self.new_pass(&mut state, address, Instant::now());
        state.add_for_health(Arc::clone(&pass));
        self.show(&state);
        Some(pass)
    }

    fn new_pass(
        self: &Arc<Self>,
        state: &mut ConnectionSlots,
        address: SocketAddr,
        came: Instant,
    ) -> Arc<Pass> {
        let number = state.next;
        state.next += 1;
        Arc::new(Pass {
            number,
            address,
            gate: Arc::clone(self),
            came,
            spoke: AtomicBool::new(false),
            checking: AtomicU32::new(0),
            is_in: AtomicBool::new(false),
            is_verified: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        })
    }

    /// Gives a connection a slot, and returns whether another connection was closed for it.
    ///
    /// # Errors
    /// No slot is available.
    pub fn enter(
        self: &Arc<Self>,
        address: SocketAddr,
        descriptor: u64,
    ) -> Result<(Arc<Pass>, bool), Refused> {
        self.enter_at(address, descriptor, Instant::now())
    }

    fn enter_at(
        self: &Arc<Self>,
        address: SocketAddr,
        descriptor: u64,
        now: Instant,
    ) -> Result<(Arc<Pass>, bool), Refused> {
        let site = site_of(address.ip());
        let mut state = self.state.lock();
        if descriptor >= self.limits.descriptors {
            return Err(self.refuse(Closed::Descriptors));
        }
        let unknown = state.unknown.get(&site).copied().unwrap_or(0);
        if self.limits.per_site.is_some_and(|max| unknown >= max) {
            return Err(self.refuse(Closed::PerAddress));
        }
        let is_full = self.limits.is_full(&state);
        if is_full {
            let victim = state.victim(site, self.limits.pending, now);
            let number = victim.map_err(|refused| match refused {
                Refused::For(why) => self.refuse(why),
                Refused::Later => refused,
            })?;
            if let Some(pass) = state.remove(number) {
                pass.close();
                self.count(Closed::Pending);
            }
        }
        let pass = self.new_pass(&mut state, address, now);
        state.add(Arc::clone(&pass), site);
        self.show(&state);
        Ok((pass, is_full))
    }

    /// Counts a failed TLS handshake.
    pub fn count_failed_handshake(&self) {
        self.count(Closed::Tls);
    }

    fn refuse(&self, why: Closed) -> Refused {
        self.count(why);
        Refused::For(why)
    }

    fn count(&self, why: Closed) {
        self.metrics.listeners.count_closed(self.kind, why);
    }

    fn show(&self, state: &ConnectionSlots) {
        self.metrics
            .listeners
            .set(self.kind, state.passes.len(), state.pending);
    }

    /// Makes connections pending again whose users the new authority does not admit. They have to show other
    /// credentials within the usual deadline. Their running calls end by themselves, with the reason.
    pub fn review(&self, authority: &Authority) {
        let mut state = self.state.lock();
        let gone: Vec<u64> = state
            .passes
            .iter()
            .filter(|(_, (_, place))| match place {
                SlotOwner::Verified { identity, .. } => !authority.still_admits(identity),
                SlotOwner::Pending | SlotOwner::Health | SlotOwner::Anonymous => false,
            })
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
            if let Some(pass) = state.remove(number) {
                pass.is_verified.store(false, Ordering::Release);
                pass.is_in.store(false, Ordering::Release);
                pass.waker.wake();
                let site = pass.site();
                state.add(pass, site);
            }
        }
        self.show(&state);
        drop(state);
        self.left.notify_one();
    }
}

impl Pass {
    pub fn site(&self) -> IpAddr {
        site_of(self.address.ip())
    }

    pub fn kind(&self) -> ListenerKind {
        self.gate.kind
    }

    pub fn state(&self) -> PassState {
        if self.is_closed.load(Ordering::Acquire) {
            PassState::Closed
        } else if self.is_in.load(Ordering::Acquire) {
            PassState::In
        } else {
            PassState::Pending
        }
    }

    /// Registers the connection's task to be woken when the stage changes.
    pub fn watch(&self, waker: &std::task::Waker) {
        self.waker.register(waker);
    }

    /// The deadline for the first authenticated call.
    pub fn timeout(&self) -> Duration {
        self.gate.limits.timeout
    }

    /// Notes that the client has sent something.
    pub fn spoke(&self) {
        self.spoke.store(true, Ordering::Relaxed);
    }

    pub fn has_spoken(&self) -> bool {
        self.spoke.load(Ordering::Relaxed)
    }

    /// Marks that a call's credentials are being checked, until the returned value is dropped.
    pub fn begin_check(self: &Arc<Self>) -> Checking {
        self.checking.fetch_add(1, Ordering::Relaxed);
        Checking(Arc::clone(self))
    }

    pub fn is_checking(&self) -> bool {
        self.checking.load(Ordering::Relaxed) > 0
    }

    /// Notes that a call was authenticated. `has_limits` says whether users have limits.
    ///
    /// # Errors
    /// The user or tenant has reached its limit of connections.
    pub fn let_in(
        &self,
        identity: &Arc<Identity>,
        tenant: Option<&Arc<str>>,
        has_limits: bool,
    ) -> Result<(), TooMany> {
        let is_verified = identity.user.is_some();
        if self.is_verified.load(Ordering::Acquire)
            || (!is_verified && self.is_in.load(Ordering::Acquire))
        {
            return Ok(());
        }
        let mut state = self.gate.state.lock();
        let Some((pass, old)) = state.passes.get(&self.number).cloned() else {
            // The connection was closed meanwhile.
            return Ok(());
        };
        if has_limits {
            let checked = state.check_quota(&self.gate.limits, identity.user.as_ref(), tenant);
            checked.inspect_err(|_| self.gate.count(Closed::PerUser))?;
        }
        let new = match &identity.user {
            Some(user) => {
                *state.users.entry(Arc::clone(user)).or_default() += 1;
                if let Some(tenant) = tenant {
                    *state.tenants.entry(Arc::clone(tenant)).or_default() += 1;
                }
                SlotOwner::Verified {
                    identity: Arc::clone(identity),
                    tenant: tenant.cloned(),
                }
            }
            None => {
                state.anonymous += 1;
                *state.unknown.entry(self.site()).or_default() += 1;
                SlotOwner::Anonymous
            }
        };
        state.uncount(&pass, &old);
        state.passes.insert(self.number, (pass, new));
        self.gate.show(&state);
        self.is_in.store(true, Ordering::Release);
        self.is_verified.store(is_verified, Ordering::Release);
        drop(state);
        self.waker.wake();
        Ok(())
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Closes the connection at its deadline.
    pub fn expire(&self) {
        self.close();
        self.leave();
        self.gate.count(Closed::Timeout);
    }

    /// Releases the slot of a closed connection.
    pub fn leave(&self) {
        let mut state = self.gate.state.lock();
        if state.remove(self.number).is_some() {
            self.gate.show(&state);
            drop(state);
            self.gate.left.notify_one();
        }
    }
}

/// A running check of credentials.
pub struct Checking(Arc<Pass>);

impl Drop for Checking {
    fn drop(&mut self) {
        self.0.checking.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
