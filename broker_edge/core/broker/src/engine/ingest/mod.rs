//! Every append to a data partition, and who waits until it is durable.

mod inline_commit_policy;
mod latency;
pub mod stage;

use std::collections::VecDeque;

use headwater_log::{Offset, Partition};

use super::ConnKey;

use latency::Latency;
use stage::Stage;

pub struct Ingest {
    /// One per partition; the one of the internal partition stays empty, because the state store appends there.
    pub(super) stages: Vec<Stage>,
    pub(super) next_stamp: u64,
    /// Connections whose front acknowledgement waits for the internal partition, by offset.
    pub(super) state_waits: VecDeque<(Offset, ConnKey)>,
    pub(super) latency: Latency,
}

impl Ingest {
    pub fn new(partitions: &[Partition]) -> Self {
        let stages = partitions.iter().cloned().zip(1..);
        Self {
            stages: stages
                .map(|(partition, stamp)| Stage::new(partition, stamp))
                .collect(),
            next_stamp: partitions.len() as u64 + 1,
            state_waits: VecDeque::new(),
            latency: Latency::default(),
        }
    }
}
