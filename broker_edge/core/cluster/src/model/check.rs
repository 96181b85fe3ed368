//! The model with all rules: exhaustive within small bounds, random beyond them, and that it goes on after faults.
//!
//! `HEADWATER_MODEL_STATES` and `HEADWATER_MODEL_WALKS` give larger bounds than the default ones.

use stateright::{Checker, Model, Property};

use super::*;
use crate::model::walk::walk;

struct Cluster(World);

impl Model for Cluster {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![self.0.clone()]
    }

    fn actions(&self, state: &World, actions: &mut Vec<Action>) {
        actions.extend(state.actions());
    }

    fn next_state(&self, state: &World, action: Action) -> Option<World> {
        let mut next = state.clone();
        next.act(action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("nothing is found", |_, world: &World| {
            world.finding.is_none()
        })]
    }
}

fn from_env(name: &str, default: usize) -> usize {
    match std::env::var(name) {
        Ok(value) => value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is {value:?}, which is no number")),
        Err(_) => default,
    }
}

pub(super) const NONE: Budget = Budget {
    partitions: 1,
    appends: 0,
    epochs: 1,
    crashes: 0,
    breaks: 0,
    rots: 0,
    tears: 0,
    stops: 0,
    doubts: 0,
    overtakes: 0,
    unknowns: 0,
    silences: 0,
    hand_overs: 0,
    timers: 0,
};

/// All states within the bounds, or as many as are allowed. Returns how many there were.
fn explore(budget: Budget, states_max: usize) -> usize {
    let cluster = Cluster(World::new(Rules::default(), budget));
    let checker = cluster
        .checker()
        .target_state_count(states_max)
        .spawn_bfs()
        .join();
    if let Some(path) = checker.discovery("nothing is found") {
        let actions = path.into_actions();
        let found = super::walk::replay(&World::new(Rules::default(), budget), &actions);
        panic!("{found:?} after {actions:?}");
    }
    checker.unique_state_count()
}

#[test]
fn nothing_is_found_in_small_clusters() {
    let states_max = from_env("HEADWATER_MODEL_STATES", 60_000);
    let one = Budget {
        appends: 1,
        epochs: 2,
        ..NONE
    };
    let bounds = [
        ("two epochs", one),
        ("a crash", Budget { crashes: 1, ..one }),
        ("a broken link", Budget { breaks: 1, ..one }),
        (
            "a removal",
            Budget {
                silences: 1,
                epochs: 1,
                unknowns: 1,
                ..one
            },
        ),
        ("a damaged disk", Budget { rots: 1, ..one }),
    ];
    for (name, budget) in bounds {
        let states = explore(budget, states_max);
        assert!(states > 100, "{name}: only {states} states");
    }
}

pub(super) fn walks() -> u64 {
    from_env("HEADWATER_MODEL_WALKS", 10_000) as u64
}

pub(super) fn walks_of_controls() -> u64 {
    from_env("HEADWATER_MODEL_WALKS", 20_000) as u64
}

pub(super) fn faults(seed: u64) -> Budget {
    let of = |bit: u64| u8::from(seed >> bit & 1 == 1);
    Budget {
        partitions: 1 + of(11),
        appends: 4,
        epochs: 4 + of(0),
        crashes: 1 + 2 * of(1),
        breaks: 2 * of(2),
        rots: of(3) & of(4),
        tears: of(3) & (1 - of(4)),
        stops: 2 * of(10),
        doubts: 2 * of(8),
        overtakes: 2 * of(9),
        unknowns: 2 * of(5),
        silences: 3 * of(6),
        hand_overs: of(7),
        timers: 2,
    }
}

#[test]
fn nothing_is_found_on_random_walks() {
    for seed in 0..walks() {
        let start = World::new(Rules::default(), faults(seed));
        if let Some((finding, actions)) = walk(&start, seed, 150) {
            panic!(
                "{finding:?} with seed {seed}, {:?}, after {actions:?}",
                start.budget
            );
        }
    }
}
