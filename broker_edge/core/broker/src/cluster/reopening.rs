//! What a leader does whose office could not be opened, for example because its disk cannot be read: it gives the log to
//! each of the others in turn, and tries again itself when nobody is left to ask.
//!
//! The first failure is acted on at once. Later ones wait, longer each time, so that nodes which all fail do not depose
//! each other without end.

use std::collections::BTreeSet;

use headwater_cluster::marks::Member;
use headwater_replica::Input;

use super::leaving::successors;
use super::node::Node;

/// Before the second attempt; doubled for each one after it.
const PAUSE_MS: u64 = 250;
const PAUSE_MAX_MS: u64 = 8_000;
/// Failures longer ago than this have nothing to do with the next one.
const FORGOTTEN_MS: u64 = 60_000;

#[derive(Debug, Default)]
pub(super) struct Reopening {
    /// In a row.
    failures: u32,
    failed_ms: u64,
    /// Who was asked to lead since this node last tried by itself.
    asked: BTreeSet<Member>,
    due_ms: Option<u64>,
}

#[derive(Debug, PartialEq, Eq)]
enum Attempt {
    HandOver(Member),
    Open,
}

impl Reopening {
    fn failed(&mut self, now: u64) {
        if now >= self.failed_ms + FORGOTTEN_MS {
            *self = Self::default();
        }
        let pause_ms = match self.failures.checked_sub(1) {
            None => 0,
            Some(before) => (PAUSE_MS << before.min(16)).min(PAUSE_MAX_MS),
        };
        self.failures += 1;
        self.failed_ms = now;
        self.due_ms = Some(now + pause_ms);
    }

    pub fn due_ms(&self) -> Option<u64> {
        self.due_ms
    }

    /// Another attempt is made without this one, or another node leads.
    pub fn cancel(&mut self) {
        self.due_ms = None;
    }

    /// What is to be done now.
    fn attempt(
        &mut self,
        now: u64,
        mut successors: impl Iterator<Item = Member>,
    ) -> Option<Attempt> {
        self.due_ms.take_if(|due| *due <= now)?;
        let next = successors.find(|member| !self.asked.contains(member));
        Some(match next {
            Some(to) => {
                self.asked.insert(to.clone());
                Attempt::HandOver(to)
            }
            None => {
                self.asked.clear();
                Attempt::Open
            }
        })
    }
}

impl Node {
    pub(super) fn office_failed(&mut self, now: u64) {
        // One that gives the log away does so in any case.
        if !self.gives_away() && self.parts.replica.shard().is_leading() {
            self.reopening.failed(now);
        }
    }

    pub(super) fn reopen_step(&mut self, now: u64) {
        match self.reopening.attempt(now, successors(&self.parts)) {
            None => {}
            // If that fails, the replica says that the office is to be opened, as at the end of a pause.
            Some(Attempt::HandOver(to)) => {
                tracing::info!(to = %to.node, "gives the log to another node, which may be able to serve clients");
                self.give(Input::HandOver { to }, now);
            }
            Some(Attempt::Open) => self.parts.desk.open(),
        }
    }
}

#[cfg(test)]
mod tests {
    use headwater_cluster::marks::{DiskId, Node as Name};

    use super::*;

    fn member(name: &str) -> Member {
        Member {
            node: Name::new(name).expect("a name"),
            disk: DiskId(1),
        }
    }

    #[test]
    fn every_other_node_is_asked_then_it_tries_by_itself_and_that_again_and_again() {
        let (b, c) = (member("b"), member("c"));
        let mut reopening = Reopening::default();
        let mut now = 100_000;
        let mut pauses = Vec::new();
        for _ in 0..4 {
            let turn = [
                Attempt::HandOver(b.clone()),
                Attempt::HandOver(c.clone()),
                Attempt::Open,
            ];
            for wanted in turn {
                reopening.failed(now);
                let due = reopening.due_ms().expect("something is due");
                pauses.push(due - now);
                let linked = || [b.clone(), c.clone()].into_iter();
                if due > now {
                    assert_eq!(reopening.attempt(due - 1, linked()), None);
                }
                assert_eq!(reopening.attempt(due, linked()), Some(wanted));
                assert_eq!(reopening.attempt(due + 99_999, linked()), None, "once");
                now = due;
            }
        }
        assert_eq!(pauses[..7], [0, 250, 500, 1_000, 2_000, 4_000, 8_000]);
        assert!(pauses[7..].iter().all(|pause| *pause == 8_000));
    }

    #[test]
    fn without_anybody_to_ask_it_tries_by_itself() {
        let mut reopening = Reopening::default();
        reopening.failed(100_000);
        let attempt = reopening.attempt(100_000, std::iter::empty());
        assert_eq!(attempt, Some(Attempt::Open));
    }

    #[test]
    fn an_old_failure_is_forgotten_and_another_leader_ends_the_attempts() {
        let (b, linked) = (member("b"), || [member("b")].into_iter());
        let mut reopening = Reopening::default();
        for now in [100_000, 100_000 + FORGOTTEN_MS] {
            reopening.failed(now);
            assert_eq!(reopening.due_ms(), Some(now));
            let attempt = reopening.attempt(now, linked());
            assert_eq!(attempt, Some(Attempt::HandOver(b.clone())));
        }
        reopening.failed(200_000);
        reopening.cancel();
        assert_eq!(reopening.attempt(u64::MAX, linked()), None);
    }
}
