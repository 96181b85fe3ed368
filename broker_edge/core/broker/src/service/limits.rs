//! The limits of Flight calls, from the settings.

use std::time::Duration;

use headwater_mqtt::topic::check_name;

use crate::config::Config;

/// Records under `artifacts/` may be this large, enough for a chunk with topic and key, whatever the packet limit of
/// devices.
const ARTIFACT_BYTES: usize = 1 << 20;
/// How many messages of the largest size may be received at once; one user may have half.
const PUT_MESSAGES: usize = 4;
const ARTIFACTS: &str = "artifacts/";

#[derive(Clone, Debug)]
pub struct Limits {
    topic_bytes_max: usize,
    topic_levels_max: usize,
    record_bytes_max: usize,
    artifact_bytes_max: usize,
    pub reads: usize,
    pub reads_per_user: usize,
    pub read_budget_bytes: usize,
    pub put_budget_bytes: usize,
    pub stall_timeout: Duration,
    pub groups_max: usize,
    pub groups_per_user: usize,
    /// The largest single append to a partition.
    pub append_bytes: usize,
}

impl Limits {
    pub fn of(config: &Config) -> Limits {
        let (mqtt, flight) = (&config.mqtt, &config.flight);
        let half = |all: usize| (all / 2).max(1);
        let reads = usize::from(flight.max_reads);
        let groups_max = flight.max_groups as usize;
        let packet_bytes = mqtt.max_packet_bytes.as_usize();
        let record_bytes = flight.max_record_bytes.map(|bytes| bytes.as_usize());
        Limits {
            topic_bytes_max: mqtt.max_topic_bytes as usize,
            topic_levels_max: usize::from(mqtt.max_topic_levels),
            record_bytes_max: record_bytes.unwrap_or(packet_bytes),
            artifact_bytes_max: record_bytes.unwrap_or(packet_bytes.max(ARTIFACT_BYTES)),
            reads,
            reads_per_user: flight
                .max_reads_per_user
                .map_or(half(reads), usize::from)
                .min(reads),
            read_budget_bytes: flight.read_budget_bytes.as_usize(),
            put_budget_bytes: flight
                .max_message_bytes
                .as_usize()
                .saturating_mul(PUT_MESSAGES),
            stall_timeout: flight.stall_timeout.0,
            groups_max,
            groups_per_user: flight
                .max_groups_per_user
                .map_or(half(groups_max), |most| most as usize)
                .min(groups_max),
            // Half the queue, so that a produced batch never has to wait for an empty queue.
            append_bytes: (config.log.queue_bytes.as_usize() / 2).min(4 << 20),
        }
    }

    /// Why producing to this topic is refused, if it is: the same rules as for PUBLISH.
    pub fn refusal_of_topic(&self, topic: &str) -> Option<String> {
        if let Err(error) = check_name(topic.as_bytes()) {
            return Some(error.to_string());
        }
        if topic.starts_with('$') {
            return Some("only the broker may write topics that begin with `$`".to_owned());
        }
        if topic.len() > self.topic_bytes_max {
            let most = self.topic_bytes_max;
            return Some(format!(
                "the topic is longer than {most} bytes (mqtt.max_topic_bytes)"
            ));
        }
        let levels = 1 + topic.bytes().filter(|byte| *byte == b'/').count();
        (levels > self.topic_levels_max).then(|| {
            let most = self.topic_levels_max;
            format!("the topic has more than {most} levels (mqtt.max_topic_levels)")
        })
    }

    /// The largest record of a topic: payload, topic, key and headers together.
    pub fn record_bytes_max(&self, topic: &str) -> usize {
        if topic.starts_with(ARTIFACTS) {
            self.artifact_bytes_max
        } else {
            self.record_bytes_max
        }
    }
}
