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
    /// The attempt was not due by the breaker: it only shows whether a process lives.
    pub is_probe: bool,
    /// The connection whose `Hello` was accepted last.
    pub link: Option<(Token, Member)>,
    /// The life that was linked last, as long as nothing says that it has ended.
    pub last: Option<Member>,
    /// The link was just lost: attempts show whether its process is gone, whoever of the two dials. As many are left.
    pub probes_left: u8,
    /// When the next of them is due.
    pub probe_ms: u64,
    /// How far its wall clock was ahead of ours when it was linked last.
    pub clock_ahead_ms: Option<i64>,
    /// What was logged last about this peer, so that it is said once.
    pub said: String,
}

/// A process that ends closes its sockets one after the other: at first its listener still takes connections. So it is
/// tried again, each time after twice as long.
const PROBES: u8 = 8;
const PROBE_MS: u64 = 10;
/// More than a `Hello` can be on its way.
pub const CLOCKS_APART_MS: u64 = 10_000;

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

    /// When an attempt is due, or one takes too long. `dials`: this node is the one of the two that dials.
    pub fn due_ms(&self, dials: bool) -> Option<u64> {
        match &self.attempt {
            Some(Attempt::Looking(_, by_ms)) => Some(*by_ms),
            Some(Attempt::Connecting(_)) => None,
            None if self.link.is_some() => None,
            None => {
                let probe = (self.probes_left > 0).then_some(self.probe_ms);
                let dial = dials.then(|| self.breaker.next_ms());
                probe.into_iter().chain(dial.flatten()).min()
            }
        }
    }

    /// The attempt that was made last has failed.
    pub fn failed(&mut self, now_ms: u64, random: u64) {
        if !self.is_probe {
            self.breaker.failed(now_ms, random);
        }
    }

    pub fn new(node: Node, address: String) -> Self {
        Self {
            node,
            address,
            breaker: Breaker::default(),
            attempt: None,
            is_probe: false,
            link: None,
            last: None,
            probes_left: 0,
            probe_ms: 0,
            clock_ahead_ms: None,
            said: String::new(),
        }
    }

    /// Nothing of the protocol needs equal clocks, but times of records come from the leader.
    pub fn compare_clocks(&mut self, theirs_ms: u64, ours_ms: u64) {
        let ahead_ms = i128::from(theirs_ms) - i128::from(ours_ms);
        let ahead_ms = ahead_ms.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        let before = self.clock_ahead_ms.replace(ahead_ms);
        if let Some(sentence) = clocks_apart(ahead_ms)
            && before.and_then(clocks_apart).is_none()
        {
            tracing::warn!(peer = %self.node, "{sentence}");
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

/// A sentence if it is too much.
fn clocks_apart(ahead_ms: i64) -> Option<String> {
    let apart_ms = ahead_ms.unsigned_abs();
    let side = if ahead_ms > 0 { "ahead of" } else { "behind" };
    (apart_ms > CLOCKS_APART_MS).then(|| {
        let seconds = apart_ms / 1_000;
        format!(
            "the clock of this peer is {seconds} s {side} the one here, and records get the time of whoever leads: have \
             NTP set both clocks"
        )
    })
}

#[cfg(test)]
mod tests {
    use headwater_cluster::marks::DiskId;

    use super::*;

    fn lost() -> Peer {
        let node = Node::new("b").expect("a name");
        let mut peer = Peer::new(node.clone(), "127.0.0.1:1".to_owned());
        let disk = DiskId(1);
        peer.last = Some(Member { node, disk });
        peer.begin_probes(10_000);
        peer
    }

    #[test]
    fn what_comes_first_of_a_probe_and_a_dialling_is_due() {
        let mut peer = lost();
        while peer.probe(peer.probe_ms) && peer.probe_ms < 10_300 {}
        assert_eq!(peer.probe_ms, 10_310);
        peer.breaker.failed(10_100, 0);
        let dial_ms = peer.breaker.next_ms().expect("closed");
        assert!(dial_ms < 10_310);
        assert_eq!(peer.due_ms(true), Some(dial_ms));
        assert_eq!(peer.due_ms(false), Some(10_310));
        peer.breaker.failed(10_300, u64::MAX);
        assert_eq!(peer.due_ms(true), Some(10_310));
    }

    #[test]
    fn a_clock_that_is_an_hour_off_is_said_with_its_side() {
        let (hour, small) = (3_600_000, CLOCKS_APART_MS as i64);
        let ahead = clocks_apart(hour).expect("a sentence");
        assert!(ahead.starts_with("the clock of this peer is 3600 s ahead of the one here, "));
        let behind = clocks_apart(-hour).expect("a sentence");
        assert!(behind.starts_with("the clock of this peer is 3600 s behind the one here, "));
        assert!(clocks_apart(i64::MIN).is_some());
        for ahead_ms in [-small, 0, small] {
            assert_eq!(clocks_apart(ahead_ms), None);
        }
    }

    #[test]
    fn a_clock_that_no_number_holds_is_the_largest_one_apart() {
        let mut peer = lost();
        peer.compare_clocks(u64::MAX, 0);
        assert_eq!(peer.clock_ahead_ms, Some(i64::MAX));
        peer.compare_clocks(0, u64::MAX);
        assert_eq!(peer.clock_ahead_ms, Some(i64::MIN));
    }

    #[test]
    fn probes_do_not_open_the_breaker() {
        let mut peer = lost();
        let is_closed = |peer: &mut Peer, is_probe| {
            for _ in 0..Breaker::FAILURES_MAX {
                peer.is_probe = is_probe;
                peer.failed(10_000, 0);
            }
            !peer.breaker.is_open()
        };
        assert!(is_closed(&mut peer, true));
        assert!(!is_closed(&mut peer, false));
    }
}
