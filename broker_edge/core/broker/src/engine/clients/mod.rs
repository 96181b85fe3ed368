//! Connections and sessions, and the lists of those with work to do.

pub mod timers;

use std::collections::BTreeMap;
use std::rc::Rc;

use super::containers::lazy_box::LazyBox;
use super::session::out::PayloadHolders;
use super::{ConnKey, Connection, Session, SessionKey, Slab};

use timers::Timers;

#[derive(Default)]
pub struct Clients {
    pub(super) conns: Slab<Connection>,
    pub(super) sessions: Slab<Session>,
    /// Ordered, so that clients can be listed page by page.
    pub(super) by_client: BTreeMap<Rc<str>, SessionKey>,
    pub(super) timers: Timers,
    /// Connections with bytes to write.
    pub(super) touched: Vec<ConnKey>,
    /// Connections closed in this turn.
    pub(super) closed: Vec<ConnKey>,
    /// Connections that may be read again because their pause has ended.
    pub(super) resumed: Vec<ConnKey>,
    pub(super) pool: Vec<LazyBox<Vec<u8>>>,
    pub(super) payload_holders: PayloadHolders,
    /// Sessions created since the start.
    pub(super) lives: u64,
    /// Source of assigned client ids.
    pub(super) assigned: u64,
}
