//! Records that the broker itself publishes.

use crate::engine::clients::Clients;
use crate::engine::effects::Effects;
use crate::engine::env::Env;
use crate::engine::ids::Commit;
use crate::engine::observe::Observe;
use crate::engine::routing::Routing;

use super::Ingest;

/// A will or a receipt.
#[derive(Debug, Clone, Copy)]
pub struct OwnRecord<'a> {
    pub topic: &'a str,
    pub client_id: &'a str,
    pub key: Option<&'a [u8]>,
    pub qos: u8,
    pub retain: bool,
    pub properties: &'a [u8],
    pub payload: &'a [u8],
}

/// Stages wills and receipts.
pub struct OwnRecords<'a> {
    pub env: &'a Env,
    pub clients: &'a mut Clients,
    pub routing: &'a mut Routing,
    pub ingest: &'a mut Ingest,
    pub observe: &'a mut Observe,
    pub effects: &'a mut Effects,
}

impl OwnRecords<'_> {
    /// Stages a record of the broker's own, even if the queue is full: there are few, and each has a bounded cause (a
    /// connection that ended, a command that was acknowledged).
    pub fn stage_own(&mut self, record: &OwnRecord<'_>) -> Option<Commit> {
        let id = self.routing.intern(record.topic, &self.env.log);
        let topic = self.routing.topic(id)?;
        let mut staged = self.ingest.push_own(topic, record);
        if staged.is_err() {
            // A table of this append is full; the following records go into the next append.
            self.ingest.append(topic.partition, false, self.effects);
            staged = self.ingest.push_own(topic, record);
        }
        if staged.is_err() {
            tracing::warn!(
                topic = record.topic,
                "the append is full, so a record of the broker itself is lost"
            );
        }
        staged.ok()
    }
}
