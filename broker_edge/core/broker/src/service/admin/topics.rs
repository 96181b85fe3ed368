//! `/api/v1/topics`: the topics that the log has, found by a part of their names.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::routing::get;
use axum::{Json, Router};
use headwater_log::Partition;
use serde::{Deserialize, Serialize};

use super::failure::Failure;
use crate::service::callers::caller::Caller;
use crate::service::callers::shares::Work;
use crate::service::error::Refusal;
use crate::service::shared::Shared;

const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1_000;
/// The most that the names of one partition may take while they are looked through.
const NAMES_BYTES_MAX: usize = 64 << 20;

pub fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/api/v1/topics", get(list))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    #[serde(default)]
    contains: String,
    after: Option<String>,
    limit: Option<usize>,
}

#[derive(Debug, Serialize)]
struct Page {
    topics: Vec<Row>,
    next: Option<String>,
}

#[derive(Debug, Serialize)]
struct Row {
    topic: Box<str>,
    partition: u32,
    name: String,
    class: &'static str,
    first: u64,
    next: u64,
}

async fn list(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    parameters: Result<Query<Parameters>, QueryRejection>,
) -> Result<Json<Page>, Failure> {
    let Query(wanted) = parameters?;
    let limit = Failure::check_limit(wanted.limit, LIMIT, LIMIT_MAX)?;
    let page = shared.blocking(&caller, Work::Look, move |shared, _| {
        page(
            shared.log.partitions(),
            &wanted.contains,
            wanted.after.as_deref(),
            limit,
        )
    });
    Ok(Json(page.await?))
}

/// The first `limit` topics after `after`. A name that lies in two partitions is in one page.
fn page(
    partitions: &[Partition],
    contains: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Page, Refusal> {
    let mut rows = Vec::new();
    for partition in partitions {
        let high_watermark = partition.high_watermark();
        let is_wanted =
            |topic: &str| topic.contains(contains) && after.is_none_or(|after| topic > after);
        let found = partition
            .topics_within(&is_wanted, NAMES_BYTES_MAX)
            .map_err(|error| Refusal::from_read(partition, error))?;
        let found = found.ok_or_else(|| {
            let name = partition.name();
            Refusal::exhausted(format!(
                "{name} has more matching topics than can be sorted: search for more of the name"
            ))
        })?;
        let found = found
            .into_iter()
            .filter(|range| range.first < high_watermark);
        rows.extend(found.map(|range| (range, partition)));
    }
    rows.sort_unstable_by(|(one, a), (other, b)| {
        (&*one.topic, a.id()).cmp(&(&*other.topic, b.id()))
    });
    let has_more = rows.len() > limit;
    let mut end = limit.min(rows.len());
    while end < rows.len() && rows[end].0.topic == rows[end - 1].0.topic {
        end += 1;
    }
    rows.truncate(end);
    let topics: Vec<Row> = rows
        .into_iter()
        .map(|(range, partition)| Row {
            topic: range.topic.into(),
            partition: partition.id().0,
            name: partition.name().to_owned(),
            class: partition.class().name(),
            first: range.first.0,
            next: range.next.min(partition.high_watermark()).0,
        })
        .collect();
    let next = topics
        .last()
        .filter(|_| has_more)
        .map(|row| row.topic.to_string());
    Ok(Page { topics, next })
}
