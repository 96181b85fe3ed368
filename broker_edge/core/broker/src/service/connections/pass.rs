//! The slot of one connection, as its socket and its calls see it.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures::task::AtomicWaker;

use super::gate::{Gate, Refused};
use super::slots::TooMany;
use crate::auth::{Identity, ListenerKind};
use crate::metrics::Closed;
use crate::peer::{CertificateNames, site_of};

/// How often to check whether a slot has become free.
pub const ROOM: Duration = Duration::from_millis(10);

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
    /// When the client last sent something, in microseconds since it came; 0 if it has sent nothing. It is not kept up
    /// to date once a call is authenticated.
    spoke_us: AtomicU64,
    /// Number of calls whose credentials are being checked.
    checking: AtomicU32,
    is_in: AtomicBool,
    is_verified: AtomicBool,
    is_closed: AtomicBool,
    waker: AtomicWaker,
    /// What the client has presented in its TLS handshake.
    certificate: OnceLock<Arc<CertificateNames>>,
}

impl Pass {
    pub fn new(number: u64, address: SocketAddr, gate: Arc<Gate>, came: Instant) -> Pass {
        Pass {
            number,
            address,
            gate,
            came,
            spoke_us: AtomicU64::new(0),
            checking: AtomicU32::new(0),
            is_in: AtomicBool::new(false),
            is_verified: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            waker: AtomicWaker::new(),
            certificate: OnceLock::new(),
        }
    }

    pub fn site(&self) -> IpAddr {
        site_of(self.address.ip())
    }

    pub fn kind(&self) -> ListenerKind {
        self.gate.kind()
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
        self.gate.limits().timeout
    }

    /// Notes that the client has sent something.
    pub fn spoke(&self) {
        self.spoke_at(Instant::now());
    }

    pub(super) fn spoke_at(&self, now: Instant) {
        let after = now.saturating_duration_since(self.came);
        let after_us = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        self.spoke_us.store(after_us.max(1), Ordering::Relaxed);
    }

    pub fn has_spoken(&self) -> bool {
        self.spoke_us.load(Ordering::Relaxed) > 0
    }

    /// The time since the client came or last sent something.
    pub fn quiet_for(&self, now: Instant) -> Duration {
        let spoke = Duration::from_micros(self.spoke_us.load(Ordering::Relaxed));
        now.saturating_duration_since(self.came)
            .saturating_sub(spoke)
    }

    /// Marks that a call's credentials are being checked, until the returned value is dropped.
    pub fn begin_check(self: &Arc<Self>) -> Checking {
        self.checking.fetch_add(1, Ordering::Relaxed);
        Checking(Arc::clone(self))
    }

    pub fn is_checking(&self) -> bool {
        self.checking.load(Ordering::Relaxed) > 0
    }

    /// Moves the connection from an entry slot, if it has one, to another. Waits while that would close a connection
    /// that may still do something, at most until the deadline of the connection.
    ///
    /// # Errors
    /// All slots are taken: the limit that was reached, and the setting of that limit.
    pub async fn take_slot(&self) -> Result<(), (usize, String)> {
        loop {
            match self.gate.move_from_entry(self, Instant::now()) {
                Ok(()) => return Ok(()),
                Err(Refused::Later) => tokio::time::sleep(ROOM).await,
                Err(Refused::For(why)) => {
                    let (max, setting) = self.gate.limits().behind(why);
                    return Err((max, format!("{}.{setting}", self.kind().name())));
                }
            }
        }
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
        self.gate.let_in(self, identity, tenant, has_limits)
    }

    /// Notes what the gate has decided, and wakes the connection.
    pub(super) fn set_in(&self, is_in: bool, is_verified: bool) {
        self.is_in.store(is_in, Ordering::Release);
        self.is_verified.store(is_verified, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Notes the certificate that the client has presented, and closes the connection if it was revoked meanwhile.
    pub fn set_certificate(&self, names: Arc<CertificateNames>) {
        // A connection has one handshake.
        let _ = self.certificate.set(names);
        if self.is_revoked() {
            self.end("revoked");
        }
    }

    /// Whether a reload has revoked the client's certificate.
    pub fn is_revoked(&self) -> bool {
        let names = self.certificate.get();
        names.is_some_and(|names| names.is_revoked())
    }

    /// Closes the connection because its client's certificate is not valid any more.
    pub fn end(&self, reason: &'static str) {
        self.close();
        self.leave();
        self.gate.count_end(reason);
        let (listener, address) = (self.kind().name(), self.address);
        tracing::info!(listener, %address, reason, "a connection ended with its client's certificate");
    }

    /// Closes the connection at its deadline.
    pub fn expire(&self) {
        self.close();
        self.leave();
        self.gate.count(Closed::Timeout);
    }

    /// Releases the slot of a closed connection.
    pub fn leave(&self) {
        self.gate.leave(self.number);
    }
}

/// A running check of credentials.
pub struct Checking(Arc<Pass>);

impl Drop for Checking {
    fn drop(&mut self) {
        self.0.checking.fetch_sub(1, Ordering::Relaxed);
    }
}
