//! Each rule switched off: the model finds what it prevents. A check that has never failed proves nothing.

use super::check::faults;
use super::walk::{replay, walk};
use super::*;

/// The shortest of some random walks on which something is found without these rules.
fn found_without(rules: &[Rule]) -> Option<(Finding, Vec<Action>)> {
    let walks = (0..super::check::walks_of_controls()).filter_map(|seed| {
        let budget = faults_for(rules[0], seed);
        let start = World::new(Rules::without_all(rules), budget);
        let (finding, actions) = walk(&start, seed, 150)?;
        // With the rules the same steps, as far as they can be taken, find nothing.
        let with_it = World::new(Rules::default(), budget);
        assert_eq!(
            replay(&with_it, &actions),
            None,
            "{rules:?}, seed {seed}: {actions:?}"
        );
        Some((finding, actions))
    });
    walks.take(3).min_by_key(|(_, actions)| actions.len())
}

/// The faults that a rule is about come together too seldom by chance.
fn faults_for(rule: Rule, seed: u64) -> Budget {
    let none = super::check::NONE;
    match rule {
        Rule::SuspicionDurable => Budget {
            appends: 1,
            epochs: 3,
            rots: 1,
            stops: 1,
            ..none
        },
        _ => faults(seed),
    }
}

fn all_found(rules: &[Rule]) {
    for rule in rules {
        let found = found_without(&[*rule]);
        assert!(found.is_some(), "nothing is found without {rule:?}");
        if std::env::var_os("HEADWATER_MODEL_TELL").is_some() {
            eprintln!("{rule:?}: {found:?}");
        }
    }
}

#[test]
fn without_a_rule_of_the_in_sync_set_something_is_found() {
    all_found(&[
        Rule::FollowTakesBack,
        Rule::WaitBeforeAdding,
        Rule::WaitUntilRemoved,
        Rule::JoinAtHighWatermark,
        Rule::JoinAtStart,
        Rule::EveryPartition,
        Rule::RewriteAfterUnknown,
    ]);
}

#[test]
fn without_a_rule_of_elections_something_is_found() {
    all_found(&[
        Rule::CandidateInSync,
        Rule::CandidateSound,
        Rule::EpochByCas,
        Rule::OfficePastStart,
        Rule::NamedOnlySound,
    ]);
}

#[test]
fn without_a_rule_of_followers_something_is_found() {
    all_found(&[
        Rule::AlignFirst,
        Rule::CutAtDivergence,
        Rule::AlignOfNewestFollow,
        Rule::SoundByLeader,
    ]);
}

#[test]
fn without_a_rule_of_the_disk_something_is_found() {
    all_found(&[
        Rule::UnprovenAfterCrash,
        Rule::RecoverySyncs,
        Rule::SuspicionDurable,
    ]);
}

/// What these steps find without the rule. With it they find nothing.
fn found_by(rule: Rule, steps: &[Action]) -> Option<Finding> {
    let run = |rules| {
        let mut world = World::new(rules, faults(0));
        steps.iter().for_each(|step| world.act(*step));
        world.finding()
    };
    assert_eq!(run(Rules::default()), None);
    run(Rules::without(rule))
}

/// All members of a set seem damaged. Who asks must not count an answer of a replica that goes on in an older epoch.
#[test]
fn without_durable_asks_a_deposed_leader_commits_what_the_new_one_lacks() {
    use Action::*;
    let steps = [
        // c is removed, and looks damaged after a crash; it follows a again, which adds it.
        Silent(0, 2),
        Land(0),
        Doubt(2),
        Start(2),
        Read(2),
        Stand(2),
        DeliverAll(2, 0),
        DeliverAll(0, 2),
        DeliverAll(2, 0),
        Heard(0, 2),
        Land(0),
        // b has the record, c does not.
        Append(0, 0),
        DeliverAll(0, 1),
        Sync(1, 0),
        DeliverAll(1, 0),
        Sync(0, 0),
        // b takes epoch 2 and removes a, then loses the record and starts suspect.
        Watch(1),
        Grace(1),
        Round(1),
        Land(0),
        Stand(1),
        Silent(1, 0),
        Land(0),
        Rot(1, 0, 0),
        Start(1),
        Read(1),
        Stand(1),
        // c has not heard a for a while. It answers, still in epoch 1, and goes on there.
        Grace(2),
        DeliverAll(1, 2),
        Stand(2),
        DeliverAll(2, 1),
        Round(1),
        Land(0),
        Stand(1),
        DeliverAll(0, 2),
        Sync(2, 0),
        DeliverAll(2, 0),
    ];
    let found = found_by(Rule::AskMakesDurable, &steps);
    assert_eq!(found, Some(Finding::Lost));
}

/// A deposed leader hears what is committed in the new epoch before it has cut.
#[test]
fn what_is_told_before_the_cut_would_show_another_record() {
    use Action::*;
    let steps = [
        // a alone has a record of epoch 1.
        Append(0, 0),
        Sync(0, 0),
        // c takes epoch 2, removes a, and commits another record with b.
        Grace(2),
        Round(2),
        Land(0),
        Stand(2),
        Silent(2, 0),
        Land(0),
        DeliverAll(2, 1),
        Stand(1),
        DeliverAll(1, 2),
        DeliverAll(2, 1),
        DeliverAll(1, 2),
        Append(2, 0),
        DeliverAll(2, 1),
        Sync(1, 0),
        Sync(2, 0),
        DeliverAll(1, 2),
        Beacon(2),
        DeliverAll(2, 0),
    ];
    let found = found_by(Rule::ToldOnlyWhenAligned, &steps);
    assert_eq!(found, Some(Finding::TwoPayloads));
}
