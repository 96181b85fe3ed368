//! Puts this node among the replicas of the shard: founds the shard when all nodes have started for the first time, and
//! takes the place of a folder that was replaced.
//!
//! Who leads and who is in sync is written by leaders and candidates alone.

use std::collections::BTreeSet;

use headwater_cluster::key::{REPLICAS_MAX, Revision, ShardKey};
use headwater_cluster::marks::{Epoch, Member, Node};
use headwater_cluster::member_key::MemberKey;
use headwater_etcd::KeyValue;

use super::keys::{Keys, Meta};

/// What is to be done about `shards/0`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// This node is one of the replicas.
    Done,
    Write {
        expected: Revision,
        key: ShardKey,
    },
    /// In one sentence: what has to happen first.
    Wait(String),
}

/// The keys of the cluster, as read at one revision. `is_new`: this node has taken no record in its life.
pub fn step(keys: &Keys, meta: &Meta, me: &Member, is_new: bool, found: &[KeyValue]) -> Step {
    let members = members(keys, found);
    let shard = found.iter().find(|one| one.key == keys.shard());
    let Some(shard) = shard else {
        return first(meta, &members, is_new);
    };
    let key = match ShardKey::decode(&shard.value) {
        Ok(key) => key,
        Err(error) => {
            return Step::Wait(format!("the value of {} is not used: {error}", shard.key));
        }
    };
    if key.replicas.contains(me) {
        return Step::Done;
    }
    let is_gone = |one: &Member| {
        !key.in_sync.contains(one) && members.iter().any(|it| it.node == one.node && it != one)
    };
    let mut wanted = key.clone();
    wanted.replicas.retain(|one| !is_gone(one));
    wanted.replicas.insert(me.clone());
    if wanted.replicas.len() > REPLICAS_MAX {
        return Step::Wait(format!(
            "the shard has {} replicas already, and those of replaced folders are still in sync",
            key.replicas.len()
        ));
    }
    Step::Write {
        expected: shard.revision,
        key: wanted,
    }
}

/// The shard of a new cluster, once all of its nodes are there.
fn first(meta: &Meta, members: &BTreeSet<Member>, is_new: bool) -> Step {
    if !is_new {
        return Step::Wait(
            "etcd has no key of the shard, but this node has records of it: was etcd emptied?"
                .to_owned(),
        );
    }
    let is_there = |name: &&String| members.iter().any(|one| one.node.as_str() == **name);
    let missing: Vec<_> = meta.nodes.iter().filter(|name| !is_there(name)).collect();
    if !missing.is_empty() {
        let missing: Vec<_> = missing.into_iter().map(String::as_str).collect();
        return Step::Wait(format!(
            "the cluster begins when each of its nodes has started once; missing: {}",
            missing.join(", ")
        ));
    }
    let named = members.iter().filter(|one| meta.names(&one.node));
    let replicas: BTreeSet<_> = named.cloned().collect();
    Step::Write {
        expected: Revision(0),
        key: ShardKey {
            in_sync: replicas.clone(),
            replicas,
            leader: None,
            epoch: Epoch(0),
            committed: 0,
        },
    }
}

fn members(keys: &Keys, found: &[KeyValue]) -> BTreeSet<Member> {
    let member = |one: &KeyValue| -> Option<Member> {
        let node: Node = keys.member_of(&one.key)?;
        let disk = MemberKey::decode(&one.value, &node).ok()?.disk;
        Some(Member { node, disk })
    };
    found.iter().filter_map(member).collect()
}

#[cfg(test)]
mod tests {
    use headwater_cluster::marks::{DiskId, Starts};
    use headwater_log::LogId;

    use super::*;

    fn node(name: &str) -> Node {
        Node::new(name).expect("a name")
    }

    fn member(name: &str, disk: u64) -> Member {
        Member {
            node: node(name),
            disk: DiskId(disk),
        }
    }

    struct Etcd {
        keys: Keys,
        meta: Meta,
        found: Vec<KeyValue>,
    }

    impl Etcd {
        fn new(members: &[Member]) -> Self {
            let keys = Keys::new(&node("berlin"));
            let nodes = ["a", "b", "c"].map(node);
            let mut etcd = Self {
                meta: Meta::new(LogId::from_bytes([7; 16]), &nodes),
                keys,
                found: Vec::new(),
            };
            for member in members {
                let (disk, starts) = (member.disk, Starts(1));
                let value = MemberKey { disk, starts }.encode(&member.node);
                etcd.put(etcd.keys.member(&member.node), value);
            }
            etcd
        }

        fn put(&mut self, key: String, value: String) {
            self.found.push(KeyValue {
                key,
                revision: Revision(9),
                value: value.into_bytes(),
                lease: None,
            });
        }

        fn with_shard(mut self, replicas: &[Member], in_sync: &[Member]) -> Self {
            let key = ShardKey {
                replicas: replicas.iter().cloned().collect(),
                in_sync: in_sync.iter().cloned().collect(),
                leader: None,
                epoch: Epoch(4),
                committed: 5,
            };
            self.put(self.keys.shard(), key.encode());
            self
        }

        fn step(&self, me: &Member, is_new: bool) -> Step {
            step(&self.keys, &self.meta, me, is_new, &self.found)
        }
    }

    fn replicas(step: Step) -> (Revision, Vec<Member>, ShardKey) {
        match step {
            Step::Write { expected, key } => {
                (expected, key.replicas.iter().cloned().collect(), key)
            }
            other => panic!("{other:?}"),
        }
    }

    fn wait(step: Step) -> String {
        match step {
            Step::Wait(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_shard_begins_with_all_nodes_and_not_before() {
        let all = [member("a", 1), member("b", 2), member("c", 3)];
        let some = Etcd::new(&all[..2]).step(&all[0], true);
        assert!(wait(some).contains("missing: c"));
        let (expected, members, key) = replicas(Etcd::new(&all).step(&all[0], true));
        assert_eq!((expected, members), (Revision(0), all.to_vec()));
        assert_eq!((key.in_sync.len(), key.epoch), (3, Epoch(0)));
        // A key that was deleted is not made anew by somebody who has records.
        assert!(wait(Etcd::new(&all).step(&all[0], false)).contains("was etcd emptied"));
    }

    #[test]
    fn a_replaced_folder_is_added_and_the_old_one_removed_once_it_is_not_in_sync() {
        let (a, old, new, c) = (
            member("a", 1),
            member("b", 2),
            member("b", 7),
            member("c", 3),
        );
        let all = [a.clone(), old.clone(), c.clone()];
        let members = [a.clone(), new.clone(), c.clone()];
        let etcd = Etcd::new(&members).with_shard(&all, &all);
        let (expected, found, key) = replicas(etcd.step(&new, true));
        assert_eq!((expected, found.len()), (Revision(9), 4));
        assert_eq!(
            (key.in_sync.len(), key.epoch, key.committed),
            (3, Epoch(4), 5)
        );
        let in_sync = [a.clone(), c.clone()];
        let etcd = Etcd::new(&members).with_shard(&all, &in_sync);
        let (_, found, _) = replicas(etcd.step(&new, true));
        assert_eq!(found, members);
        assert_eq!(etcd.step(&a, false), Step::Done);
    }

    #[test]
    fn a_shard_has_at_most_four_replicas() {
        let (a, b, c) = (member("a", 1), member("b", 2), member("c", 3));
        let (b2, c2) = (member("b", 8), member("c", 9));
        let all = [a.clone(), b.clone(), c.clone(), b2.clone()];
        let etcd = Etcd::new(&[a, b2, c2.clone()]).with_shard(&all, &all[..3]);
        // The second of b is no member that was replaced.
        assert!(wait(etcd.step(&c2, true)).contains("4 replicas"));
    }
}
