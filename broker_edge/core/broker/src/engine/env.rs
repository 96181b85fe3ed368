//! What every part of the engine may read: the log, the settings, the metrics and the time of the turn.

use std::sync::Arc;

use headwater_log::{Class, Log, Partition};
use headwater_mqtt::ReasonCode;

use crate::metrics::Metrics;

use super::Settings;
use super::ids::{PartitionIndex, PartitionOffset};

/// The time of a turn, read once.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Milliseconds of a monotonic clock.
    pub mono_ms: u64,
    /// Unix microseconds, UTC.
    pub wall_us: i64,
}

pub struct Env {
    pub log: Log,
    /// The partitions of the log, by index.
    pub partitions: Vec<Partition>,
    pub settings: Settings,
    pub metrics: Arc<Metrics>,
    pub now: Now,
}

impl Env {
    /// Partitions that clients can reach.
    pub fn data_partitions(&self) -> impl Iterator<Item = PartitionIndex> {
        let data = |partition: &&Partition| partition.class() != Class::Internal;
        let partitions = self.partitions.iter().filter(data);
        partitions.map(|partition| PartitionIndex::of(partition.id()))
    }

    /// The partitions in which a filter can match.
    pub fn partitions_of(&self, filter: &str) -> Vec<PartitionIndex> {
        if filter.contains(['+', '#']) {
            return self.data_partitions().collect();
        }
        vec![PartitionIndex::of(self.log.route(filter).partition)]
    }

    /// Why no client may publish to this name, if so.
    pub fn refusal_of_name(&self, name: &str) -> Option<ReasonCode> {
        if name.starts_with('$') {
            return Some(ReasonCode::NotAuthorized);
        }
        let limits = &self.settings.mqtt;
        let levels = 1 + name.bytes().filter(|byte| *byte == b'/').count();
        let is_long = name.len() > limits.max_topic_bytes as usize;
        (is_long || levels > usize::from(limits.max_topic_levels))
            .then_some(ReasonCode::TopicNameInvalid)
    }

    /// Offsets as users write them: `<partition name>:<offset>[,…]`.
    pub fn format_offsets(&self, offsets: &[PartitionOffset]) -> String {
        let text = |(partition, offset): &PartitionOffset| {
            format!("{}:{offset}", self.partitions[partition.index()].name())
        };
        offsets.iter().map(text).collect::<Vec<_>>().join(",")
    }
}
