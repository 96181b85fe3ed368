//! `/api/v1/segments`: of which files the log consists, and which of them go next (docs/console.md).

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::routing::get;
use axum::{Json, Router};
use headwater_log::{Offset, Partition, SegmentInfo};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::failure::Failure;
use crate::service::callers::caller::Caller;
use crate::service::callers::shares::Work;
use crate::service::live::{removal, standing};
use crate::service::shared::Shared;

const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1_000;
/// Of the files that a partition keeps aside, the largest ones are named.
const KEPT_MAX: usize = 100;

pub fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/api/v1/segments", get(list))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    /// A name or a number.
    partition: Option<String>,
    after: Option<String>,
    limit: Option<usize>,
}

#[derive(Debug, Serialize)]
struct Row {
    partition: u32,
    name: String,
    base: u64,
    next: u64,
    bytes: u64,
    first_us: Option<i64>,
    last_us: Option<i64>,
    state: &'static str,
    index: &'static str,
}

async fn list(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    parameters: Result<Query<Parameters>, QueryRejection>,
) -> Result<Json<Value>, Failure> {
    let Query(wanted) = parameters?;
    let limit = Failure::check_limit(wanted.limit, LIMIT, LIMIT_MAX)?;
    let partitions = match &wanted.partition {
        Some(name) => vec![shared.named(name)?.clone()],
        None => shared.log.partitions().to_vec(),
    };
    let after = match &wanted.after {
        Some(after) => Some(place_of(&shared, after)?),
        None => None,
    };
    let page = shared.blocking(&caller, Work::Look, move |shared, _| {
        let (segments, next) = page(&partitions, after, limit);
        let mut answer = json!({"segments": segments, "next": next});
        // A reader of further pages has it.
        if after.is_none() {
            let told = partitions.iter().map(|one| partition(shared, one));
            answer["partitions"] = told.collect();
        }
        Ok(answer)
    });
    Ok(Json(page.await?))
}

/// The partition and the base offset that `telemetry-0:4711` names.
fn place_of(shared: &Shared, after: &str) -> Result<(u32, u64), Failure> {
    let place = after
        .rsplit_once(':')
        .and_then(|(name, base)| Some((name, base.parse().ok()?)));
    let Some((name, base)) = place else {
        let message = "after: write what `next` of the page before says, such as telemetry-0:4711";
        return Err(Failure::invalid(message));
    };
    Ok((shared.named(name)?.id().0, base))
}

/// The first `limit` segments after a place, in the order of partitions and offsets, and where the next page begins.
fn page(
    partitions: &[Partition],
    after: Option<(u32, u64)>,
    limit: usize,
) -> (Vec<Row>, Option<String>) {
    let mut rows = Vec::new();
    for partition in partitions {
        let from = match after {
            Some((number, _)) if partition.id().0 < number => continue,
            Some((number, base)) if partition.id().0 == number => match base.checked_add(1) {
                Some(from) => from,
                None => continue,
            },
            _ => 0,
        };
        // One more tells whether there is a next page.
        let wanted = limit + 1 - rows.len();
        let segments = partition.segments(Offset(from), wanted).into_iter();
        rows.extend(segments.map(|segment| row(partition, &segment)));
        if rows.len() > limit {
            rows.truncate(limit);
            let last = rows.last().map(|row| format!("{}:{}", row.name, row.base));
            return (rows, last);
        }
    }
    (rows, None)
}

/// Nothing is told of records that are not committed.
fn row(partition: &Partition, segment: &SegmentInfo) -> Row {
    let end = partition.high_watermark();
    let next = segment.next.min(end).max(segment.base);
    let is_empty = next == segment.base;
    // Of the active segment the log knows the time of what is written, not of what is committed.
    let last_us = if segment.is_sealed {
        segment.last_time_us
    } else {
        let last = next.0.saturating_sub(1);
        standing::time_us_of(partition, Offset(last))
    };
    Row {
        partition: partition.id().0,
        name: partition.name().to_owned(),
        base: segment.base.0,
        next: next.0,
        bytes: segment.bytes,
        first_us: segment.first_time_us.filter(|_| !is_empty),
        last_us: last_us.filter(|_| !is_empty),
        state: if segment.is_sealed {
            "sealed"
        } else {
            "active"
        },
        index: segment.index.name(),
    }
}

fn partition(shared: &Shared, partition: &Partition) -> Value {
    let class = partition.class();
    let class = shared.classes.iter().find(|one| one.class == class);
    let limits = class.map(|class| {
        json!({
            "age_s": class.retention_age.map(|age| age.as_secs()),
            "bytes": class.retention_bytes,
            "hard_bytes": class.retention_hard_bytes,
            "hold_for_groups": class.honours_holds,
        })
    });
    let mut kept = partition.kept_files();
    kept.sort_by(|one, other| (other.bytes, &one.name).cmp(&(one.bytes, &other.name)));
    let left_out = kept.len().saturating_sub(KEPT_MAX);
    kept.truncate(KEPT_MAX);
    let kept: Vec<Value> = kept
        .iter()
        .map(|file| json!({"name": file.name, "bytes": file.bytes}))
        .collect();
    json!({
        "partition": partition.id().0,
        "name": partition.name(),
        "class": partition.class().name(),
        "log_start": partition.log_start().0,
        "high_watermark": partition.high_watermark().0,
        "bytes": partition.size_bytes(),
        "file_bytes": partition.file_bytes(),
        "segments": partition.segments(Offset(0), usize::MAX).len(),
        "bytes_per_s": shared.samples.bytes_per_s(partition),
        "retention": limits,
        "goes_next": removal::next_of(shared, partition),
        "kept_files": kept,
        "kept_files_left_out": left_out,
    })
}
