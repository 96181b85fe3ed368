//! What a node asks of etcd when it starts: which log the cluster has, that no other node has its name, and that its
//! folder is not older than the cluster knows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use headwater_cluster::key::Revision;
use headwater_cluster::marks::{Node, Starts};
use headwater_cluster::member_key::{
    MemberKey, MemberKeyError, Registration, RegistrationError, register,
};
use headwater_etcd::{CasOutcome, Error, KeyValue, LeaseId, MetaStore};

use super::keys::{Keys, Meta, NodeKey, ValueError};

/// etcd deletes the address of a node that has not been heard for so long.
pub const LEASE: Duration = Duration::from_secs(10);
/// Between two requests that fail.
const PAUSE: Duration = Duration::from_millis(250);
/// How long the lease of an earlier life may last: etcd may give a longer one, and counts anew when it changes leader.
const NAME_ATTEMPTS: u32 = 60;

/// Why a node does not join its cluster.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error(
        "etcd has no cluster {cluster}: it has no key {key}; make it with `headwater cluster init`, or check \
         cluster.name and cluster.etcd.endpoints"
    )]
    NoCluster { cluster: Node, key: String },
    #[error(
        "cluster {cluster} has the nodes {nodes}, and not {node}; set cluster.node to one of them"
    )]
    NoNode {
        cluster: Node,
        node: Node,
        nodes: String,
    },
    #[error("the value of {key} in etcd is not used: {reason}; was it written by hand?")]
    Value { key: String, reason: String },
    #[error(
        "another node {node} runs{at}; two nodes must not have one name: stop it, or change cluster.node"
    )]
    TwoNodes { node: Node, at: String },
    #[error("this node must not start with its data folder: {0}")]
    Folder(#[from] RegistrationError),
    #[error("it was stopped before etcd answered")]
    Stopped,
}

/// Set by whoever wants a start to end.
pub type StopFlag = Arc<AtomicBool>;

/// What the requests of a start have in common.
pub struct Joining<'a, S> {
    pub store: &'a S,
    pub keys: &'a Keys,
    pub node: &'a Node,
    pub stop: &'a StopFlag,
}

impl<S: MetaStore> Joining<'_, S> {
    /// Waits for etcd, and reads what the cluster is.
    ///
    /// # Errors
    /// There is no such cluster, or it has no such node.
    pub async fn meta(&self, cluster: &Node) -> Result<Meta, JoinError> {
        let key = self.keys.meta();
        let Some(found) = self.get(&key).await? else {
            let cluster = cluster.clone();
            return Err(JoinError::NoCluster { cluster, key });
        };
        let meta = Meta::decode(&found.value).map_err(|error| value(&key, &error))?;
        if !meta.names(self.node) {
            return Err(JoinError::NoNode {
                cluster: cluster.clone(),
                node: self.node.clone(),
                nodes: meta.nodes.join(", "),
            });
        }
        Ok(meta)
    }

    /// How often this node has started, as the cluster knows.
    ///
    /// # Errors
    /// The key is not one of a node.
    pub async fn starts_known(&self) -> Result<Starts, JoinError> {
        let known = self.member().await?;
        Ok(known.map_or(Starts(0), |(_, key)| key.starts))
    }

    /// Takes the name of this node, as long as the lease lives, and writes down this life.
    ///
    /// # Errors
    /// Another node of this name runs, or the folder was rolled back or copied.
    pub async fn register(&self, mine: MemberKey, address: &[u8]) -> Result<LeaseId, JoinError> {
        let lease = self.take_name(mine, address).await?;
        let written = self.write_life(mine).await;
        if written.is_err() {
            // The name is free for the next start. If this fails, it is when the lease ends.
            let _ = self.store.revoke(lease).await;
        }
        written.map(|()| lease)
    }

    async fn write_life(&self, mine: MemberKey) -> Result<(), JoinError> {
        let key = self.keys.member(self.node);
        let mut has_tried = false;
        loop {
            let found = self.member().await?;
            let newest = found.as_ref().map(|(revision, _)| *revision);
            let (expected, wanted) = match register(mine, found, has_tried) {
                Registration::Done => return Ok(()),
                Registration::Write { expected, key } => (expected, key),
                // Nobody else has this name now, so the folder was replaced.
                Registration::Refused(RegistrationError::OtherDisk { .. }) => {
                    tracing::warn!(node = %self.node, "its data folder is another one than before: it joins anew");
                    (newest.unwrap_or_default(), mine)
                }
                Registration::Refused(error) => return Err(error.into()),
            };
            let value = wanted.encode(self.node).into_bytes();
            match self.store.cas(&key, expected, value, None).await {
                CasOutcome::Done(_) => return Ok(()),
                CasOutcome::Conflict(_) => {}
                CasOutcome::NotDone(error) => self.pause(&error).await?,
                CasOutcome::Unknown(error) => {
                    has_tried = true;
                    self.pause(&error).await?;
                }
            }
        }
    }

    /// Writes `nodes/<node>`, which nobody else may have at the same time.
    async fn take_name(&self, mine: MemberKey, address: &[u8]) -> Result<LeaseId, JoinError> {
        let key = self.keys.node(self.node);
        let mut attempts = 0;
        let mut own = None;
        loop {
            let found = self.get(&key).await?;
            let expected = match &found {
                None => Revision(0),
                // An attempt whose outcome was unknown.
                Some(KeyValue {
                    lease: Some(lease), ..
                }) if own == Some(*lease) => return Ok(*lease),
                // An earlier life of this folder: of a copy, `starts` tells.
                Some(found)
                    if self
                        .member()
                        .await?
                        .is_some_and(|it| it.1.disk == mine.disk) =>
                {
                    found.revision
                }
                Some(found) if attempts >= NAME_ATTEMPTS => {
                    let at = NodeKey::decode(&found.value);
                    let at = at.map_or_else(|_| String::new(), |it| format!(" at {}", it.mesh));
                    let node = self.node.clone();
                    return Err(JoinError::TwoNodes { node, at });
                }
                Some(_) => {
                    if attempts == 0 {
                        tracing::warn!(node = %self.node, "a node of this name runs, or ran until a moment ago: waits");
                    }
                    attempts += 1;
                    self.sleep().await?;
                    continue;
                }
            };
            // Only now: it might end while another one is waited for.
            let lease = self.grant().await?;
            own = Some(lease);
            let value = address.to_vec();
            match self.store.cas(&key, expected, value, Some(lease)).await {
                CasOutcome::Done(_) => return Ok(lease),
                CasOutcome::Conflict(_) => {}
                CasOutcome::NotDone(error) | CasOutcome::Unknown(error) => {
                    self.pause(&error).await?;
                }
            }
        }
    }

    /// Begins the lease of this life.
    ///
    /// # Errors
    /// The start was stopped.
    async fn grant(&self) -> Result<LeaseId, JoinError> {
        loop {
            match self.store.grant(LEASE).await {
                Ok(lease) => return Ok(lease),
                Err(error) => self.pause(&error).await?,
            }
        }
    }

    /// The nodes that run: they are known before the first of them is heard.
    ///
    /// # Errors
    /// The start was stopped.
    pub async fn nodes(&self) -> Result<BTreeMap<Node, NodeKey>, JoinError> {
        loop {
            match self.store.get_all(self.keys.prefix()).await {
                Ok(listing) => return Ok(self.keys.nodes(&listing.keys)),
                Err(error) => self.pause(&error).await?,
            }
        }
    }

    async fn member(&self) -> Result<Option<(Revision, MemberKey)>, JoinError> {
        let key = self.keys.member(self.node);
        let Some(found) = self.get(&key).await? else {
            return Ok(None);
        };
        let decoded: Result<_, MemberKeyError> = MemberKey::decode(&found.value, self.node);
        let decoded = decoded.map_err(|error| JoinError::Value {
            key,
            reason: error.to_string(),
        })?;
        Ok(Some((found.revision, decoded)))
    }

    async fn get(&self, key: &str) -> Result<Option<KeyValue>, JoinError> {
        let mut said = None;
        loop {
            match self.store.get(key).await {
                Ok(read) => {
                    if said.is_some() {
                        tracing::info!("etcd answers");
                    }
                    return Ok(read.found);
                }
                Err(error) => {
                    if said.as_ref() != Some(&error.fault) {
                        tracing::warn!(
                            "{error}; a node starts only when etcd answers, so this one waits"
                        );
                        said = Some(error.fault);
                    }
                    self.sleep().await?;
                }
            }
        }
    }

    async fn pause(&self, error: &Error) -> Result<(), JoinError> {
        tracing::warn!("{error}; it is tried again");
        self.sleep().await
    }

    async fn sleep(&self) -> Result<(), JoinError> {
        tokio::time::sleep(PAUSE).await;
        match self.stop.load(Ordering::Acquire) {
            true => Err(JoinError::Stopped),
            false => Ok(()),
        }
    }
}

fn value(key: &str, error: &ValueError) -> JoinError {
    JoinError::Value {
        key: key.to_owned(),
        reason: error.to_string(),
    }
}
