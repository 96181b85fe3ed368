//! The commit rule against an oracle that keeps everything that was said and works each question out anew.

use proptest::prelude::*;

use super::*;
use crate::marks::{DiskId, Node};

fn member(number: u8) -> Member {
    Member {
        node: Node::new(&format!("n{number}")).expect("a name"),
        disk: DiskId(u64::from(number)),
    }
}

fn set(numbers: &[u8]) -> BTreeSet<Member> {
    numbers.iter().map(|number| member(*number)).collect()
}

fn stamp(epoch: u64, starts: u64, follow: u64) -> Stamp {
    Stamp {
        epoch: Epoch(epoch),
        starts: Starts(starts),
        follow: FollowNumber(follow),
    }
}

/// A leader of epoch 2 with these marks in one partition, that waits for members 1 and 2.
fn leader(end: u64, synced: u64, high_watermark: u64) -> Commit {
    let marks = Marks {
        end: Offset(end),
        synced: Offset(synced),
        high_watermark: Offset(high_watermark),
    };
    Commit::new(Epoch(2), set(&[1, 2]), 2, &[marks], Rules::default())
}

#[test]
fn a_log_that_was_alone_commits_nothing_before_its_second_copy_is_in_the_set() {
    let marks = Marks {
        end: Offset(5),
        synced: Offset(5),
        high_watermark: Offset(3),
    };
    let mut commit = Commit::new(Epoch(2), set(&[]), 2, &[marks], Rules::default());
    assert_eq!(commit.advance(), []);
    follow(&mut commit, 1, stamp(2, 1, 1), 0);
    commit.synced(&member(1), stamp(2, 1, 1), 0, Offset(5));
    commit.wait_for(member(1));
    assert_eq!(commit.advance(), [], "etcd does not name the copy yet");
    commit.set_written(set(&[1]));
    assert_eq!(commit.advance(), [(0, Offset(5))]);
}

fn follow(commit: &mut Commit, number: u8, stamp: Stamp, end: u64) -> Followed {
    commit.followed(&member(number), stamp, &[Offset(end)])
}

#[test]
fn a_record_waits_for_the_whole_set() {
    let mut commit = leader(0, 0, 0);
    for number in [1, 2] {
        let followed = follow(&mut commit, number, stamp(2, 1, 1), 0);
        assert_eq!(followed, Followed::New { doubt: false });
    }
    commit.synced_here(0, Offset(5));
    assert!(commit.synced(&member(1), stamp(2, 1, 1), 0, Offset(4)));
    assert_eq!(commit.advance(), []);
    assert!(commit.synced(&member(2), stamp(2, 1, 1), 0, Offset(3)));
    assert_eq!(commit.advance(), [(0, Offset(3))]);
    // Member 2 left by the key, so only member 1 and the leader count.
    commit.set_written(set(&[1]));
    assert_eq!(commit.advance(), [(0, Offset(4))]);
    // A joining member that is behind holds records up and takes nothing back.
    commit.wait_for(member(2));
    commit.synced(&member(1), stamp(2, 1, 1), 0, Offset(5));
    assert_eq!(commit.advance(), []);
    assert_eq!(commit.high_watermark(0), Offset(4));
}

#[test]
fn a_new_follow_voids_what_was_said_before() {
    let mut commit = leader(0, 9, 0);
    follow(&mut commit, 1, stamp(2, 1, 1), 0);
    follow(&mut commit, 2, stamp(2, 1, 1), 0);
    commit.synced(&member(1), stamp(2, 1, 1), 0, Offset(3));
    // It restarted and lost what it had said. Neither what it said counts nor an answer that is still on its way.
    let followed = follow(&mut commit, 1, stamp(2, 2, 1), 1);
    assert_eq!(followed, Followed::New { doubt: true });
    assert!(!commit.synced(&member(1), stamp(2, 1, 1), 0, Offset(3)));
    commit.synced(&member(2), stamp(2, 1, 1), 0, Offset(3));
    assert_eq!(commit.advance(), []);
    assert_eq!(
        follow(&mut commit, 1, stamp(2, 1, 7), 3),
        Followed::Old,
        "of an earlier life"
    );
    assert!(commit.synced(&member(1), stamp(2, 2, 1), 0, Offset(1)));
    assert_eq!(commit.advance(), [(0, Offset(1))]);
}

#[test]
fn an_answer_of_another_epoch_is_dropped() {
    let mut commit = leader(0, 9, 0);
    assert_eq!(follow(&mut commit, 1, stamp(1, 1, 1), 0), Followed::Old);
    follow(&mut commit, 1, stamp(2, 1, 1), 0);
    assert!(!commit.synced(&member(1), stamp(1, 1, 1), 0, Offset(3)));
    assert!(!commit.synced(&member(1), stamp(2, 1, 1), 1, Offset(3)));
    assert!(!commit.synced(&member(3), stamp(2, 1, 1), 0, Offset(3)));
}

#[test]
fn a_member_has_everything_past_the_start_and_the_high_watermark() {
    let mut commit = leader(4, 9, 2);
    assert!(!commit.has_everything(&member(3)));
    follow(&mut commit, 3, stamp(2, 1, 1), 0);
    assert!(!commit.has_everything(&member(3)));
    commit.synced(&member(3), stamp(2, 1, 1), 0, Offset(3));
    assert!(!commit.has_everything(&member(3)), "below the start");
    commit.synced(&member(3), stamp(2, 1, 1), 0, Offset(4));
    assert!(commit.has_everything(&member(3)));
    for number in [1, 2] {
        follow(&mut commit, number, stamp(2, 1, 1), 0);
        commit.synced(&member(number), stamp(2, 1, 1), 0, Offset(6));
    }
    assert!(!commit.is_past_start());
    commit.advance();
    assert!(commit.is_past_start());
    assert!(
        !commit.has_everything(&member(3)),
        "below the high watermark"
    );
    assert!(commit.has_all_below(&member(1), &[Offset(6)]));
    assert!(!commit.has_all_below(&member(1), &[Offset(7)]));
}

/// Member 2 is in sync to 9 and stays there; what member 1 does is the case. Returns the high watermark.
fn committed(rules: Rules, case: impl Fn(&mut Commit)) -> Offset {
    let marks = Marks {
        end: Offset(0),
        synced: Offset(9),
        high_watermark: Offset(0),
    };
    let mut commit = Commit::new(Epoch(2), set(&[1, 2]), 2, &[marks], rules);
    follow(&mut commit, 1, stamp(2, 1, 1), 0);
    follow(&mut commit, 2, stamp(2, 1, 1), 0);
    commit.synced(&member(2), stamp(2, 1, 1), 0, Offset(9));
    case(&mut commit);
    commit.advance();
    commit.high_watermark(0)
}

#[test]
fn without_its_rules_it_commits_what_a_member_lacks() {
    let off = Rules::without;
    let restarted = |commit: &mut Commit| {
        commit.synced(&member(1), stamp(2, 1, 1), 0, Offset(5));
        follow(commit, 1, stamp(2, 2, 1), 0);
    };
    assert_eq!(committed(Rules::default(), restarted), Offset(0));
    assert_eq!(committed(off(Rule::FollowTakesBack), restarted), Offset(5));
    let delayed = |commit: &mut Commit| {
        follow(commit, 1, stamp(2, 2, 1), 0);
        commit.synced(&member(1), stamp(2, 1, 1), 0, Offset(5));
    };
    assert_eq!(committed(Rules::default(), delayed), Offset(0));
    assert_eq!(committed(off(Rule::OnlyNewestStamp), delayed), Offset(5));
    let removed = |commit: &mut Commit| commit.forget(&member(1));
    assert_eq!(committed(Rules::default(), removed), Offset(9));
    let unheard = |_: &mut Commit| {};
    assert_eq!(committed(Rules::default(), unheard), Offset(0));
    assert_eq!(committed(off(Rule::CommitByAll), unheard), Offset(9));
}

#[derive(Debug, Clone)]
enum Step {
    SyncedHere(u8, u8),
    Follow(u8, u8, u8),
    Synced(u8, u8, u8, u8),
    WaitFor(u8),
    SetWritten(Vec<u8>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..2u8, 0..12u8).prop_map(|(partition, to)| Step::SyncedHere(partition, to)),
        (1..4u8, 1..3u8, 1..4u8).prop_map(|(who, epoch, follow)| Step::Follow(who, epoch, follow)),
        (1..4u8, 1..4u8, 0..2u8, 0..12u8)
            .prop_map(|(who, follow, partition, to)| Step::Synced(who, follow, partition, to)),
        (1..4u8).prop_map(Step::WaitFor),
        proptest::collection::vec(1..4u8, 1..3).prop_map(Step::SetWritten),
    ];
    proptest::collection::vec(step, 1..60)
}

/// All that was said so far. It answers from the list alone and keeps no mark but the largest high watermark.
struct Oracle {
    steps: Vec<Step>,
    high: [u8; 2],
}

impl Oracle {
    /// The number of the `Follow` that counts, and where it stands in the list.
    fn newest(&self, who: u8) -> Option<(u8, usize)> {
        let mut newest: Option<(u8, usize)> = None;
        for (at, step) in self.steps.iter().enumerate() {
            if let Step::Follow(from, 2, follow) = step
                && *from == who
                && newest.is_none_or(|(had, _)| *follow > had)
            {
                newest = Some((*follow, at));
            }
        }
        newest
    }

    fn synced(&self, who: u8, partition: u8) -> Option<u8> {
        let (newest, since) = self.newest(who)?;
        let answers = self.steps[since..].iter().filter_map(|step| match step {
            Step::Synced(from, follow, at, to) => {
                (*from == who && *follow == newest && *at == partition).then_some(*to)
            }
            _ => None,
        });
        answers.max()
    }

    fn waits_for(&self) -> BTreeSet<u8> {
        let mut set = BTreeSet::from([1, 2]);
        for step in &self.steps {
            match step {
                Step::WaitFor(who) => drop(set.insert(*who)),
                Step::SetWritten(who) => set = who.iter().copied().collect(),
                _ => {}
            }
        }
        set
    }

    fn high_watermark(&mut self, partition: u8) -> u8 {
        let own = self.steps.iter().filter_map(|step| match step {
            Step::SyncedHere(at, to) if *at == partition => Some(*to),
            _ => None,
        });
        let all = self.waits_for();
        let lowest = all
            .iter()
            .map(|who| self.synced(*who, partition))
            .chain([Some(own.max().unwrap_or(0))])
            .min()
            .flatten();
        let high = &mut self.high[usize::from(partition)];
        *high = lowest.unwrap_or(0).max(*high);
        *high
    }
}

proptest! {
    #[test]
    fn the_high_watermark_is_what_an_oracle_says(steps in steps()) {
        let nothing = Marks { end: Offset(0), synced: Offset(0), high_watermark: Offset(0) };
        let mut commit = Commit::new(Epoch(2), set(&[1, 2]), 2, &[nothing; 2], Rules::default());
        let mut oracle = Oracle { steps: vec![], high: [0; 2] };
        for step in steps {
            oracle.steps.push(step.clone());
            match step {
                Step::SyncedHere(partition, to) => {
                    commit.synced_here(partition.into(), Offset(to.into()));
                }
                Step::Follow(who, epoch, follow) => {
                    let stamp = stamp(epoch.into(), 1, follow.into());
                    commit.followed(&member(who), stamp, &[Offset(0); 2]);
                }
                Step::Synced(who, follow, partition, to) => {
                    let stamp = stamp(2, 1, follow.into());
                    commit.synced(&member(who), stamp, partition.into(), Offset(to.into()));
                }
                Step::WaitFor(who) => commit.wait_for(member(who)),
                Step::SetWritten(who) => commit.set_written(set(&who)),
            }
            let before = [commit.high_watermark(0), commit.high_watermark(1)];
            let moved = commit.advance();
            for partition in 0..2u8 {
                let at = usize::from(partition);
                let high = commit.high_watermark(at);
                prop_assert_eq!(high, Offset(oracle.high_watermark(partition).into()));
                prop_assert_eq!(moved.contains(&(at, high)), high != before[at]);
                prop_assert!(high >= before[at]);
            }
        }
    }
}
