//! Who is admitted, and the limits of what is received.

pub mod auth_gate;
pub mod authenticate;
mod authorize;
mod connect;
mod enhanced;
pub mod limits;
mod ownership;
pub mod publish;
pub mod receive;
mod subscribe;

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::{ConnKey, Drain};

use auth_gate::AuthGate;

#[derive(Default)]
pub struct Protocol {
    pub(super) auth_gate: AuthGate,
    /// Clients whose client id was not proved, as rules with `%c` require: how many since the last log line, and when
    /// the next line may be written.
    pub(super) unproved_unlogged: u64,
    pub(super) unproved_log_due_ms: u64,
    /// Bytes kept for clients that are not admitted yet; bounded like received bytes.
    pub(super) unknown_bytes: Rc<Cell<usize>>,
    /// While set, no client is admitted.
    pub(super) drain: Option<Drain>,
    /// Bytes reserved for large packets that are being received.
    pub(super) reserved_bytes: usize,
    pub(super) budget_waits: VecDeque<ConnKey>,
    /// Budget was freed since the connections that wait for it were last resumed.
    pub(super) budget_freed: bool,
}
