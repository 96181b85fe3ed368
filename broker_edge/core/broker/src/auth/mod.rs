//! Who a client is, and what it may do.
//!
//! An [`Authority`] is an immutable snapshot of everything that decides about that. It is replaced as a whole on a
//! reload, never changed. A client that was let in has an [`Identity`]; what that identity may do under a client id are
//! its [`Rights`]. Nothing here knows a connection: the engine and the service ask and act.

use std::sync::Arc;

/// What somebody wants to do with a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    Publish,
    /// Asked for a filter, not for a topic: whether it may match something that may be received.
    Subscribe,
    /// Be sent a record, live, retained or after having been away.
    Receive,
    /// Read from an offset of one's own choosing.
    Replay,
}

/// A client that was let in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// `None` for who gave no credentials.
    pub user: Option<Arc<str>>,
}

/// What an identity may do under a client id.
#[derive(Debug)]
pub struct Rights {
    identity: Arc<Identity>,
}

impl Rights {
    pub fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    /// Whether the topic (the filter, for [`Access::Subscribe`]) may be used so.
    pub fn may(&self, _access: Access, _topic: &str) -> bool {
        true
    }
}

/// What decides who is let in and what they may do: one state of all files together.
#[derive(Debug, Default)]
pub struct Authority {}

impl Authority {
    /// Lets everybody in and allows everything.
    pub fn open() -> Arc<Self> {
        Arc::default()
    }

    /// Whether anything may be refused to somebody who was let in.
    pub fn restricts(&self) -> bool {
        false
    }
}
