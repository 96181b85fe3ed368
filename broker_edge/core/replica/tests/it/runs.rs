//! Seeds that are run, and what each must have seen.

use headwater_cluster::rules::Rule;

use crate::cluster::{Faults, Plan, Sabotage, Seen, fail_a_call_in_catch_up, lose_leader, run};

fn from_env(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(value) => value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is {value:?}, which is no number")),
        Err(_) => default,
    }
}

fn plan(seed: u64, faults: Faults) -> Plan {
    Plan {
        seed,
        faults,
        trouble_ms: 20_000,
        sabotage: Sabotage::None,
    }
}

/// Runs these seeds, or the one that the environment names.
fn run_seeds(count: u64, faults: Faults) -> Vec<Seen> {
    let one = std::env::var("HEADWATER_SIM_SEED").is_ok();
    let seeds = match one {
        true => vec![from_env("HEADWATER_SIM_SEED", 0)],
        false => {
            let first = from_env("HEADWATER_SIM_FIRST", 0);
            (first..first + from_env("HEADWATER_SIM_SEEDS", count)).collect()
        }
    };
    let runs = seeds.into_iter().map(|seed| run(plan(seed, faults)));
    runs.map(|run| run.unwrap_or_else(|found| panic!("{found}")))
        .collect()
}

#[test]
fn three_nodes_without_faults_acknowledge_and_stay_equal() {
    for seen in run_seeds(6, Faults::NONE) {
        assert!(seen.acknowledged > 200, "{seen:?}");
        assert_eq!((seen.epochs, seen.starts), (1, 3), "{seen:?}");
    }
}

#[test]
fn another_leads_when_the_leader_is_killed_and_nothing_acknowledged_is_lost() {
    for seed in 0..6 {
        let seen = lose_leader(plan(seed, Faults::NONE)).unwrap_or_else(|found| panic!("{found}"));
        assert!(seen.acknowledged > 50, "{seen:?}");
        assert_eq!((seen.epochs, seen.starts), (2, 4), "{seen:?}");
    }
}

/// What a run has seen must be enough to find anything.
fn sum(seen: &[Seen]) -> Seen {
    let mut all = Seen::default();
    for one in seen {
        all.acknowledged += one.acknowledged;
        all.epochs += one.epochs;
        all.faults += one.faults;
        all.starts += one.starts;
        all.anew += one.anew;
        all.unread += one.unread;
        all.undecided += one.undecided;
    }
    println!("{} seeds: {all:?}", seen.len());
    all
}

#[test]
fn nothing_is_lost_when_nodes_and_links_fail() {
    let seen = run_seeds(100, Faults::CRASHES);
    let all = sum(&seen);
    assert!(all.acknowledged > seen.len() * 50, "{all:?}");
    assert!(all.epochs > seen.len() * 2, "{all:?}");
    assert_eq!(all.undecided, 0, "no disk fails: {all:?}");
}

#[test]
fn nothing_is_lost_when_disks_fail_too() {
    let seen = run_seeds(100, Faults::ALL);
    let all = sum(&seen);
    assert!(all.acknowledged > seen.len() * 50, "{all:?}");
    assert!(all.starts > seen.len() as u64 * 4, "{all:?}");
    assert!(all.undecided <= seen.len() / 50, "{all:?}");
}

#[test]
fn a_read_that_fails_once_does_not_keep_a_follower_behind() {
    // Most of these calls are writes, after which the leader stops and starts again.
    let seen: Vec<_> = (1..=60)
        .map(|nth| fail_a_call_in_catch_up(plan(nth, Faults::NONE), nth))
        .map(|run| run.unwrap_or_else(|found| panic!("{found}")))
        .collect();
    assert!(sum(&seen).unread > 0, "{seen:?}");
}

/// How many seeds it takes until something is found that is done wrong.
fn seeds_until_found(sabotage: &Sabotage, most: u64) -> Option<(u64, String)> {
    (0..most).find_map(|seed| {
        let plan = Plan {
            sabotage: sabotage.clone(),
            ..plan(seed, Faults::CRASHES)
        };
        let found = run(plan).err()?;
        let first = found.lines().next().unwrap_or_default().to_owned();
        Some((seed, first))
    })
}

/// The model of the state machine finds all rules; here are those that a few random runs find too.
#[test]
fn what_is_done_wrong_is_found() {
    let rules = [
        Rule::CandidateInSync,
        Rule::EpochByCas,
        Rule::AlignFirst,
        Rule::CutAtDivergence,
        Rule::ToldOnlyWhenAligned,
        Rule::OfficePastStart,
    ];
    let mut sabotages = vec![Sabotage::NoSync, Sabotage::AckAtLeader];
    sabotages.extend(rules.map(|rule| Sabotage::Rules(vec![rule])));
    for sabotage in sabotages {
        let found = seeds_until_found(&sabotage, from_env("HEADWATER_SIM_SEEDS", 400));
        println!("{sabotage:?}: {found:?}");
        assert!(found.is_some(), "{sabotage:?} is not found");
    }
}
