//! Who is admitted, and the limits of what is received.

pub mod auth_gate;
pub mod authenticate;
pub mod authorize;
mod connect;
mod enhanced;
mod filters;
pub mod limits;
pub mod over_limit;
mod ownership;
pub mod publish;
mod publish_topic;
pub mod receive;
pub mod subscribe;
mod unsubscribe;

use std::cell::Cell;
use std::rc::Rc;

use auth_gate::AuthGate;
use limits::Drain;
use ownership::Unproved;

#[derive(Default)]
pub struct Protocol {
    auth_gate: AuthGate,
    unproved: Unproved,
    /// Bytes kept for clients that are not admitted yet; bounded like received bytes.
    unknown_bytes: Rc<Cell<usize>>,
    /// While set, no client is admitted.
    drain: Option<Drain>,
}

#[cfg(test)]
impl Protocol {
    pub fn unknown_bytes(&self) -> usize {
        self.unknown_bytes.get()
    }
}
