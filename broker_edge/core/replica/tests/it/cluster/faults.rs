//! What goes wrong, and how it ends.

use headwater_replica::Input;

use super::{Checked, Happening, NODES, PARTITIONS, World, node};
use crate::sim::Fault;

/// Which kinds of faults a run has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    pub crashes: bool,
    pub links: bool,
    pub etcd: bool,
    pub disks: bool,
}

impl Faults {
    pub const NONE: Self = Self {
        crashes: false,
        links: false,
        etcd: false,
        disks: false,
    };
    pub const ALL: Self = Self {
        crashes: true,
        links: true,
        etcd: true,
        disks: true,
    };
    pub const CRASHES: Self = Self {
        disks: false,
        ..Self::ALL
    };
}

#[derive(Debug)]
pub(crate) enum Mend {
    Way(usize, usize),
    Slow(usize),
    Room(usize),
}

impl World {
    pub(super) fn trouble(&mut self) -> Checked {
        if self.is_healed || self.plan.faults == Faults::NONE {
            return Ok(());
        }
        let most = [400, 2500, 9000][(self.plan.seed / 4 % 3) as usize];
        let delay_ms = self.between(20, most);
        self.after(delay_ms, Happening::Trouble);
        self.client.faults += 1;
        let at = self.random.below(NODES);
        let faults = self.plan.faults;
        let kind = self.random.below(16);
        match kind {
            0..=4 if faults.crashes => self.crash(at, kind),
            5..=8 if faults.links => {
                self.cut(at, kind);
                Ok(())
            }
            9 if faults.etcd => {
                let away_ms = self.between(300, 8000);
                self.etcd.away_until_ms = self.now_ms + away_ms;
                self.note(|| format!("etcd is away for {away_ms} ms"));
                Ok(())
            }
            10 if faults.links => {
                let pause_ms = self.between(500, 9000);
                self.nodes[at].paused_until_ms = self.now_ms + pause_ms;
                self.note(|| format!("{} is stopped for {pause_ms} ms", node::name(at)));
                Ok(())
            }
            11 if faults.crashes => self.planned(at),
            12 => self.remove_old(),
            13..=15 if faults.disks => {
                self.spoil(at);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn crash(&mut self, at: usize, kind: usize) -> Checked {
        let all = kind == 4 && self.random.chance(3);
        let nodes = match all {
            true => (0..NODES).collect(),
            false => vec![at],
        };
        for at in nodes {
            match kind {
                0 => {
                    let nth = self.between(1, 40);
                    self.nodes[at].files.cut_before(nth);
                    self.note(|| format!("{} dies before its call {nth} from now", node::name(at)));
                }
                _ => {
                    let is_power = kind >= 3;
                    self.note(|| {
                        format!(
                            "{} {}",
                            node::name(at),
                            ["is killed", "loses its power"][usize::from(is_power)]
                        )
                    });
                    self.end(at, is_power);
                    let delay_ms = match self.random.chance(6) {
                        true => self.between(50, 2500),
                        false => self.between(2000, 15_000),
                    };
                    self.after(delay_ms, Happening::Start(at));
                }
            }
        }
        Ok(())
    }

    fn cut(&mut self, at: usize, kind: usize) {
        let other = (at + 1 + self.random.below(NODES - 1)) % NODES;
        if kind == 5 {
            self.note(|| {
                format!(
                    "the link of {} and {} is reset",
                    node::name(at),
                    node::name(other)
                )
            });
            return self.break_link(at, other);
        }
        let ways = match kind {
            6 => vec![(at, other)],
            7 => vec![(at, other), (other, at)],
            _ => (0..NODES)
                .filter(|one| *one != at)
                .flat_map(|one| [(at, one), (one, at)])
                .collect(),
        };
        let cut_ms = self.between(200, 8000);
        for (from, to) in ways {
            self.note(|| {
                format!(
                    "nothing arrives from {} at {} for {cut_ms} ms",
                    node::name(from),
                    node::name(to)
                )
            });
            self.links.stuck.insert((from, to));
            self.after(cut_ms, Happening::Mend(Mend::Way(from, to)));
            if self.random.chance(3) {
                self.break_link(from, to);
            }
        }
    }

    fn planned(&mut self, at: usize) -> Checked {
        let other = (at + 1 + self.random.below(NODES - 1)) % NODES;
        let Some(number) = self.nodes[at].life.as_ref().map(|life| life.number) else {
            return Ok(());
        };
        if self.nodes[at].paused_until_ms > self.now_ms {
            return Ok(());
        }
        if self.random.chance(4) {
            let to = self.nodes[other].member();
            self.note(|| {
                format!(
                    "{} is to hand over to {}",
                    node::name(at),
                    node::name(other)
                )
            });
            return self.give(at, number, Input::HandOver { to });
        }
        self.note(|| format!("{} is to stop", node::name(at)));
        self.stop_orderly(at)
    }

    /// The leader removes what is old.
    fn remove_old(&mut self) -> Checked {
        for at in 0..NODES {
            let Some(life) = self.nodes[at]
                .life
                .as_ref()
                .filter(|life| life.office.is_some() && life.replica.shard().is_leading())
            else {
                continue;
            };
            let number = life.number;
            let partition = self.random.below(PARTITIONS);
            let one = life.replica.log().partitions()[partition].clone();
            let to = one.high_watermark().0 * self.between(2, 9) / 10;
            self.with_life(at, number, |node, now_ms| {
                one.advance_log_start(headwater_log::Offset(to));
                node.life.as_mut().expect("it lives").replica.look(now_ms);
            })?;
            let start = one.log_start().0;
            let removed = &mut self.checks.removed_to[partition];
            *removed = start.max(*removed);
            self.note(|| {
                format!(
                    "{} removes partition {partition} below {start}",
                    node::name(at)
                )
            });
        }
        Ok(())
    }

    fn spoil(&mut self, at: usize) {
        let name = node::name(at);
        let kind = self.random.below(4);
        match kind {
            0 => {
                let faults = [Fault::LostSync, Fault::Error, Fault::Short, Fault::Full];
                let (fault, nth) = (faults[self.random.below(4)], self.between(1, 60));
                self.note(|| format!("{name}: call {nth} from now fails with {fault:?}"));
                self.nodes[at].files.fail_call(nth, fault);
            }
            1 => {
                let (slow_ms, for_ms) = (self.between(100, 3000), self.between(1000, 6000));
                self.note(|| format!("{name}: its disk takes {slow_ms} ms for {for_ms} ms"));
                self.nodes[at].slow_ms = slow_ms;
                self.after(for_ms, Happening::Mend(Mend::Slow(at)));
            }
            2 => {
                let for_ms = self.between(500, 8000);
                self.note(|| format!("{name}: its disk is full for {for_ms} ms"));
                let bytes = self.random.below(20_000);
                self.nodes[at].files.set_free(Some(bytes));
                self.after(for_ms, Happening::Mend(Mend::Room(at)));
            }
            _ => {
                self.note(|| format!("{name}: all syncs fail"));
                self.nodes[at].files.fail_syncs(true);
            }
        }
    }

    pub(super) fn mend(&mut self, mend: Mend) {
        match mend {
            Mend::Way(from, to) => self.free(from, to),
            Mend::Slow(at) => self.nodes[at].slow_ms = 0,
            Mend::Room(at) => self.nodes[at].files.set_free(None),
        }
    }

    /// From here on nothing goes wrong any more.
    pub(super) fn heal(&mut self) {
        self.note(|| "everything is healed".to_owned());
        self.is_healed = true;
        self.etcd.away_until_ms = 0;
        for at in 0..NODES {
            self.nodes[at].files.cancel_cut();
            self.nodes[at].files.fail_syncs(false);
            self.mend(Mend::Slow(at));
            self.mend(Mend::Room(at));
            for to in (0..NODES).filter(|to| *to != at) {
                self.free(at, to);
            }
            self.after(1, Happening::Start(at));
        }
    }
}
