//! After the faults: with all nodes up and all links whole the shard serves again, and commits a new record.

use super::walk::Random;
use super::*;

impl World {
    /// One round of what a cluster without faults does: everything arrives, deadlines come where they are due.
    fn breathe(&mut self, is_long: bool) {
        for at in 0..NODES {
            self.act(Action::Start(at));
            self.act(Action::Watch(at));
            self.act(Action::Read(at));
            self.act(Action::Stand(at));
        }
        while !self.flights.is_empty() {
            self.act(Action::Land(0));
        }
        for at in 0..NODES {
            let Some(life) = &self.nodes[at].life else {
                continue;
            };
            let shard = &life.shard;
            let silent: Vec<_> = (0..NODES)
                .filter(|other| shard.is_silent(&member(*other)))
                .collect();
            let leads = |leader: &Member| {
                let life = self.nodes[index(leader)].life.as_ref();
                life.is_some_and(|life| {
                    life.shard.is_leading() && life.shard.epoch() == shard.epoch()
                })
            };
            let has_lost_leader = shard.hears().is_some_and(|leader| !leads(leader));
            let (is_asking, is_waiting) = (shard.is_asking(), shard.is_between_rounds());
            for other in silent {
                self.act(Action::Heard(at, other));
            }
            if has_lost_leader {
                self.act(Action::Grace(at));
            }
            if is_asking {
                self.act(Action::Round(at));
            }
            if is_waiting {
                self.act(Action::Retry(at));
                if is_long {
                    self.act(Action::Long(at));
                }
            }
            self.act(Action::Beacon(at));
            self.act(Action::Follow(at));
            (0..PARTITIONS).for_each(|partition| self.act(Action::Sync(at, partition)));
        }
        for _ in 0..4 {
            for from in 0..NODES {
                (0..NODES).for_each(|to| self.act(Action::DeliverAll(from, to)));
            }
            for at in 0..NODES {
                self.act(Action::Stand(at));
                self.act(Action::Read(at));
                (0..PARTITIONS).for_each(|partition| self.act(Action::Sync(at, partition)));
            }
        }
    }

    /// Whether a record that is appended after the faults is committed within some rounds.
    pub(super) fn heals(&self) -> Result<(), String> {
        let mut world = self.clone();
        let committed = |world: &World| world.committed[0].iter().flatten().count();
        let before = committed(&world);
        world.shown[0].resize(128, None);
        world.committed[0].resize(128, None);
        for round in 0..60 {
            world.breathe(round > 30);
            if let Some(at) = (0..NODES).find(|at| world.serves(*at)) {
                world.act(Action::Append(at, 0));
            }
            let is_done = committed(&world) > before;
            if is_done && (0..NODES).any(|at| world.serves(at)) && world.finding.is_none() {
                return Ok(());
            }
        }
        Err(world.summary())
    }

    /// The state of each node and of the key, short enough to read.
    fn summary(&self) -> String {
        let mut lines = vec![format!(
            "key {:?}, {} on their way",
            self.key,
            self.flights.len()
        )];
        for node in &self.nodes {
            let shard = node.life.as_ref().map(|life| &life.shard);
            lines.push(format!(
                "{:?}, {:?} durable: {shard:?}",
                node.disk.logs, node.disk.durable
            ));
        }
        lines.join("\n")
    }
}

/// A world after random faults.
pub(super) fn after_faults(seed: u64, budget: Budget, steps: usize) -> World {
    let mut world = World::new(Rules::default(), budget);
    let mut random = Random(seed);
    for _ in 0..steps {
        let actions = world.actions();
        if actions.is_empty() {
            break;
        }
        world.act(actions[random.below(actions.len())]);
    }
    world
}

#[test]
fn a_shard_goes_on_after_faults() {
    for seed in 0..super::check::walks() / 4 {
        // Losses that nobody notices may leave a cluster to a person, by design, and a link keeps the order of what it
        // carries: a batch that came before its `Align` would be dropped, and nobody would ask for it again.
        let budget = Budget {
            tears: 0,
            overtakes: 0,
            ..super::check::faults(seed)
        };
        let world = after_faults(seed, budget, 60);
        assert_eq!(world.finding, None, "seed {seed}");
        if let Err(summary) = world.heals() {
            panic!(
                "seed {seed} stays without a leader:
{summary}"
            );
        }
    }
}
