//! The limits of a gate, and which new connection has to wait for another to leave.

use std::net::IpAddr;
use std::time::Duration;

use super::slots::ConnectionSlots;
use crate::descriptors::Share;
use crate::metrics::Closed;

/// Entry slots, beyond the configured limits, and at most as many as the descriptors allow connections.
const ENTRY_SLOTS: usize = 256;

#[derive(Clone, Debug)]
pub struct Limits {
    pub connections: usize,
    pub pending: usize,
    /// Slots for connections that find all others taken; 0 makes them take the slot of another, or wait.
    pub entry: usize,
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
            entry: 0,
            per_site: per_site.map(usize::from),
            per_user,
            per_tenant: half.max(per_user),
            timeout,
            descriptors: share.below,
        }
    }

    /// For a listener with health probes.
    pub fn with_entry_slots(self, share: Share) -> Limits {
        Limits {
            entry: ENTRY_SLOTS.min(share.connections),
            ..self
        }
    }

    /// Whether a new connection has to take the slot of another.
    pub fn are_reached(&self, state: &ConnectionSlots) -> bool {
        state.pending >= self.pending || state.passes.len() - state.entry >= self.connections
    }

    /// Whether authenticated connections take every slot.
    pub fn are_reached_by_users(&self, state: &ConnectionSlots) -> bool {
        state.passes.len() - state.pending - state.entry >= self.connections
    }

    pub fn are_reached_by_site(&self, state: &ConnectionSlots, site: IpAddr) -> bool {
        let unknown = state.unknown.get(&site).copied().unwrap_or(0);
        self.per_site.is_some_and(|max| unknown >= max)
    }

    /// The limit behind a refusal, and the end of its setting's name.
    pub fn behind(&self, why: Closed) -> (usize, &'static str) {
        match why {
            Closed::PerAddress => (
                self.per_site.unwrap_or(usize::MAX),
                "max_connections_per_ip",
            ),
            _ => (self.pending, "max_pending_connections"),
        }
    }
}
