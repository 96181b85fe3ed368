//! Acknowledgements of both directions, and the packet ids of QoS 2 in use over all sessions.

pub mod acknowledge;
pub mod inbound;
pub mod outbound;

use std::collections::VecDeque;

use super::SessionKey;
use super::catch_up::CatchUp;
use super::clients::Clients;
use super::effects::Effects;
use super::env::Env;
use super::ids::CommitSeq;
use super::ingest::Ingest;
use super::observe::Observe;
use super::quotas::Quotas;
use super::routing::Routing;
use super::session_store::Store;
use super::shared_groups::Groups;

use inbound::TenantIdCounts;

#[derive(Default)]
pub struct Qos2 {
    /// Commands that clients have received and whose receipts are not durable yet; bounded by the windows.
    pub(super) receipted: Vec<(SessionKey, u16)>,
    /// PUBRELs that wait until their PUBRECs are durable, oldest first.
    pub(super) releases: VecDeque<(CommitSeq, SessionKey, u16)>,
    /// Packet ids of publishes in use.
    pub(super) ids_in_use: usize,
    pub(super) tenant_id_counts: TenantIdCounts,
}

impl Qos2 {
    /// So many packet ids were in use before the start.
    pub fn restore(&mut self, ids_in_use: usize) {
        self.ids_in_use = ids_in_use;
    }
}

/// What clients and the broker acknowledge to each other.
pub struct Acknowledging<'a> {
    pub env: &'a Env,
    pub clients: &'a mut Clients,
    pub routing: &'a mut Routing,
    pub ingest: &'a mut Ingest,
    pub qos2: &'a mut Qos2,
    pub groups: &'a mut Groups,
    pub store: &'a mut Store,
    pub catch_up: &'a mut CatchUp,
    pub quotas: &'a mut Quotas,
    pub observe: &'a mut Observe,
    pub effects: &'a mut Effects,
}
