//! A node that this one should be connected to.

use headwater_cluster::breaker::Breaker;
use headwater_cluster::marks::{Member, Node};
use mio::Token;

use crate::dial::Lookup;

/// Where an attempt to connect is.
pub enum Attempt {
    Looking(Lookup, u64),
    Connecting(Token),
}

pub struct Peer {
    pub node: Node,
    /// `host:port`.
    pub address: String,
    pub breaker: Breaker,
    pub attempt: Option<Attempt>,
    /// The connection whose `Hello` was accepted last.
    pub link: Option<(Token, Member)>,
    /// The life that was linked last, as long as nothing says that it has ended.
    pub last: Option<Member>,
    /// The link was just lost: attempts show whether its process is gone, whoever of the two dials. As many are left.
    pub probes_left: u8,
    /// When the next of them is due.
    pub probe_ms: u64,
    /// What was logged last about this peer, so that it is said once.
    pub said: String,
}

/// A process that ends closes its sockets one after the other: at first its listener still takes connections. So it is
/// tried again, each time after twice as long.
const PROBES: u8 = 8;
const PROBE_MS: u64 = 10;

impl Peer {
    /// The link was lost.
    pub fn begin_probes(&mut self, now_ms: u64) {
        (self.probes_left, self.probe_ms) = (PROBES, now_ms);
    }

    /// Whether an attempt is due; the next one follows.
    pub fn probe(&mut self, now_ms: u64) -> bool {
        let is_due = self.probes_left > 0 && self.probe_ms <= now_ms && self.last.is_some();
        if is_due {
            self.probe_ms = now_ms + (PROBE_MS << (PROBES - self.probes_left));
            self.probes_left -= 1;
        }
        is_due
    }

    pub fn new(node: Node, address: String) -> Self {
        Self {
            node,
            address,
            breaker: Breaker::default(),
            attempt: None,
            link: None,
            last: None,
            probes_left: 0,
            probe_ms: 0,
            said: String::new(),
        }
    }

    /// Logs a sentence about the peer, once.
    pub fn say(&mut self, sentence: &str) {
        if self.said != sentence {
            tracing::warn!(peer = %self.node, address = self.address, "{sentence}");
            sentence.clone_into(&mut self.said);
        }
    }
}
