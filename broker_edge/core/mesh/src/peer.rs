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
    /// The link was just lost: one attempt shows whether its process is gone, whoever of the two dials.
    pub is_probed: bool,
    /// What was logged last about this peer, so that it is said once.
    pub said: String,
}

impl Peer {
    pub fn new(node: Node, address: String) -> Self {
        Self {
            node,
            address,
            breaker: Breaker::default(),
            attempt: None,
            link: None,
            last: None,
            is_probed: false,
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
