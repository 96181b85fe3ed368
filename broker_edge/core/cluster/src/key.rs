//! The value of `shards/<n>` in etcd: who leads a shard, in which epoch, and who is in sync.
//!
//! It changes only by compare-and-swap on its revision, so a successful write excludes every older one that is still on
//! its way. JSON of at most 1 KiB, so that a person can read it with `etcdctl`.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::marks::{Epoch, Life, Member, Starts};

/// Replicas of a shard: three, and a fourth while one is replaced.
pub const REPLICAS_MAX: usize = 4;
/// Bytes of the value of a shard's key.
pub const BYTES_MAX: usize = 1024;

/// etcd's `mod_revision` of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision(pub u64);

/// One life of a replica. A leader that restarts does not lead on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Leader {
    pub member: Member,
    pub starts: Starts,
}

impl Leader {
    #[must_use]
    pub fn life(&self) -> Life {
        Life {
            disk: self.member.disk,
            starts: self.starts,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ShardKey {
    /// All that have a copy, or are getting one.
    pub replicas: BTreeSet<Member>,
    /// `None` before the first election.
    pub leader: Option<Leader>,
    pub epoch: Epoch,
    /// Nothing is committed without these. Part of `replicas`.
    pub in_sync: BTreeSet<Member>,
    /// Sum of the high watermarks of all partitions when the key was written. A log with fewer offsets has lost some.
    pub committed: u64,
}

/// Why the value of a key is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("it has {0} bytes; a shard's key has at most {BYTES_MAX}")]
    Length(usize),
    #[error("it is not the JSON of a shard's key: {0}")]
    Json(String),
    #[error("it names {0} replicas; a shard has 1 to {REPLICAS_MAX}")]
    Replicas(usize),
    #[error("the in-sync set is empty or names a node that is no replica")]
    InSync,
    #[error("it names a leader that is not in sync")]
    Leader,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    replicas: Vec<String>,
    leader: Option<WireLeader>,
    epoch: u64,
    isr: Vec<String>,
    committed: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireLeader {
    member: String,
    starts: u64,
}

impl ShardKey {
    /// The value to write. At most [`BYTES_MAX`] bytes when there are at most [`REPLICAS_MAX`] replicas.
    #[must_use]
    pub fn encode(&self) -> String {
        let names = |set: &BTreeSet<Member>| set.iter().map(Member::to_string).collect();
        let wire = Wire {
            replicas: names(&self.replicas),
            leader: self.leader.as_ref().map(|leader| WireLeader {
                member: leader.member.to_string(),
                starts: leader.starts.0,
            }),
            epoch: self.epoch.0,
            isr: names(&self.in_sync),
            committed: self.committed,
        };
        serde_json::to_string(&wire).expect("strings and numbers")
    }

    /// # Errors
    /// A value that [`encode`](Self::encode) does not make.
    pub fn decode(value: &[u8]) -> Result<Self, KeyError> {
        if value.len() > BYTES_MAX {
            return Err(KeyError::Length(value.len()));
        }
        let json = |error: &dyn std::fmt::Display| KeyError::Json(error.to_string());
        let member = |text: &String| text.parse::<Member>().map_err(|error| json(&error));
        let wire: Wire = serde_json::from_slice(value).map_err(|error| json(&error))?;
        let replicas: BTreeSet<_> = wire.replicas.iter().map(member).collect::<Result<_, _>>()?;
        let in_sync: BTreeSet<_> = wire.isr.iter().map(member).collect::<Result<_, _>>()?;
        if replicas.is_empty() || wire.replicas.len() > REPLICAS_MAX {
            return Err(KeyError::Replicas(wire.replicas.len()));
        }
        if in_sync.is_empty() || !in_sync.is_subset(&replicas) {
            return Err(KeyError::InSync);
        }
        let leader = match wire.leader {
            Some(leader) => Some(Leader {
                member: member(&leader.member)?,
                starts: Starts(leader.starts),
            }),
            None => None,
        };
        if leader
            .as_ref()
            .is_some_and(|one| !in_sync.contains(&one.member))
        {
            return Err(KeyError::Leader);
        }
        Ok(Self {
            replicas,
            leader,
            epoch: Epoch(wire.epoch),
            in_sync,
            committed: wire.committed,
        })
    }

    /// All replicas but this one.
    pub fn others<'a>(&'a self, me: &'a Member) -> impl Iterator<Item = &'a Member> {
        self.replicas.iter().filter(move |member| *member != me)
    }

    /// The in-sync set without this member.
    #[must_use]
    pub fn in_sync_without(&self, me: &Member) -> BTreeSet<Member> {
        let others = self.in_sync.iter().filter(|member| *member != me);
        others.cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::marks::{DiskId, Node};

    fn member(name: &str) -> Member {
        Member {
            node: Node::new(name).expect("a name"),
            disk: DiskId(u64::MAX),
        }
    }

    fn largest() -> ShardKey {
        let names = (0..REPLICAS_MAX).map(|n| member(&format!("{n}{}", "n".repeat(62))));
        let replicas: BTreeSet<_> = names.collect();
        ShardKey {
            leader: replicas.first().map(|member| Leader {
                member: member.clone(),
                starts: Starts(u64::MAX),
            }),
            in_sync: replicas.clone(),
            replicas,
            epoch: Epoch(u64::MAX),
            committed: u64::MAX,
        }
    }

    #[test]
    fn the_largest_key_fits_and_reads_back() {
        let key = largest();
        let value = key.encode();
        assert!(value.len() <= BYTES_MAX, "{} bytes", value.len());
        assert_eq!(ShardKey::decode(value.as_bytes()), Ok(key));
    }

    #[test]
    fn a_key_without_a_leader_reads_back() {
        let mut key = largest();
        (key.leader, key.epoch) = (None, Epoch(0));
        assert_eq!(ShardKey::decode(key.encode().as_bytes()), Ok(key));
    }

    #[test]
    fn wrong_values_are_refused_by_name() {
        let refused = |change: &dyn Fn(&mut ShardKey)| {
            let mut key = largest();
            change(&mut key);
            ShardKey::decode(key.encode().as_bytes()).expect_err("refused")
        };
        assert_eq!(refused(&|key| key.in_sync.clear()), KeyError::InSync);
        assert_eq!(
            refused(&|key| assert!(key.in_sync.insert(member("x")))),
            KeyError::InSync
        );
        assert_eq!(
            refused(&|key| drop(key.in_sync.pop_first())),
            KeyError::Leader
        );
        assert_eq!(refused(&|key| key.replicas.clear()), KeyError::Replicas(0));
        assert!(matches!(ShardKey::decode(b"{}"), Err(KeyError::Json(_))));
        let long = vec![b' '; BYTES_MAX + 1];
        assert_eq!(ShardKey::decode(&long), Err(KeyError::Length(1025)));
        let strange = br#"{"replicas":["a"],"leader":null,"epoch":1,"isr":[],"committed":0}"#;
        let message = ShardKey::decode(strange).expect_err("refused").to_string();
        assert!(message.contains("\"a\" is not a member"), "{message}");
    }
}
