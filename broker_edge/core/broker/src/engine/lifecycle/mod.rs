//! How a client gets its session and leaves it, and what follows from that.

mod activate;
mod attach;
mod close;
pub mod tick;
mod will;

use std::sync::Arc;

use parking_lot::Mutex;

use super::catch_up::CatchUp;
use super::clients::Clients;
use super::delivery::Delivery;
use super::effects::{Effect, Effects};
use super::env::Env;
use super::ids::Waiter;
use super::ingest::Ingest;
use super::observe::Observe;
use super::qos2::{Acknowledging, Qos2};
use super::quotas::Quotas;
use super::retained::Retained;
use super::routing::Routing;
use super::session_store::Store;
use super::session_store::checkpoint::Checkpointing;
use super::shared_groups::Groups;

/// Connections and sessions that begin and end: that concerns every owner but the protocol's.
pub struct Lifecycle<'a> {
    pub env: &'a Env,
    pub clients: &'a mut Clients,
    pub routing: &'a mut Routing,
    pub ingest: &'a mut Ingest,
    pub delivery: &'a mut Delivery,
    pub catch_up: &'a mut CatchUp,
    pub qos2: &'a mut Qos2,
    pub groups: &'a mut Groups,
    pub retained: &'a Arc<Mutex<Retained>>,
    pub store: &'a mut Store,
    pub quotas: &'a mut Quotas,
    pub observe: &'a mut Observe,
    pub effects: &'a mut Effects,
}

impl Lifecycle<'_> {
    /// Does what the step that ends here asks of higher parts: a packet, a due timer, a connection that settled, an
    /// append, or a call from outside. The next step finds all of it done. A connection closes once, so this ends.
    pub fn drain(&mut self) {
        while let Some(effect) = self.effects.pop() {
            match effect {
                Effect::Close(key, cause) => self.end_connection(key, &cause),
                Effect::Activated(key) => self.activate(key),
                Effect::Wake(key) => {
                    let waiter = Waiter::Session(key);
                    self.catch_up.wake(waiter, self.clients, self.groups);
                }
                Effect::Joined(key) => lend!(self => Checkpointing).store_session(key),
                Effect::Appended(outcome) => lend!(self => Acknowledging).appended(outcome),
            }
        }
    }
}
