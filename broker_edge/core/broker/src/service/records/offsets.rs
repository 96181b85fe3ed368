//! The actions `version`, `topics` and `offsets`. All but `version` may wait for the disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use headwater_log::{Epoch, Gap, Offset, Partition};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::VERSION;
use crate::auth::Access;
use crate::filter::Filters;
use crate::service::callers::caller::Caller;
use crate::service::error::Refusal;
use crate::service::request;
use crate::service::shared::Shared;

const PROTOCOL: u32 = 1;
const FORMAT: u32 = 1;
/// The largest answer with a partition's topics, and the size of a row beside its topic name.
const ANSWER_BYTES_MAX: usize = 64 << 20;
const ROW_BYTES: usize = 128;
const TOPICS_A_RESULT: usize = 1_000;
/// The most gaps of a partition in one answer; the newest are kept.
const GAPS_MAX: usize = 1_000;

pub fn version(shared: &Shared) -> Value {
    json!({"version": VERSION, "protocol": PROTOCOL, "format": FORMAT, "log_id": shared.log_id})
}

/// The partitions that can contain a wanted topic.
pub fn reachable<'a>(
    shared: &'a Shared,
    filters: &'a Filters,
) -> impl Iterator<Item = &'a Partition> {
    let classes = &shared.classes;
    shared
        .log
        .partitions()
        .iter()
        .filter(move |partition| filters.can_reach(partition.class(), classes))
}

/// A topic in an answer. There may be half a million of a partition, so each stays small until it is text.
#[derive(Debug, Serialize)]
pub struct TopicRow<'p> {
    class: &'static str,
    first: u64,
    name: &'p str,
    next: u64,
    partition: u32,
    topic: Box<str>,
}

/// An answer with these rows.
pub fn topics_text(shared: &Shared, rows: &[TopicRow<'_>]) -> String {
    #[derive(Serialize)]
    struct Topics<'a> {
        log_id: &'a str,
        topics: &'a [TopicRow<'a>],
    }
    let answer = Topics {
        log_id: &shared.log_id,
        topics: rows,
    };
    serde_json::to_string(&answer).expect("names and numbers are JSON")
}

/// The answer rows of a partition's wanted topics.
pub fn topic_rows<'p>(
    partition: &'p Partition,
    filters: &Filters,
) -> Result<Vec<TopicRow<'p>>, Refusal> {
    let high_watermark = partition.high_watermark();
    let too_large = || {
        Refusal::exhausted(format!(
            "the matching topics of {} take more than {ANSWER_BYTES_MAX} bytes: use narrower filters",
            partition.name()
        ))
    };
    let topics = partition
        .topics_within(&|topic| filters.wants(topic), ANSWER_BYTES_MAX)
        .map_err(|error| Refusal::from_read(partition, error))?;
    // A filter that gave up has left topics out.
    request::check_work(filters)?;
    let mut bytes = 0;
    let mut rows = Vec::new();
    for range in topics.ok_or_else(too_large)? {
        if range.first >= high_watermark {
            continue;
        }
        bytes += range.topic.len() + ROW_BYTES;
        if bytes > ANSWER_BYTES_MAX {
            return Err(too_large());
        }
        rows.push(TopicRow {
            class: partition.class().name(),
            first: range.first.0,
            name: partition.name(),
            next: range.next.min(high_watermark).0,
            partition: partition.id().0,
            topic: range.topic.into(),
        });
    }
    Ok(rows)
}

/// One answer per thousand topics, at least one.
pub fn topics(
    shared: &Shared,
    caller: &Caller,
    body: request::Topics,
    stop: &Arc<AtomicBool>,
) -> Result<Vec<String>, Refusal> {
    let filters = request::filters(body.filters, body.pattern, caller, Access::Receive, stop)?;
    let (mut answers, mut rows) = (Vec::new(), Vec::new());
    for partition in reachable(shared, &filters) {
        for row in topic_rows(partition, &filters)? {
            rows.push(row);
            if rows.len() == TOPICS_A_RESULT {
                answers.push(topics_text(shared, &rows));
                rows.clear();
            }
        }
    }
    if !rows.is_empty() || answers.is_empty() {
        answers.push(topics_text(shared, &rows));
    }
    Ok(answers)
}

pub fn offsets(
    shared: &Shared,
    caller: &Caller,
    body: request::Offsets,
    stop: &Arc<AtomicBool>,
) -> Result<Value, Refusal> {
    let filters = request::filters(body.filters, body.pattern, caller, Access::Receive, stop)?;
    let asked = body.partitions.as_ref().map_or(0, Vec::len);
    shared.check_partitions("partitions", asked)?;
    let asked = body.epoch_before.as_ref().map_or(0, BTreeMap::len);
    shared.check_partitions("epoch_before", asked)?;
    let mut before = Map::new();
    for (text, offset) in body.epoch_before.iter().flatten() {
        before.insert(
            request::number("epoch_before", text)?.to_string(),
            json!(offset),
        );
    }
    let partitions: Vec<&Partition> = match &body.partitions {
        Some(numbers) => numbers
            .iter()
            .map(|number| shared.partition(*number))
            .collect::<Result<_, _>>()?,
        None => reachable(shared, &filters).collect(),
    };
    let mut rows = Map::new();
    for partition in partitions {
        let number = partition.id().to_string();
        let before = before.get(&number).and_then(Value::as_u64);
        rows.insert(number, row(partition, body.time_us, before)?);
    }
    Ok(json!({"log_id": shared.log_id, "partitions": rows}))
}

fn row(
    partition: &Partition,
    time_us: Option<i64>,
    epoch_before: Option<u64>,
) -> Result<Value, Refusal> {
    let refused = |error| Refusal::from_read(partition, error);
    // The log start is read last, to be current. Retention may have passed this high watermark by then, so the answer
    // bounds the log start by it.
    let (epoch, high_watermark) = led(partition)?;
    let mut row = json!({
        "name": partition.name(),
        "class": partition.class().name(),
        "high_watermark": high_watermark.0,
        "epoch": epoch.0,
        "bytes": partition.size_bytes(),
    });
    if let Some(time_us) = time_us {
        let offset = partition.offset_for_time(time_us).map_err(refused)?;
        row["offset_for_time"] = json!(offset.min(high_watermark).0);
    }
    if let Some(offset) = epoch_before {
        row["epoch_before"] = json!(epoch_of_record_before(partition, Offset(offset))?);
    }
    row["log_start"] = json!(partition.log_start().0.min(high_watermark.0));
    let (gaps, left_out) = gap_rows(partition);
    row["gaps"] = json!(gaps);
    row["gaps_left_out"] = json!(left_out);
    Ok(row)
}

/// The high watermark, and the epoch in which it was that of the leader. A leader that is deposed has the epoch of the
/// next one a moment before it leaves its office: in that epoch readers may have been told of more.
fn led(partition: &Partition) -> Result<(Epoch, Offset), Refusal> {
    let (epoch, high_watermark) = (partition.epoch(), partition.high_watermark());
    if partition.is_following() || partition.epoch() != epoch {
        return Err(Refusal::not_leader(None));
    }
    Ok((epoch, high_watermark))
}

/// The lost offsets of a partition, ascending, and the number of older gaps left out of the list. Retention removed the
/// offsets below the log start.
pub fn gap_rows(partition: &Partition) -> (Vec<Value>, usize) {
    let row = |start: u64, end: u64, reason: &str, detail: &str| json!({"start": start, "end": end, "reason": reason, "detail": detail});
    let gaps = partition.gaps();
    let log_start = partition.log_start().0;
    let left_out = gaps.len().saturating_sub(GAPS_MAX);
    let removed = (log_start > 0).then(|| row(0, log_start, "retention", "below the log start"));
    let found = gaps[left_out..].iter().map(
        |Gap {
             range,
             kind,
             reason,
         }| {
            row(
                range.start.0.max(log_start),
                range.end.0,
                kind.name(),
                reason,
            )
        },
    );
    (removed.into_iter().chain(found).collect(), left_out)
}

/// Null at 0, above the high watermark, and if the record is gone.
pub fn epoch_of_record_before(
    partition: &Partition,
    offset: Offset,
) -> Result<Option<u64>, Refusal> {
    if offset > partition.high_watermark() {
        return Ok(None);
    }
    let epoch = partition
        .epoch_before(offset)
        .map_err(|error| Refusal::from_read(partition, error))?;
    Ok(epoch.map(|epoch| epoch.0))
}

#[cfg(test)]
mod tests {
    use headwater_log::{Epoch, Log, LogConfig, LogId, Offset, ReplicaConfig, Seams};
    use tonic::Status;

    use super::{ROW_BYTES, TopicRow, led};

    #[test]
    fn a_deposed_leader_tells_no_high_watermark_in_the_epoch_of_the_next_one() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut config = LogConfig::new(dir.path());
        config.expected_id = Some(LogId::from_bytes([7; 16]));
        config.replica = Some(ReplicaConfig {
            node: "n1".to_owned(),
            committed: Vec::new(),
            begin_anew_at: Vec::new(),
            secret: None,
            epoch: Epoch(0),
        });
        let (log, _) = Log::open(config, Seams::system()).expect("an empty folder");
        let partition = &log.partitions()[0];
        partition.lead(Epoch(1)).expect("it leads");
        let told = led(partition).ok();
        assert_eq!(told, Some((Epoch(1), Offset(0))));
        partition.follow(Epoch(2)).expect("it follows");
        let refused = led(partition).expect_err("another node leads");
        assert!(Status::from(refused).message().contains("not_leader"));
    }

    #[test]
    fn a_row_takes_no_more_memory_than_it_counts() {
        assert!(size_of::<TopicRow<'_>>() <= ROW_BYTES);
    }
}
