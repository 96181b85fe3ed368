//! What the service has only while this node serves clients, and where clients go otherwise.
//!
//! A broker alone always serves; a node of a cluster serves while it leads.

use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::watch;

use super::error::Refusal;
use super::groups::Groups;
use super::groups::holds::GroupHolds;
use super::groups::tenure::{Leader, Tenure};

/// What the calls of clients need.
pub struct Office {
    pub groups: Groups,
    pub holds: Arc<GroupHolds>,
    pub tenure: Tenure,
}

/// The office while there is one.
pub struct OfficeSlot(RwLock<Slot>);

enum Slot {
    Open(Arc<Office>, watch::Sender<Option<Leader>>),
    Elsewhere(Leader),
}

impl Default for OfficeSlot {
    fn default() -> Self {
        Self(RwLock::new(Slot::Elsewhere(None)))
    }
}

impl OfficeSlot {
    /// # Errors
    /// This node serves no clients; the refusal says which one does.
    pub fn get(&self) -> Result<Arc<Office>, Refusal> {
        match &*self.0.read() {
            Slot::Open(office, _) => Ok(Arc::clone(office)),
            Slot::Elsewhere(leader) => Err(Refusal::not_leader(leader.as_deref())),
        }
    }

    /// Begins to serve. `build` gets the time in which it does.
    pub fn open(&self, build: impl FnOnce(Tenure) -> Office) -> Arc<Office> {
        let (ends, tenure) = watch::channel(None);
        let office = Arc::new(build(Tenure::of(tenure)));
        *self.0.write() = Slot::Open(Arc::clone(&office), ends);
        office
    }

    /// Ends to serve, and with it every call that waits for a commit. If nobody served here, only changes who does.
    pub fn leave(&self, leader: Leader) {
        let before = std::mem::replace(&mut *self.0.write(), Slot::Elsewhere(leader.clone()));
        if let Slot::Open(_, ends) = before {
            ends.send_replace(Some(leader));
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;

    #[test]
    fn without_an_office_a_refusal_says_who_leads() {
        let slot = OfficeSlot::default();
        let refusal = |slot: &OfficeSlot| match slot.get() {
            Ok(_) => panic!("there is no office"),
            Err(refusal) => Status::from(refusal).message().to_owned(),
        };
        let text = refusal(&slot);
        assert!(text.contains(r#""error":"not_leader""#) && text.contains(r#""leader":null"#));
        slot.leave(Some(Arc::from("grpc://b:8815")));
        assert!(refusal(&slot).contains("grpc://b:8815"));
    }
}
