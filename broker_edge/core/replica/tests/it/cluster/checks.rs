//! What must hold: nothing acknowledged is lost or changed, one offset names one payload, an epoch has one leader.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use headwater_cluster::marks::{Epoch, Trust};
use headwater_log::{Offset, Partition, ReadError};

use super::node::{self, Node};
use super::{Checked, NODES, PARTITIONS, World};

type At = (usize, u64);

#[derive(Default)]
pub(crate) struct Checks {
    pub acknowledged: BTreeMap<At, Vec<u8>>,
    /// What any reader saw.
    shown: BTreeMap<At, Vec<u8>>,
    pub leaders: BTreeMap<Epoch, (usize, u64)>,
    /// By partition: up to where a leader has removed records.
    pub removed_to: [u64; PARTITIONS],
}

fn text(payload: &[u8]) -> String {
    String::from_utf8_lossy(&payload[..payload.len().min(24)]).into_owned()
}

fn same(map: &mut BTreeMap<At, Vec<u8>>, at: At, payload: &[u8]) -> Result<(), String> {
    match map.entry(at) {
        Entry::Vacant(free) => {
            free.insert(payload.to_vec());
            Ok(())
        }
        Entry::Occupied(known) if *known.get() == payload => Ok(()),
        Entry::Occupied(known) => Err(format!(
            "partition {} offset {} has two payloads: {:?} and {:?}",
            at.0,
            at.1,
            text(known.get()),
            text(payload)
        )),
    }
}

impl Checks {
    pub fn acknowledge(&mut self, partition: usize, offset: u64, payload: Vec<u8>) -> Checked {
        same(&mut self.shown, (partition, offset), &payload)?;
        same(&mut self.acknowledged, (partition, offset), &payload)
    }
}

/// All records of `[from, high watermark)`.
fn read(partition: &Partition, from: u64) -> Result<Vec<(u64, Vec<u8>)>, ReadError> {
    let (mut found, mut next) = (Vec::new(), from);
    while next < partition.high_watermark().0 {
        let batches = partition.read(Offset(next), 64 << 10)?;
        for batch in &batches {
            let records = batch.records().filter(|record| record.offset.0 >= next);
            found.extend(records.map(|record| (record.offset.0, record.payload.to_vec())));
        }
        match batches.last() {
            Some(batch) => next = batch.next_offset().0,
            None => break,
        }
    }
    Ok(found)
}

impl World {
    /// Reads what is new at a node, and looks who leads.
    pub(super) fn check_node(&mut self, at: usize) -> Checked {
        let files = self.nodes[at].files.clone();
        let Some(life) = &mut self.nodes[at].life else {
            return Ok(());
        };
        let shard = life.replica.shard();
        if shard.is_leading() {
            let me = (at, life.number);
            let leader = *self.checks.leaders.entry(shard.epoch()).or_insert(me);
            if leader != me {
                let names = [leader.0, at].map(node::name);
                return Err(format!(
                    "epoch {} has two leaders: {names:?}",
                    shard.epoch()
                ));
            }
        }
        for partition in 0..PARTITIONS {
            let one = &life.replica.log().partitions()[partition];
            let from = life.read_to[partition].max(one.log_start().0);
            if one.high_watermark().0 <= from {
                continue;
            }
            // A disk that fails a read says nothing about the records.
            let read = files.aside(|| read(one, from));
            let Ok(records) = read else {
                continue;
            };
            life.read_to[partition] = one.high_watermark().0;
            for (offset, payload) in records {
                same(&mut self.checks.shown, (partition, offset), &payload)
                    .map_err(|error| format!("{} shows that {error}", node::name(at)))?;
            }
        }
        Ok(())
    }

    /// Whoever serves has everything that was acknowledged.
    pub(super) fn check_office(&self, at: usize, epoch: Epoch) -> Checked {
        // One that was deposed and does not know it yet commits nothing more.
        let newest = self.checks.leaders.last_key_value();
        if newest.is_some_and(|(newest, _)| *newest > epoch) {
            return Ok(());
        }
        self.check_all(at, "opens its office")
    }

    /// Who has an office and has not paused it.
    pub(super) fn serving(&self) -> Option<usize> {
        let serves = |node: &node::Node| {
            let life = node.life.as_ref();
            life.is_some_and(|life| life.office.is_some() && !life.is_paused)
        };
        self.nodes.iter().position(serves)
    }

    pub(super) fn check_office_of(&self, at: usize) -> Checked {
        self.check_all(at, "serves")
    }

    fn check_all(&self, at: usize, when: &str) -> Checked {
        let Some(life) = &self.nodes[at].life else {
            return Ok(());
        };
        for (number, partition) in life.replica.log().partitions().iter().enumerate() {
            let start = partition.log_start().0;
            let lost = |what: String| Err(format!("{} {when} and {what}", node::name(at)));
            if start > self.checks.removed_to[number] {
                return lost(format!(
                    "partition {number} begins at {start}, which nobody wanted"
                ));
            }
            let files = &self.nodes[at].files;
            let found = match files.aside(|| read(partition, start)) {
                Ok(found) => found,
                Err(error) => return lost(format!("partition {number} cannot be read: {error}")),
            };
            let found: BTreeMap<u64, Vec<u8>> = found.into_iter().collect();
            let expected = self
                .checks
                .acknowledged
                .range((number, start)..(number + 1, 0));
            for ((_, offset), payload) in expected {
                match found.get(offset) {
                    None => {
                        return lost(format!(
                            "partition {number} lacks offset {offset}, {:?}",
                            text(payload)
                        ));
                    }
                    Some(other) if other != payload => {
                        return lost(format!(
                            "partition {number} has {:?} at {offset}, not {:?}",
                            text(other),
                            text(payload)
                        ));
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Everybody is sound, has everything, and one serves.
    /// Everybody lives, and nobody may lead because no member of the set is sound.
    pub(super) fn is_left_to_a_person(&self) -> bool {
        let in_set = |node: &&Node| self.etcd.has_in_sync(&node.member());
        let mut of_set = self.nodes.iter().filter(in_set);
        let is_doubtful = |node: &Node| {
            let life = node.life.as_ref();
            life.is_some_and(|life| life.replica.shard().trust() != Trust::Sound)
        };
        self.client.is_undecided && of_set.all(is_doubtful)
    }

    pub(super) fn is_quiet(&self) -> bool {
        let lives: Vec<_> = self
            .nodes
            .iter()
            .filter_map(|node| node.life.as_ref())
            .collect();
        if lives.len() < NODES || self.etcd.in_sync() < NODES {
            return false;
        }
        let serving = lives
            .iter()
            .filter(|life| life.office.is_some() && !life.is_paused);
        let marks = |partition: usize| {
            let of = lives.iter().map(move |life| {
                let held = life.replica.shard().partition(partition);
                (held.high_watermark, held.synced, held.end)
            });
            of.collect::<Vec<_>>()
        };
        let are_equal = (0..PARTITIONS).all(|partition| {
            let marks = marks(partition);
            marks
                .iter()
                .all(|(high, synced, end)| high == synced && synced == end && *high == marks[0].0)
        });
        serving.count() == 1
            && are_equal
            && lives
                .iter()
                .all(|life| life.replica.shard().trust() == Trust::Sound)
    }

    /// All three have the same, and all that was acknowledged.
    pub(super) fn check_end(&self) -> Checked {
        (0..NODES).try_for_each(|at| self.check_all(at, "is healed"))?;
        for number in 0..PARTITIONS {
            let mut all = Vec::new();
            for node in &self.nodes {
                let Some(life) = &node.life else {
                    continue;
                };
                let partition = &life.replica.log().partitions()[number];
                let start = self.checks.removed_to[number].max(partition.log_start().0);
                all.push(
                    node.files
                        .aside(|| read(partition, start))
                        .map_err(|error| error.to_string())?,
                );
            }
            if all.iter().any(|one| *one != all[0]) {
                return Err(format!("the copies of partition {number} differ"));
            }
        }
        Ok(())
    }
}
