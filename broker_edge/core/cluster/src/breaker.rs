//! When a node dials a peer: backoff after each failure, and a circuit breaker after several.
//!
//! While the breaker is open, whatever would go over the link fails at once and is not queued. Times are milliseconds of
//! the node's own clock, passed in, and so is the randomness.

use crate::marks::Node;

/// Of a pair of nodes the one with the lower name dials.
#[must_use]
pub fn dials(me: &Node, peer: &Node) -> bool {
    me < peer
}

/// Why a peer that answered is not the peer that was looked for. No backoff mends that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WrongPeer {
    #[error(
        "the peer {peer} is of cluster {theirs}, this node is of {ours}: look at its address and at cluster.name"
    )]
    Cluster {
        peer: String,
        theirs: Node,
        ours: Node,
    },
    #[error(
        "the peer {peer} has another log than this node: one of the folders is not of this cluster; look at data_dir"
    )]
    Log { peer: Node },
    #[error(
        "the peer {peer} has the name {name} of this node: two nodes of a cluster need two names"
    )]
    OwnName { peer: String, name: Node },
    #[error("the peer {peer} is {found}, and {expected} was dialled: look at the address")]
    Name {
        peer: String,
        expected: Node,
        found: Node,
    },
    #[error(
        "the certificate of the peer names {found}, and {expected} was dialled: look at the address or issue a certificate for {expected}"
    )]
    Certificate { expected: Node, found: String },
    #[error(
        "the peer {peer} speaks frames {theirs:?}, this version speaks {ours:?}: upgrade one version at a time"
    )]
    Version {
        peer: Node,
        theirs: (u8, u8),
        ours: (u8, u8),
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Closed,
    /// Until then nobody dials.
    Open {
        until_ms: u64,
        because: Option<WrongPeer>,
    },
    /// One attempt is under way after the breaker was open.
    Trying,
}

/// Attempts to connect to one peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breaker {
    state: State,
    /// In a row.
    failures: u32,
    not_before_ms: u64,
    /// Since when the peer is connected.
    since_ms: Option<u64>,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            state: State::Closed,
            failures: 0,
            not_before_ms: 0,
            since_ms: None,
        }
    }
}

impl Breaker {
    /// After the first failure; it doubles with each one until the breaker opens.
    pub const DELAY_MS_MIN: u64 = 50;
    pub const FAILURES_MAX: u32 = 5;
    pub const OPEN_MS: u64 = 30_000;
    /// A connection that is lost earlier counts as a failed attempt.
    pub const STEADY_MS: u64 = 5_000;

    /// When to dial next; `None` while an attempt after an open breaker is under way.
    #[must_use]
    pub fn next_ms(&self) -> Option<u64> {
        match &self.state {
            State::Closed => Some(self.not_before_ms),
            State::Open { until_ms, .. } => Some(*until_ms),
            State::Trying => None,
        }
    }

    /// Whether to dial now. After an open breaker there is one attempt at a time.
    pub fn dial(&mut self, now_ms: u64) -> bool {
        let is_due = self.next_ms().is_some_and(|at| at <= now_ms);
        if is_due && matches!(self.state, State::Open { .. }) {
            self.state = State::Trying;
        }
        is_due
    }

    /// Whatever needs the link fails at once.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !matches!(self.state, State::Closed)
    }

    /// Why it is open, if the peer is the wrong one.
    #[must_use]
    pub fn reason(&self) -> Option<&WrongPeer> {
        match &self.state {
            State::Open { because, .. } => because.as_ref(),
            _ => None,
        }
    }

    /// An attempt failed before the `Hello` of the peer was accepted. `random` is any number.
    pub fn failed(&mut self, now_ms: u64, random: u64) {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= Self::FAILURES_MAX {
            self.open(now_ms, None);
            return;
        }
        let delay = Self::DELAY_MS_MIN << (self.failures - 1);
        // Half to one and a half of it, so that the nodes of a cluster do not dial in step.
        self.not_before_ms = now_ms + delay / 2 + random % (delay + 1);
    }

    /// The peer is not the one that was looked for: open at once.
    pub fn refused(&mut self, now_ms: u64, because: WrongPeer) {
        self.open(now_ms, Some(because));
    }

    /// The peer's `Hello` was accepted.
    pub fn connected(&mut self, now_ms: u64) {
        self.state = State::Closed;
        self.failures = self.failures.min(Self::FAILURES_MAX - 1);
        self.since_ms = Some(now_ms);
    }

    /// An accepted connection was lost. After one that lasted, the next attempt is not delayed by earlier failures.
    pub fn lost(&mut self, now_ms: u64, random: u64) {
        let lasted = self
            .since_ms
            .take()
            .is_some_and(|since| since + Self::STEADY_MS <= now_ms);
        if lasted {
            self.failures = 0;
            self.not_before_ms = now_ms + random % (Self::DELAY_MS_MIN + 1);
        } else {
            self.failed(now_ms, random);
        }
    }

    fn open(&mut self, now_ms: u64, because: Option<WrongPeer>) {
        let until_ms = now_ms + Self::OPEN_MS;
        self.state = State::Open { until_ms, because };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(name: &str) -> Node {
        Node::new(name).expect("a name")
    }

    #[test]
    fn one_of_two_nodes_dials() {
        let (a, b) = (node("a"), node("b"));
        assert!(dials(&a, &b) && !dials(&b, &a) && !dials(&a, &a));
    }

    #[test]
    fn five_failures_open_it_and_one_attempt_follows() {
        let mut breaker = Breaker::default();
        let mut now_ms = 1_000;
        for failure in 1..=Breaker::FAILURES_MAX {
            assert!(!breaker.is_open());
            now_ms = breaker.next_ms().expect("closed").max(now_ms);
            assert!(breaker.dial(now_ms), "failure {failure}");
            breaker.failed(now_ms, 0);
        }
        assert!(breaker.is_open() && breaker.reason().is_none());
        assert!(!breaker.dial(now_ms + Breaker::OPEN_MS - 1));
        assert!(breaker.dial(now_ms + Breaker::OPEN_MS));
        assert!(!breaker.dial(now_ms + Breaker::OPEN_MS), "one at a time");
        breaker.failed(now_ms + Breaker::OPEN_MS, 0);
        assert_eq!(breaker.next_ms(), Some(now_ms + 2 * Breaker::OPEN_MS));
        assert!(breaker.dial(now_ms + 2 * Breaker::OPEN_MS));
        breaker.connected(90_000);
        assert!(!breaker.is_open());
        // A connection that is lost at once does not count as one.
        breaker.lost(90_001, 0);
        assert!(breaker.is_open());
    }

    #[test]
    fn a_wrong_peer_opens_it_at_once_with_a_sentence() {
        let mut breaker = Breaker::default();
        let because = WrongPeer::Cluster {
            peer: "10.0.0.7:7400".into(),
            theirs: node("berlin"),
            ours: node("bonn"),
        };
        breaker.refused(500, because);
        assert_eq!(breaker.next_ms(), Some(30_500));
        let said = breaker.reason().expect("a reason").to_string();
        assert!(
            said.contains("is of cluster berlin, this node is of bonn"),
            "{said}"
        );
    }

    proptest! {
        #[test]
        fn delays_grow_to_their_limit_and_are_spread(failures in 1..5u32, random in any::<u64>()) {
            let mut breaker = Breaker::default();
            for _ in 1..failures {
                breaker.failed(0, 0);
            }
            breaker.failed(0, random);
            let delay = Breaker::DELAY_MS_MIN << (failures - 1);
            let next = breaker.next_ms().expect("closed");
            prop_assert!((delay / 2..=delay / 2 + delay).contains(&next));
        }

        #[test]
        fn a_lost_connection_is_dialled_soon(random in any::<u64>()) {
            let mut breaker = Breaker::default();
            breaker.failed(0, 3);
            breaker.connected(700);
            let now_ms = 700 + Breaker::STEADY_MS;
            breaker.lost(now_ms, random);
            let next = breaker.next_ms().expect("closed");
            prop_assert!((now_ms..=now_ms + Breaker::DELAY_MS_MIN).contains(&next));
        }
    }
}
