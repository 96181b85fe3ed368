//! Packet ids of QoS 2 in use, over all sessions.

pub mod acknowledge;
pub mod inbound;
pub mod outbound;

use std::collections::VecDeque;

use super::SessionKey;
use super::ids::CommitSeq;

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
