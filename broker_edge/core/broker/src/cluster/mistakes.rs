//! The rules of the protocol that a fault build is told to break; all of them hold in every other build.

use headwater_cluster::rules::Rules;

#[cfg(not(feature = "faults"))]
pub fn rules() -> Rules {
    Rules::default()
}

#[cfg(feature = "faults")]
pub fn rules() -> Rules {
    use headwater_cluster::rules::Rule;
    use headwater_log::faults::{Sabotage, is_sabotaged};

    let mistakes = [
        (Sabotage::AckAtLeader, Rule::CommitByAll),
        (Sabotage::SuspectIgnored, Rule::CandidateSound),
        (Sabotage::RemovedEarly, Rule::WaitUntilRemoved),
        (Sabotage::CutAtHighWatermark, Rule::CutAtDivergence),
        (Sabotage::EarlyOffice, Rule::OfficePastStart),
        (Sabotage::StaleAnswers, Rule::FollowTakesBack),
        (Sabotage::Unaligned, Rule::AlignFirst),
    ];
    let broken = mistakes.iter().find(|(one, _)| is_sabotaged(*one));
    broken.map_or_else(Rules::default, |(_, rule)| Rules::without(*rule))
}
