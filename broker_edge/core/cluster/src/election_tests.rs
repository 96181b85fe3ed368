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

fn standing(trust: Trust, ends: &[u64]) -> Standing {
    Standing {
        trust,
        still_led: false,
        marks: ends.iter().map(|end| (Epoch(1), Offset(*end))).collect(),
    }
}

struct Case {
    key: ShardKey,
    mine: Standing,
    answers: BTreeMap<Member, Standing>,
    waited: Waited,
    defers: bool,
    resigned: bool,
}

/// Member 1 is the candidate; 1, 2 and 3 are in sync.
fn case(mine: Standing, answers: &[(u8, Standing)]) -> Case {
    Case {
        key: ShardKey {
            replicas: set(&[1, 2, 3]),
            leader: None,
            epoch: Epoch(1),
            in_sync: set(&[1, 2, 3]),
            committed: 0,
        },
        mine,
        answers: answers
            .iter()
            .map(|(number, one)| (member(*number), one.clone()))
            .collect(),
        waited: Waited::Not,
        defers: true,
        resigned: false,
    }
}

impl Case {
    fn decide(&self) -> Decision {
        Candidate {
            me: &member(1),
            mine: self.mine.clone(),
            key: &self.key,
            answers: &self.answers,
            waited: self.waited,
            defers: self.defers,
            leader_resigned: self.resigned,
            min_in_sync: 2,
            rules: Rules::default(),
        }
        .decide()
    }
}

fn take(numbers: &[u8]) -> Decision {
    Decision::Take {
        in_sync: set(numbers),
    }
}

use Trust::{Sound, Suspect, Unproven};

#[test]
fn a_sound_member_takes_over_with_the_sound_ones_that_answered() {
    let mut one = case(standing(Sound, &[5]), &[(2, standing(Sound, &[4]))]);
    assert_eq!(one.decide(), Decision::Wait);
    one.waited = Waited::Round;
    assert_eq!(one.decide(), take(&[1, 2]));
    one.answers.insert(member(3), standing(Suspect, &[9]));
    assert_eq!(one.decide(), take(&[1, 2]));
    // Alone it is below the minimum: the set stays, so nothing is committed without the others.
    one.answers.insert(member(2), standing(Unproven, &[9]));
    assert_eq!(one.decide(), take(&[1, 2, 3]));
}

#[test]
fn one_sound_member_is_preferred() {
    let better = case(
        standing(Sound, &[5]),
        &[(2, standing(Sound, &[6])), (3, standing(Sound, &[5]))],
    );
    assert_eq!(better.decide(), Decision::Another);
    let tie = case(
        standing(Sound, &[5]),
        &[(2, standing(Sound, &[5])), (3, standing(Sound, &[5]))],
    );
    assert_eq!(tie.decide(), take(&[1, 2, 3]));
}

#[test]
fn a_leader_that_somebody_hears_is_left_alone_unless_it_resigned() {
    let mut led = standing(Sound, &[5]);
    led.still_led = true;
    let mut one = case(
        standing(Sound, &[5]),
        &[(2, led), (3, standing(Sound, &[5]))],
    );
    assert_eq!(one.decide(), Decision::StillLed);
    one.resigned = true;
    assert_eq!(one.decide(), take(&[1, 2, 3]));
}

#[test]
fn who_is_not_in_sync_never_takes_over() {
    let mut one = case(
        standing(Sound, &[9]),
        &[(2, standing(Suspect, &[1])), (3, standing(Suspect, &[1]))],
    );
    one.key.in_sync = set(&[2, 3]);
    one.waited = Waited::Long;
    assert_eq!(one.decide(), Decision::Another);
}

#[test]
fn the_first_copy_of_a_log_that_was_alone_survives_a_crash_but_no_loss() {
    let mut one = case(standing(Unproven, &[5]), &[]);
    one.key.in_sync = set(&[1]);
    one.key.committed = 5;
    assert_eq!(one.decide(), take(&[1]));
    one.key.committed = 6;
    assert_eq!(one.decide(), Decision::NobodyMay);
    one.key.committed = 5;
    one.mine.trust = Suspect;
    assert_eq!(one.decide(), Decision::NobodyMay);
}

#[test]
fn a_doubtful_member_waits_for_the_whole_set() {
    let mut one = case(standing(Suspect, &[5]), &[(2, standing(Unproven, &[4]))]);
    one.waited = Waited::Long;
    assert_eq!(one.decide(), Decision::Wait);
    // An unproven one gives up after the long wait, because the third may never come.
    one.mine.trust = Unproven;
    assert_eq!(one.decide(), take(&[1, 2, 3]));
    one.waited = Waited::Round;
    assert_eq!(one.decide(), Decision::Wait);
    one.answers.insert(member(3), standing(Suspect, &[5]));
    assert_eq!(one.decide(), take(&[1, 2, 3]));
    one.answers.insert(member(3), standing(Sound, &[0]));
    assert_eq!(one.decide(), Decision::Another);
}

#[test]
fn of_doubtful_members_the_best_in_every_partition_takes_over() {
    let others =
        |two: &[u64], three: &[u64]| [(2, standing(Suspect, two)), (3, standing(Suspect, three))];
    let decide = |others: &[(u8, Standing)]| case(standing(Suspect, &[5, 5]), others).decide();
    assert_eq!(decide(&others(&[5, 4], &[3, 5])), take(&[1, 2, 3]));
    assert_eq!(decide(&others(&[5, 6], &[3, 5])), Decision::Another);
    assert_eq!(decide(&others(&[6, 4], &[3, 5])), Decision::NobodyMay);
    assert_eq!(decide(&others(&[5, 5], &[5, 5])), take(&[1, 2, 3]));
    let unproven = [
        (2, standing(Unproven, &[5, 5])),
        (3, standing(Suspect, &[5, 5])),
    ];
    assert_eq!(decide(&unproven), Decision::Another);
}

/// The power of all failed, and each had appended what the others did not have yet.
#[test]
fn when_no_unproven_log_is_the_longest_everywhere_one_takes_over_after_the_long_wait() {
    let others = [
        (2, standing(Unproven, &[6, 4])),
        (3, standing(Unproven, &[3, 7])),
    ];
    let mut one = case(standing(Unproven, &[5, 5]), &others);
    one.waited = Waited::Round;
    assert_eq!(one.decide(), Decision::Wait);
    one.waited = Waited::Long;
    assert_eq!(one.decide(), Decision::Another);
    one.mine = standing(Unproven, &[6, 5]);
    assert_eq!(one.decide(), take(&[1, 2, 3]));
    // Those that are known to have lost bytes do not count.
    one.answers.insert(member(2), standing(Suspect, &[9, 4]));
    assert_eq!(one.decide(), take(&[1, 2, 3]));
    one.mine = standing(Suspect, &[6, 5]);
    assert_eq!(one.decide(), Decision::Another);
    one.answers.insert(member(3), standing(Suspect, &[3, 7]));
    assert_eq!(one.decide(), Decision::NobodyMay);
}

#[test]
fn a_doubtful_log_with_less_than_was_committed_never_leads() {
    let mut one = case(
        standing(Suspect, &[5, 5]),
        &[
            (2, standing(Suspect, &[1, 1])),
            (3, standing(Suspect, &[1, 1])),
        ],
    );
    one.key.committed = 11;
    assert_eq!(one.decide(), Decision::NobodyMay);
    one.key.committed = 10;
    assert_eq!(one.decide(), take(&[1, 2, 3]));
    // One that is alone in the set has nobody to compare with.
    one.key.in_sync = set(&[1]);
    assert_eq!(one.decide(), Decision::NobodyMay);
}

#[test]
fn who_has_deferred_often_enough_takes_over_unless_another_has_what_it_lacks() {
    let longer = |trust| standing(trust, &[6]);
    let better = [(2, longer(Sound)), (3, standing(Sound, &[5]))];
    let tie = [(2, standing(Unproven, &[5])), (3, standing(Suspect, &[5]))];
    let unproven = [(2, longer(Unproven)), (3, standing(Suspect, &[5]))];
    let cases = [
        (case(standing(Sound, &[5]), &better), Waited::Not, true),
        (case(standing(Suspect, &[5]), &tie), Waited::Not, true),
        (
            case(standing(Unproven, &[5]), &unproven),
            Waited::Long,
            true,
        ),
        (
            case(standing(Unproven, &[5]), &unproven),
            Waited::Round,
            false,
        ),
        (case(standing(Suspect, &[5]), &better), Waited::Long, false),
    ];
    for (at, (mut one, waited, takes)) in cases.into_iter().enumerate() {
        one.waited = waited;
        assert_eq!(one.decide(), Decision::Another, "case {at}");
        one.defers = false;
        let takes_over = matches!(one.decide(), Decision::Take { .. });
        assert_eq!(takes_over, takes, "case {at}");
    }
}
