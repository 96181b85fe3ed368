//! Random walks through the model, and the shortest part of one that still finds something.

use super::*;

/// A generator of its own, so that a seed means the same walk everywhere (splitmix64).
pub(super) struct Random(pub u64);

impl Random {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

/// How likely an action is, so that walks get somewhere before the faults are used up.
fn weight(action: Action) -> usize {
    match action {
        Action::DeliverAll(..) | Action::Land(_) | Action::Start(_) => 12,
        Action::Stand(_) | Action::Read(_) => 12,
        Action::Sync(..) | Action::Append(..) | Action::Watch(_) | Action::Round(_) => 8,
        Action::Deliver(..) | Action::Retry(_) => 4,
        Action::Grace(_) | Action::Heard(..) | Action::Silent(..) => 2,
        _ => 1,
    }
}

/// One walk. Returns what it did when it found something.
pub(super) fn walk(start: &World, seed: u64, steps: usize) -> Option<(Finding, Vec<Action>)> {
    let (mut world, mut random, mut done) = (start.clone(), Random(seed), Vec::new());
    for _ in 0..steps {
        let actions = world.actions();
        let total: usize = actions.iter().map(|action| weight(*action)).sum();
        if total == 0 {
            return None;
        }
        let mut at = random.below(total);
        let chosen = actions.into_iter().find(|action| {
            let weight = weight(*action);
            let is_here = at < weight;
            at = at.saturating_sub(weight);
            is_here
        })?;
        world.act(chosen);
        done.push(chosen);
        if let Some(finding) = world.finding() {
            return Some((finding, shorten(start, done)));
        }
    }
    None
}

pub(super) fn replay(start: &World, actions: &[Action]) -> Option<Finding> {
    let mut world = start.clone();
    actions.iter().find_map(|action| {
        if world.actions().contains(action) {
            world.act(*action);
        }
        world.finding()
    })
}

/// Leaves out whatever is not needed to find something.
fn shorten(start: &World, mut actions: Vec<Action>) -> Vec<Action> {
    loop {
        let before = actions.len();
        for width in [8, 4, 2, 1] {
            let mut at = 0;
            while at + width <= actions.len() {
                let mut fewer = actions.clone();
                fewer.drain(at..at + width);
                if replay(start, &fewer).is_some() {
                    actions = fewer;
                } else {
                    at += 1;
                }
            }
        }
        if actions.len() == before {
            return actions;
        }
    }
}
