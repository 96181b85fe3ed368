//! Records of `$gaps`: which offsets somebody has to do without, and why.

use headwater_log::{Log, Partition, RecordMeta, Records, RecordsFull, Route};
use serde_json::json;

use super::groups::now_us;

const TOPIC: &str = "$gaps";
/// How the reason begins when it is the broker that reports.
pub(super) const OF_RETENTION: &str = "retention: ";

/// Offsets `[start, end)` of `of`, and who misses them.
pub(super) struct GapRecord<'a> {
    pub of: u32,
    /// Not known of another log's partition.
    pub name: Option<&'a str>,
    /// Of another log, whose broker is gone.
    pub log_id: Option<&'a str>,
    pub start: u64,
    /// Not known of another log's partition.
    pub end: Option<u64>,
    pub reason: &'a str,
    pub group: Option<&'a str>,
    /// The verified user whose reader says so; none where the broker does.
    pub user: Option<&'a str>,
}

/// Where `$gaps` is. Holds the partition, not the log, so that it may be kept by what the log keeps.
pub(super) struct Gaps {
    pub partition: Partition,
    route: Route,
}

impl Gaps {
    pub fn of(log: &Log) -> Option<Gaps> {
        let route = log.route(TOPIC);
        let partition = log.partition(route.partition)?.clone();
        Some(Gaps { partition, route })
    }

    pub fn records(&self, gap: &GapRecord<'_>) -> Result<Records, RecordsFull> {
        let mut records = self.partition.take_records();
        let topic = records.topic(TOPIC, self.route.key.clone())?;
        let client = records.client("")?;
        let mut value = json!({
            "log_id": gap.log_id,
            "partition": gap.of,
            "name": gap.name,
            "start": gap.start,
            "end": gap.end,
            "reason": gap.reason,
            "group": gap.group,
            "time_us": now_us(),
        });
        if let Some(user) = gap.user {
            value["user"] = json!(user);
        }
        records.push(
            RecordMeta::new(topic, client, 1),
            value.to_string().as_bytes(),
        )?;
        Ok(records)
    }
}
