//! The keys of a cluster in etcd, and the values that are not of the protocol itself.
//!
//! `docs/cluster-protocol.md` has their fields. The values of `shards/<n>` and `members/<node>` are in
//! `headwater-cluster`.

use std::collections::{BTreeMap, BTreeSet};

use headwater_cluster::marks::Node;
use headwater_etcd::KeyValue;
use headwater_log::LogId;
use serde::{Deserialize, Serialize};

/// A longer value is refused.
pub const BYTES_MAX: usize = 1024;
/// Format of [`Meta`].
pub const FORMAT: u32 = 1;
/// A shard has three replicas.
pub const NODES_MAX: usize = 3;
/// The in-sync set never has fewer members: with fewer, an acknowledged record could be on one disk only.
pub const MIN_IN_SYNC: usize = 2;

/// Names of keys. All begin with `/headwater/<cluster>/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    #[must_use]
    pub fn new(cluster: &Node) -> Self {
        Self {
            prefix: format!("/headwater/{cluster}/"),
        }
    }

    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    #[must_use]
    pub fn meta(&self) -> String {
        format!("{}meta", self.prefix)
    }

    /// The shard of the whole log.
    #[must_use]
    pub fn shard(&self) -> String {
        format!("{}shards/0", self.prefix)
    }

    #[must_use]
    pub fn member(&self, node: &Node) -> String {
        format!("{}members/{node}", self.prefix)
    }

    #[must_use]
    pub fn node(&self, node: &Node) -> String {
        format!("{}nodes/{node}", self.prefix)
    }

    /// The node whose `members/<node>` this is.
    #[must_use]
    pub fn member_of(&self, key: &str) -> Option<Node> {
        self.named(key, "members/")
    }

    /// The node whose `nodes/<node>` this is.
    #[must_use]
    pub fn node_of(&self, key: &str) -> Option<Node> {
        self.named(key, "nodes/")
    }

    /// The nodes that run, and where.
    pub fn nodes<'a>(
        &self,
        found: impl IntoIterator<Item = &'a KeyValue>,
    ) -> BTreeMap<Node, NodeKey> {
        let node = |one: &KeyValue| -> Option<(Node, NodeKey)> {
            let node = self.node_of(&one.key)?;
            Some((node, NodeKey::decode(&one.value).ok()?))
        };
        found.into_iter().filter_map(node).collect()
    }

    fn named(&self, key: &str, folder: &str) -> Option<Node> {
        let name = key.strip_prefix(&self.prefix)?.strip_prefix(folder)?;
        Node::new(name).ok()
    }
}

/// Why a value is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    #[error("it has {0} bytes, at most {BYTES_MAX} are read")]
    Length(usize),
    #[error("it is not the JSON of this key: {0}")]
    Json(String),
    #[error("it has format {0}, and this version reads format {FORMAT}")]
    Format(u32),
    #[error("{0}")]
    Value(String),
}

/// The value of `meta`: what is fixed when a cluster is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    pub format: u32,
    pub log_id: String,
    pub nodes: Vec<String>,
    pub min_in_sync: usize,
}

impl Meta {
    #[must_use]
    pub fn new(log_id: LogId, nodes: &[Node]) -> Self {
        Self {
            format: FORMAT,
            log_id: log_id.to_string(),
            nodes: nodes.iter().map(Node::to_string).collect(),
            min_in_sync: MIN_IN_SYNC,
        }
    }

    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers")
    }

    /// # Errors
    /// A value that no cluster has.
    pub fn decode(value: &[u8]) -> Result<Self, ValueError> {
        let meta: Self = read(value)?;
        if meta.format != FORMAT {
            return Err(ValueError::Format(meta.format));
        }
        let wrong = |reason: String| Err(ValueError::Value(reason));
        if let Err(error) = meta.log_id.parse::<LogId>() {
            return wrong(error.to_string());
        }
        let named: BTreeSet<_> = meta.nodes.iter().collect();
        let count = meta.nodes.len();
        if named.len() != count || !(MIN_IN_SYNC..=NODES_MAX).contains(&count) {
            return wrong(format!("it does not name {NODES_MAX} nodes, each once"));
        }
        if let Some(error) = meta.nodes.iter().find_map(|name| Node::new(name).err()) {
            return wrong(error.to_string());
        }
        if !(MIN_IN_SYNC..=count).contains(&meta.min_in_sync) {
            let (min, least) = (meta.min_in_sync, MIN_IN_SYNC);
            return wrong(format!(
                "min_in_sync is {min}; it is {least} to the number of nodes"
            ));
        }
        Ok(meta)
    }

    /// # Panics
    /// Never: the id was checked when the value was read.
    #[must_use]
    pub fn log_id(&self) -> LogId {
        self.log_id.parse().expect("checked")
    }

    #[must_use]
    pub fn names(&self, node: &Node) -> bool {
        self.nodes.iter().any(|name| name == node.as_str())
    }
}

/// The value of `nodes/<node>`, which has a lease: where a node that runs can be reached. For discovery only, so its
/// absence deposes nobody.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeKey {
    /// `host:port`, for other nodes.
    pub mesh: String,
    /// `host:port`, for MQTT clients.
    pub mqtt: String,
    /// `grpc://host:port` or `grpc+tls://host:port`.
    pub flight: String,
    /// `http://host:port` or `https://host:port`.
    pub admin: Option<String>,
    pub version: String,
    /// How often it has started: others connect at once to one that has started again.
    #[serde(default)]
    pub starts: u64,
}

impl NodeKey {
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings")
    }

    /// # Errors
    /// A value that no node writes.
    pub fn decode(value: &[u8]) -> Result<Self, ValueError> {
        read(value)
    }
}

fn read<T: for<'a> Deserialize<'a>>(value: &[u8]) -> Result<T, ValueError> {
    if value.len() > BYTES_MAX {
        return Err(ValueError::Length(value.len()));
    }
    serde_json::from_slice(value).map_err(|error| ValueError::Json(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Node {
        Node::new(name).expect("a name")
    }

    fn meta() -> Meta {
        let nodes = ["n1", "n2", "n3"].map(node);
        Meta::new(LogId::from_bytes([7; 16]), &nodes)
    }

    #[test]
    fn names_of_keys_read_back() {
        let keys = Keys::new(&node("berlin"));
        assert_eq!(keys.meta(), "/headwater/berlin/meta");
        assert_eq!(keys.shard(), "/headwater/berlin/shards/0");
        assert_eq!(keys.member_of(&keys.member(&node("n1"))), Some(node("n1")));
        assert_eq!(keys.node_of(&keys.node(&node("n1"))), Some(node("n1")));
        assert_eq!(keys.node_of(&keys.member(&node("n1"))), None);
        for other in [
            "/headwater/berlin2/nodes/n1",
            "/headwater/berlin/nodes/",
            "n1",
        ] {
            assert_eq!(keys.node_of(other), None, "{other}");
        }
    }

    #[test]
    fn meta_reads_back_and_what_no_cluster_has_is_refused() {
        let value = meta();
        assert_eq!(Meta::decode(&value.encode()), Ok(value.clone()));
        let wrong = |change: &dyn Fn(&mut Meta)| {
            let mut value = value.clone();
            change(&mut value);
            Meta::decode(&value.encode())
                .expect_err("refused")
                .to_string()
        };
        assert!(wrong(&|it| it.format = 2).contains("format 2"));
        assert!(wrong(&|it| it.log_id = "x".to_owned()).contains('x'));
        assert!(wrong(&|it| it.nodes[1] = "n1".to_owned()).contains("each once"));
        assert!(wrong(&|it| it.nodes.truncate(1)).contains("each once"));
        assert!(wrong(&|it| it.nodes[0] = "n 1".to_owned()).contains("n 1"));
        assert!(wrong(&|it| it.min_in_sync = 1).contains("min_in_sync is 1"));
        assert!(wrong(&|it| it.min_in_sync = 4).contains("min_in_sync is 4"));
        assert_eq!(
            Meta::decode(&[b' '; BYTES_MAX + 1]),
            Err(ValueError::Length(1025))
        );
        assert!(matches!(Meta::decode(b"{}"), Err(ValueError::Json(_))));
    }

    #[test]
    fn addresses_of_a_node_read_back() {
        let value = NodeKey {
            mesh: "a:1".to_owned(),
            mqtt: "a:2".to_owned(),
            flight: "grpc://a:3".to_owned(),
            admin: None,
            version: "1".to_owned(),
            starts: 3,
        };
        assert_eq!(NodeKey::decode(&value.encode()), Ok(value));
        // A later version may say more.
        let more = br#"{"mesh":"","mqtt":"","flight":"","admin":null,"version":"","zone":"x"}"#;
        assert!(NodeKey::decode(more).is_ok());
    }
}
