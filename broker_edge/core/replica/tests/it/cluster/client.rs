//! A client that appends at whoever has an office, and notes what was acknowledged.

use std::collections::VecDeque;

use headwater_cluster::marks::Epoch;
use headwater_log::{RecordMeta, Records};

use super::{Checked, Happening, NODES, PARTITIONS, Sabotage, World, node};

/// An append that waits for its acknowledgement.
struct Waiting {
    epoch: Epoch,
    partition: usize,
    first: u64,
    payloads: Vec<Vec<u8>>,
}

#[derive(Default)]
pub(crate) struct Client {
    /// By node.
    waiting: [VecDeque<Waiting>; NODES],
    made: u64,
    pub faults: usize,
    pub anew: usize,
    pub unread: usize,
    /// Since everything was healed, a replica has said that nobody may lead.
    pub is_undecided: bool,
}

impl Client {
    /// The connections of this node are closed.
    pub fn forget(&mut self, at: usize) {
        self.waiting[at].clear();
    }
}

fn records(payloads: &[Vec<u8>]) -> Records {
    let mut records = Records::new();
    let topic = records.topic("devices/1/telemetry", 8..9).unwrap();
    let client = records.client("client").unwrap();
    for payload in payloads {
        records
            .push(RecordMeta::new(topic, client, 1), payload)
            .unwrap();
    }
    records
}

impl World {
    pub(super) fn append(&mut self) -> Checked {
        let delay_ms = match self.is_healed {
            true => self.between(200, 400),
            false => self.between(5, 150),
        };
        self.after(delay_ms, Happening::Append);
        let at = self.random.below(NODES);
        let is_served = |world: &Self, at: usize| {
            let node = &world.nodes[at];
            node.paused_until_ms <= world.now_ms
                && node
                    .life
                    .as_ref()
                    .is_some_and(|one| one.office.is_some() && !one.is_paused)
        };
        // Mostly who serves, but also one who only believes so.
        let Some(at) = (0..NODES)
            .map(|step| (at + step) % NODES)
            .find(|at| is_served(self, *at))
        else {
            return Ok(());
        };
        // The lease is looked at before clients are served.
        let number = self.nodes[at].life.as_ref().map_or(0, |life| life.number);
        self.with_life(at, number, |node, now_ms| {
            node.life.as_mut().expect("it lives").replica.tick(now_ms);
        })?;
        if !is_served(self, at) {
            return Ok(());
        }
        let partition = self.random.below(PARTITIONS);
        let (count, length) = (self.between(1, 3), [8, 60, 900, 5000][self.random.below(4)]);
        let payloads: Vec<_> = (0..count)
            .map(|_| {
                self.client.made += 1;
                let text = format!("{} by {}, ", self.client.made, node::name(at));
                text.bytes()
                    .cycle()
                    .take(text.len().max(length))
                    .collect::<Vec<u8>>()
            })
            .collect();
        let is_inline = self.random.chance(1);
        let (mut waiting, at_node) = (None, at);
        self.with_life(at, number, |node, now_ms| {
            let life = node.life.as_mut().expect("it lives");
            let one = &life.replica.log().partitions()[partition];
            let appended = match is_inline {
                true => one.append_inline(records(&payloads)),
                false => one.append(records(&payloads)),
            };
            if let (Ok(range), Some(epoch)) = (appended, life.office) {
                waiting = Some(Waiting {
                    epoch,
                    partition,
                    first: range.start.0,
                    payloads,
                });
            }
            life.replica.look(now_ms);
        })?;
        if let Some(waiting) = waiting.filter(|_| self.nodes[at_node].is_alive(number)) {
            self.client.waiting[at].push_back(waiting);
        }
        self.settle_appends(at)
    }

    /// Acknowledges what is committed in the epoch in which it was appended.
    pub(super) fn settle_appends(&mut self, at: usize) -> Checked {
        let Some(life) = &self.nodes[at].life else {
            return Ok(());
        };
        let (shard, partitions) = (life.replica.shard(), life.replica.log().partitions());
        let mut done = Vec::new();
        self.client.waiting[at].retain(|one| {
            let partition = &partitions[one.partition];
            let to = match self.plan.sabotage {
                Sabotage::AckAtLeader => partition.synced(),
                _ => partition.high_watermark(),
            };
            let is_led = shard.is_leading() && shard.epoch() == one.epoch;
            let is_done = is_led && to.0 >= one.first + one.payloads.len() as u64;
            if is_done {
                done.push((one.partition, one.first, one.payloads.clone()));
            }
            !is_done
        });
        for (partition, first, payloads) in done {
            for (offset, payload) in (first..).zip(payloads) {
                self.checks.acknowledge(partition, offset, payload)?;
            }
        }
        Ok(())
    }
}
