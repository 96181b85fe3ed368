//! Whether leader and followers hear each other. Times are milliseconds of one node's own clock, passed in.
//!
//! Nothing here is needed for safety: clocks only decide when a leader stops serving and when a follower begins an
//! election. A leader counts from the *sending* of a beacon that was answered, a follower from its *receipt*, so with
//! clocks that run within 10 % of each other a leader has stopped before anybody takes over: 3.3 s < 3.6 s.

use std::collections::{BTreeMap, BTreeSet};

use crate::marks::Member;

/// A leader tells all replicas of its shard that it leads, and what is committed, this often.
pub const BEACON_MS: u64 = 500;
/// A leader serves this long after the sending of the last beacon that a member of the set has answered.
pub const LEASE_MS: u64 = 3_000;
/// A follower begins to ask about its leader this long after its last beacon.
pub const GRACE_MS: u64 = 4_000;

/// The leader's side, for each member of its in-sync set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lease {
    /// When the newest beacon was sent that the member answered.
    answered_ms: BTreeMap<Member, u64>,
}

impl Lease {
    /// The shard begins to wait for this member: it has the length of a lease for its first answer.
    pub fn begin(&mut self, member: &Member, now_ms: u64) {
        self.answered_ms.entry(member.clone()).or_insert(now_ms);
    }

    /// The member answered the beacon that was sent then. A time that is still to come is not believed.
    pub fn answered(&mut self, member: &Member, sent_ms: u64, now_ms: u64) {
        if sent_ms <= now_ms {
            let newest = self.answered_ms.entry(member.clone()).or_insert(sent_ms);
            *newest = sent_ms.max(*newest);
        }
    }

    /// The members among these that have not answered in time. While there is one the leader takes no records.
    #[must_use]
    pub fn silent(&self, members: &BTreeSet<Member>, now_ms: u64) -> BTreeSet<Member> {
        let is_silent = |member: &&Member| {
            let end = self.answered_ms.get(*member).map(|ms| ms + LEASE_MS);
            end.is_none_or(|end| end <= now_ms)
        };
        members.iter().filter(is_silent).cloned().collect()
    }

    /// When the first of these members becomes silent that is not yet.
    #[must_use]
    pub fn deadline_ms(&self, members: &BTreeSet<Member>, now_ms: u64) -> Option<u64> {
        let ends = members
            .iter()
            .filter_map(|member| self.answered_ms.get(member));
        ends.map(|ms| ms + LEASE_MS)
            .filter(|end| *end > now_ms)
            .min()
    }

    /// The leader has another set: the times of others are forgotten.
    pub fn retain(&mut self, members: &BTreeSet<Member>) {
        self.answered_ms
            .retain(|member, _| members.contains(member));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::marks::{DiskId, Node};

    fn member(number: u8) -> Member {
        Member {
            node: Node::new(&format!("n{number}")).expect("a name"),
            disk: DiskId(1),
        }
    }

    #[test]
    fn a_lease_counts_from_the_sending_of_what_was_answered() {
        let members = BTreeSet::from([member(1), member(2)]);
        let mut lease = Lease::default();
        assert_eq!(lease.silent(&members, 0), members);
        for one in &members {
            lease.begin(one, 1_000);
        }
        assert_eq!(lease.deadline_ms(&members, 1_000), Some(4_000));
        lease.answered(&member(1), 2_500, 3_900);
        // Beacons are answered out of order, and an answer can be forged by a clock that was set.
        lease.answered(&member(1), 2_000, 3_950);
        lease.answered(&member(2), 9_000, 3_950);
        assert_eq!(lease.silent(&members, 3_999), BTreeSet::new());
        assert_eq!(lease.silent(&members, 4_000), BTreeSet::from([member(2)]));
        assert_eq!(lease.deadline_ms(&members, 4_000), Some(5_500));
        assert_eq!(lease.silent(&members, 5_500), members);
        lease.retain(&BTreeSet::from([member(2)]));
        lease.begin(&member(1), 6_000);
        assert_eq!(lease.deadline_ms(&members, 6_000), Some(9_000));
    }

    proptest! {
        /// One beacon after the other, with clocks whose rates differ by up to 10 % and any delay of each message: when
        /// the follower's grace is over, the leader's lease on it is.
        #[test]
        fn a_leader_stops_before_its_follower_asks(
            delays in proptest::collection::vec((0..5_000u64, 0..5_000u64), 1..20),
            rates in (95..=105u64, 95..=105u64),
        ) {
            let (leader, follower) = (|ms: u64| ms * rates.0 / 100, |ms: u64| ms * rates.1 / 100);
            let mut lease = Lease::default();
            let mut heard = 0;
            let members = BTreeSet::from([member(1)]);
            lease.begin(&member(1), 0);
            for (beacon, (there, back)) in delays.into_iter().enumerate() {
                let sent = beacon as u64 * BEACON_MS;
                heard = (sent + there).max(heard);
                lease.answered(&member(1), leader(sent), leader(sent + there + back));
            }
            // The first true time at which the follower's clock is past the grace.
            let over = (0..).map(|ms| heard + ms).find(|ms| follower(*ms) >= follower(heard) + GRACE_MS);
            let over = over.expect("some time");
            prop_assert_eq!(lease.silent(&members, leader(over)), members);
        }
    }
}
