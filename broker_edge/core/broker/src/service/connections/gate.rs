//! Limits the connections of Flight and of admin HTTP: one gate for each.
//!
//! A connection is *pending* until a call on it has shown valid credentials. Then it counts against its user and no
//! longer against its address, because the executors of a cluster share one address. Pending connections have a
//! deadline and few slots. When these are full, the gate closes one for each new connection. It takes the network (/24,
//! or IPv6 /48) that holds the most, in it the address that does, and there the oldest connection that has sent nothing
//! for a moment, else the oldest. A flood from one address therefore closes only its own connections, one from many
//! addresses of a network only those of this network, and a new request has the time in which all others are closed.
//!
//! A listener with health probes has *entry slots* too: for new connections when the other slots are taken, whoever
//! holds them. A probe is answered there, so nothing that others hold delays it. Any other request first takes one of
//! the other slots ([`Pass::take_slot`]). When the entry slots are taken as well, one connection leaves them for a new
//! one, and competes for the other slots.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

pub use super::gate_limits::Limits;
use super::pass::Pass;
use super::slots::{ConnectionSlots, SlotOwner, TooMany};
use crate::auth::{Authority, Identity, ListenerKind};
use crate::metrics::{Closed, Metrics};
use crate::peer::site_of;

pub struct Gate {
    kind: ListenerKind,
    limits: Limits,
    metrics: Arc<Metrics>,
    state: Mutex<ConnectionSlots>,
    /// Notified when a connection leaves.
    left: Notify,
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

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Waits while authenticated connections take every slot, unless there are entry slots.
    pub async fn place(&self) {
        if self.limits.entry > 0 {
            return;
        }
        loop {
            let left = self.left.notified();
            if !self.limits.are_reached_by_users(&self.state.lock()) {
                return;
            }
            left.await;
        }
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
        let is_full =
            self.limits.are_reached(&state) || self.limits.are_reached_by_site(&state, site);
        let to_entry = is_full && self.limits.entry > 0;
        let has_closed = if to_entry {
            self.free_entry(&mut state, now)
        } else {
            let freed = self.free(&mut state, site, now);
            freed.inspect_err(|refused| self.count_refused(*refused))?
        };
        let pass = Arc::new(Pass::new(state.next, address, Arc::clone(self), now));
        state.next += 1;
        if to_entry {
            state.add_to_entry(Arc::clone(&pass), site);
        } else {
            state.add(Arc::clone(&pass), site);
        }
        self.show(&state);
        Ok((pass, has_closed))
    }

    /// Makes a slot free for a connection from `site`, and returns whether another connection was closed for it.
    fn free(
        &self,
        state: &mut ConnectionSlots,
        site: IpAddr,
        now: Instant,
    ) -> Result<bool, Refused> {
        if self.limits.are_reached_by_site(state, site) {
            return Err(Refused::For(Closed::PerAddress));
        }
        if !self.limits.are_reached(state) {
            return Ok(false);
        }
        let number = state.victim(site, self.limits.pending, now)?;
        if let Some(pass) = state.remove(number) {
            pass.close();
            self.count(Closed::Pending);
        }
        Ok(true)
    }

    /// Makes an entry slot free, and returns whether that had to be done: the connection that leaves it takes another
    /// slot, as a new one would without entry slots, or is closed.
    fn free_entry(&self, state: &mut ConnectionSlots, now: Instant) -> bool {
        if state.entry < self.limits.entry {
            return false;
        }
        let Some(pass) = state.oldest_entry(now).and_then(|n| state.remove(n)) else {
            return false;
        };
        let site = pass.site();
        match self.free(state, site, now) {
            Ok(_) => state.add(pass, site),
            Err(refused) => {
                pass.close();
                self.count(match refused {
                    Refused::For(why) => why,
                    Refused::Later => Closed::Pending,
                });
            }
        }
        true
    }

    /// Moves a connection that has an entry slot to another one.
    ///
    /// # Errors
    /// No slot is available.
    pub(super) fn move_from_entry(&self, pass: &Pass, now: Instant) -> Result<(), Refused> {
        let mut state = self.state.lock();
        if !state.is_in_entry(pass.number) {
            // It has another slot, or was closed meanwhile.
            return Ok(());
        }
        let site = pass.site();
        let freed = self.free(&mut state, site, now);
        freed.inspect_err(|refused| self.count_refused(*refused))?;
        if let Some(pass) = state.remove(pass.number) {
            state.add(pass, site);
        }
        self.show(&state);
        Ok(())
    }

    /// Counts a failed TLS handshake.
    pub fn count_failed_handshake(&self) {
        self.count(Closed::Tls);
    }

    fn refuse(&self, why: Closed) -> Refused {
        self.count(why);
        Refused::For(why)
    }

    fn count_refused(&self, refused: Refused) {
        if let Refused::For(why) = refused {
            self.count(why);
        }
    }

    pub(super) fn count(&self, why: Closed) {
        self.metrics.listeners.count_closed(self.kind, why);
    }

    /// Counts a connection that ended with its credentials.
    pub(super) fn count_end(&self, reason: &'static str) {
        self.metrics.auth.end(reason);
    }

    fn show(&self, state: &ConnectionSlots) {
        let (all, pending) = (state.passes.len(), state.pending + state.entry);
        self.metrics.listeners.set(self.kind, all, pending);
    }

    /// Makes connections pending again whose users the new authority does not admit. They have to show other
    /// credentials within the usual deadline. Their running calls end by themselves, with the reason. Connections of
    /// clients whose certificate was revoked are closed, whoever their user is.
    pub fn review(&self, authority: &Authority) {
        let mut state = self.state.lock();
        let passes = state.passes.values().map(|(pass, _)| pass);
        let revoked: Vec<Arc<Pass>> = passes.filter(|pass| pass.is_revoked()).cloned().collect();
        let gone: Vec<u64> = state
            .passes
            .iter()
            .filter(|(_, (_, place))| match place {
                SlotOwner::Verified { identity, .. } => !authority.still_admits(identity),
                SlotOwner::Pending | SlotOwner::Entry | SlotOwner::Anonymous => false,
            })
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
            if let Some(pass) = state.remove(number) {
                pass.set_in(false, false);
                let site = pass.site();
                state.add(pass, site);
            }
        }
        self.show(&state);
        drop(state);
        revoked.iter().for_each(|pass| pass.end("revoked"));
        self.left.notify_one();
    }

    /// Lets a connection count against its user instead of its address ([`Pass::let_in`]).
    pub(super) fn let_in(
        &self,
        pass: &Pass,
        identity: &Arc<Identity>,
        tenant: Option<&Arc<str>>,
        has_limits: bool,
    ) -> Result<(), TooMany> {
        let mut state = self.state.lock();
        let Some((own, old)) = state.passes.get(&pass.number).cloned() else {
            // The connection was closed meanwhile.
            return Ok(());
        };
        if has_limits {
            let checked = state.check_quota(&self.limits, identity.user.as_ref(), tenant);
            checked.inspect_err(|_| self.count(Closed::PerUser))?;
        }
        state.uncount(&own, &old);
        state.add_known(own, identity, tenant);
        self.show(&state);
        pass.set_in(true, identity.user.is_some());
        Ok(())
    }

    /// Releases the slot of a closed connection.
    pub(super) fn leave(&self, number: u64) {
        let mut state = self.state.lock();
        if state.remove(number).is_some() {
            self.show(&state);
            drop(state);
            self.left.notify_one();
        }
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
