//! Each rule switched off: the model finds what it prevents. A check that has never failed proves nothing.

use super::check::faults;
use super::walk::{replay, walk};
use super::*;

/// The shortest of some random walks on which something is found without the rule.
fn found_without(rule: Rule) -> Option<(Finding, Vec<Action>)> {
    let walks = (0..super::check::walks_of_controls()).filter_map(|seed| {
        let faults = |seed| faults_for(rule, seed);
        let start = World::new(Rules::without(rule), faults(seed));
        let (finding, actions) = walk(&start, seed, 150)?;
        // With the rule the same steps, as far as they can be taken, find nothing.
        let with_it = World::new(Rules::default(), faults(seed));
        assert_eq!(
            replay(&with_it, &actions),
            None,
            "{rule:?}, seed {seed}: {actions:?}"
        );
        Some((finding, actions))
    });
    walks.take(3).min_by_key(|(_, actions)| actions.len())
}

/// The faults that a rule is about come together too seldom by chance.
fn faults_for(rule: Rule, seed: u64) -> Budget {
    let none = super::check::NONE;
    match rule {
        Rule::ToldOnlyWhenAligned => Budget {
            appends: 3,
            epochs: 3,
            silences: 1,
            timers: 2,
            ..none
        },
        _ => faults(seed),
    }
}

fn all_found(rules: &[Rule]) {
    for rule in rules {
        let found = found_without(*rule);
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
        Rule::ToldOnlyWhenAligned,
    ]);
}

#[test]
fn without_a_rule_of_the_disk_something_is_found() {
    all_found(&[Rule::UnprovenAfterCrash, Rule::RecoverySyncs]);
}
