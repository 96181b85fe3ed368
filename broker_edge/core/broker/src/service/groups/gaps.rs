//! Records of `$gaps`: which offsets a reader or group has lost, and why.

use headwater_log::{Log, Partition, RecordMeta, Records, RecordsFull, Route};
use serde_json::json;

use crate::clock::now_us;

const TOPIC: &str = "$gaps";
/// The prefix of the reason in the broker's own reports.
pub const OF_RETENTION: &str = "retention: ";

/// Lost offsets `[start, end)` of partition `of`, and who needed them.
pub struct GapRecord<'a> {
    pub of: u32,
    /// `None` for a partition of another log, whose name is unknown.
    pub name: Option<&'a str>,
    /// The id of another log, whose broker is gone.
    pub log_id: Option<&'a str>,
    pub start: u64,
    /// May be `None` for a partition of another log.
    pub end: Option<u64>,
    pub reason: &'a str,
    pub group: Option<&'a str>,
    /// The verified user of the reader that reports; `None` if the broker reports.
    pub user: Option<&'a str>,
}

/// Appends to `$gaps`. Holds the partition, not the log, so that objects owned by the log can own it.
pub struct Gaps {
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
