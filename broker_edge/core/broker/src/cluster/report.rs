//! What a node says of itself and of its cluster, for admin HTTP and metrics.

use std::collections::BTreeMap;

use headwater_cluster::marks::{Member, Node, Trust};
use serde::Serialize;

use super::keys::NodeKey;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Clients are served here, or will be in a moment.
    Leader,
    Follower,
    /// Nobody leads as far as this node knows.
    Candidate,
    /// It is getting its copy.
    Joining,
    /// Its replica has stopped: a person has to look.
    Stopped,
}

/// The answer to `GET /api/v1/cluster`.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub cluster: String,
    pub node: String,
    pub member: String,
    pub role: Role,
    pub leader: Option<String>,
    pub epoch: u64,
    pub in_sync: Vec<String>,
    pub replicas: Vec<String>,
    pub log_id: String,
    pub trust: &'static str,
    pub etcd: Etcd,
    pub partitions: Vec<Partition>,
    pub nodes: BTreeMap<String, Address>,
    /// Of a leader, by follower: records that it has not synced.
    pub lag: BTreeMap<String, u64>,
    /// Times that the office of this node was to be opened, after an election or a pause. A copy that is fetched anew
    /// begins at 0, as a start does.
    pub elections: u64,
}

#[derive(Debug, Clone, Serialize)]
pub struct Etcd {
    pub reachable: bool,
}

#[derive(Debug, Clone, Serialize)]
pub struct Partition {
    pub name: String,
    pub number: u32,
    pub log_start: u64,
    pub end: u64,
    pub synced: u64,
    pub high_watermark: u64,
}

#[derive(Debug, Clone, Serialize)]
pub struct Address {
    #[serde(flatten)]
    pub at: NodeKey,
    pub linked: bool,
    /// How far its clock was ahead of this node's when it was linked last, in ms.
    pub clock_ahead_ms: Option<i64>,
}

pub fn trust(trust: Trust) -> &'static str {
    match trust {
        Trust::Sound => "sound",
        Trust::Unproven => "unproven",
        Trust::Suspect => "suspect",
    }
}

/// The names of their nodes.
pub fn names<'a>(members: impl IntoIterator<Item = &'a Member>) -> Vec<String> {
    let names = members.into_iter().map(|member| &member.node);
    names.map(Node::to_string).collect()
}

impl super::node::Node {
    /// What is so now.
    pub(super) fn report(&self) -> Report {
        let replica = &self.parts.replica;
        let (shard, me) = (replica.shard(), replica.me());
        let key = shard.key();
        let role = match key {
            _ if replica.is_over() => Role::Stopped,
            _ if shard.is_leading() => Role::Leader,
            Some(key) if !key.in_sync.contains(me) => Role::Joining,
            _ if shard.is_aligned() => Role::Follower,
            _ => Role::Candidate,
        };
        let partitions = replica.log().partitions().iter().map(|one| Partition {
            name: one.name().to_owned(),
            number: one.id().0,
            log_start: one.log_start().0,
            end: one.written().0,
            synced: one.synced().0,
            high_watermark: one.high_watermark().0,
        });
        let nodes = self.nodes.iter().map(|(name, at)| {
            let address = Address {
                at: at.clone(),
                linked: self.parts.mesh.is_linked(name),
                clock_ahead_ms: self.parts.mesh.clock_ahead_ms(name),
            };
            (name.to_string(), address)
        });
        let others = key.into_iter().flat_map(|key| key.others(me));
        let lag = others.filter_map(|one| Some((one.node.to_string(), shard.lag(one)?)));
        Report {
            cluster: self.parts.cluster.to_string(),
            node: me.node.to_string(),
            member: me.to_string(),
            role,
            leader: self.leader.as_ref().map(|leader| leader.node.to_string()),
            epoch: shard.epoch().0,
            in_sync: key.map(|key| names(&key.in_sync)).unwrap_or_default(),
            replicas: key.map(|key| names(&key.replicas)).unwrap_or_default(),
            log_id: replica.log().id().to_string(),
            trust: trust(shard.trust()),
            etcd: Etcd {
                reachable: self.reaches_etcd,
            },
            partitions: partitions.collect(),
            nodes: nodes.collect(),
            lag: lag.collect(),
            elections: self.elections,
        }
    }
}
