//! `/api/v1/records` and `/api/v1/tail`: records for pages (docs/console.md). Both show only what the caller may replay.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use headwater_log::{Offset, Partition};
use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval};

use super::failure::Failure;
use super::stream::{Events, Over};
use crate::auth::Access;
use crate::filter::Filters;
use crate::service::callers::caller::Caller;
use crate::service::callers::shares::{ReadPermits, Work};
use crate::service::error::Refusal;
use crate::service::records::offsets::reachable;
use crate::service::records::shown::{Room, Shown, look};
use crate::service::request;
use crate::service::shared::Shared;

const LIMIT: usize = 100;
const LIMIT_MAX: usize = 500;
/// Of one answer of `/api/v1/records`.
const ANSWER: Room = Room {
    records: LIMIT_MAX,
    bytes: 4 << 20,
    scan_bytes: 64 << 20,
    value_bytes: 64 << 10,
};
/// Of one event of a tail.
const EVENT: Room = Room {
    records: 50,
    bytes: 256 << 10,
    scan_bytes: 1 << 20,
    value_bytes: 4 << 10,
};
/// How often a tail looks for new records.
const EVERY: Duration = Duration::from_millis(250);

pub fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/api/v1/records", get(records))
        .route("/api/v1/tail", get(tail))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordsParameters {
    partition: u32,
    from: Option<String>,
    time_us: Option<i64>,
    filter: Option<String>,
    limit: Option<usize>,
}

#[derive(Debug, Serialize)]
struct Answer {
    records: Vec<Shown>,
    next: u64,
    log_start: u64,
    high_watermark: u64,
    gap: Option<Gap>,
}

#[derive(Debug, Serialize)]
struct Gap {
    start: u64,
    end: u64,
}

async fn records(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    parameters: Result<Query<RecordsParameters>, QueryRejection>,
) -> Result<Json<Answer>, Failure> {
    let Query(wanted) = parameters?;
    let limit = Failure::check_limit(wanted.limit, LIMIT, LIMIT_MAX)?;
    let by = caller.clone();
    let answer = shared.blocking(&caller, Work::Look, move |shared, stop| {
        let filters = wanted.filter.clone().map(|filter| vec![filter]);
        let filters = request::filters(filters, None, &by, Access::Replay, stop)?;
        let partition = shared.partition(wanted.partition)?;
        let from = begin(partition, &wanted, limit)?;
        let until = partition.high_watermark();
        let room = Room {
            records: limit,
            ..ANSWER
        };
        let piece = look(partition, &filters, (from, until), room)?;
        Ok(Answer {
            records: piece.records,
            next: piece.next.0,
            log_start: partition.log_start().0,
            high_watermark: until.0,
            gap: piece.gap.map(|(start, end)| Gap {
                start: start.0,
                end: end.0,
            }),
        })
    });
    Ok(Json(answer.await?))
}

/// Where an answer begins.
fn begin(
    partition: &Partition,
    wanted: &RecordsParameters,
    limit: usize,
) -> Result<Offset, Refusal> {
    let (log_start, high_watermark) = (partition.log_start(), partition.high_watermark());
    let from = match (wanted.from.as_deref(), wanted.time_us) {
        (Some(_), Some(_)) => {
            let message = "give either `from` or `time_us`, not both";
            return Err(Refusal::invalid("time_us", message));
        }
        (None, Some(time_us)) => {
            let offset = partition.offset_for_time(time_us);
            return offset.map_err(|error| Refusal::from_read(partition, error));
        }
        (from, None) => from.unwrap_or("latest"),
    };
    match from {
        "earliest" => Ok(log_start),
        "latest" => Ok(Offset(high_watermark.0.saturating_sub(limit as u64)).max(log_start)),
        number => {
            let offset = number.parse().map_err(|_| {
                let message =
                    format!("`{number}` is no offset: write a number, `earliest` or `latest`");
                Refusal::invalid("from", message)
            })?;
            if offset > high_watermark.0 || offset < log_start.0 {
                return Err(Refusal::out_of_range(partition, offset));
            }
            Ok(Offset(offset))
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TailParameters {
    filter: Option<String>,
}

async fn tail(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    parameters: Result<Query<TailParameters>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(wanted) = parameters?;
    let wanted = wanted.filter.map(|filter| vec![filter]);
    // For its errors, before anything is sent. The filters are made anew for each look, with the rights of then.
    let filters = request::filters(
        wanted.clone(),
        None,
        &caller,
        Access::Replay,
        &Arc::default(),
    )?;
    let places = reachable(&shared, &filters)
        .map(|partition| (partition.clone(), partition.high_watermark()));
    let places = places.collect();
    let permits = shared.shares.read(&caller).inspect_err(|_| {
        shared.metrics.flight.reads_refused.inc();
    })?;
    let (events, response) = Events::open(&shared, caller)?;
    let tail = Tail {
        shared,
        wanted,
        places,
        _permits: permits,
    };
    tokio::spawn(tail.run(events));
    Ok(response)
}

#[derive(Debug, Default, Serialize)]
struct New {
    records: Vec<Shown>,
    skipped: u64,
}

struct Tail {
    shared: Arc<Shared>,
    wanted: Option<Vec<String>>,
    /// The partitions that can have a wanted record, and the offset to look at next.
    places: Vec<(Partition, Offset)>,
    _permits: ReadPermits,
}

impl Tail {
    async fn run(mut self, mut events: Events) {
        // A page that shows nothing yet still learns that the stream has begun.
        let mut first = true;
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = events.over() => return,
            }
            match self.turn(&mut events, first).await {
                Ok(()) => first = false,
                Err(Over) => return,
            }
        }
    }

    async fn turn(&mut self, events: &mut Events, is_first: bool) -> Result<(), Over> {
        events.renew()?;
        let has_moved =
            |(partition, next): &(Partition, Offset)| partition.high_watermark() > *next;
        if !is_first && !self.places.iter().any(has_moved) {
            return Ok(());
        }
        let (caller, wanted) = (events.caller.clone(), self.wanted.clone());
        let mut places = std::mem::take(&mut self.places);
        let looked = self
            .shared
            .blocking(&events.caller, Work::Look, move |_, stop| {
                let filters = request::filters(wanted, None, &caller, Access::Replay, stop)?;
                let new = look_on(&mut places, &filters)?;
                Ok((places, new))
            });
        // Rights that are gone, or a disk that fails: the page asks again and is told.
        let (places, new) = looked.await.map_err(|_| Over)?;
        self.places = places;
        if !is_first && new.records.is_empty() && new.skipped == 0 {
            return Ok(());
        }
        let data = serde_json::to_string(&new).expect("names and numbers are JSON");
        events.send("records", &data).await
    }
}

/// What is new in all places, as much as an event holds; the rest is passed over.
fn look_on(places: &mut [(Partition, Offset)], filters: &Filters) -> Result<New, Refusal> {
    let mut new = New::default();
    for (partition, next) in places {
        let until = partition.high_watermark();
        let from = (*next).max(partition.log_start());
        new.skipped += from.0 - next.0;
        if from < until {
            let room = Room {
                records: EVENT.records - new.records.len(),
                ..EVENT
            };
            let piece = look(partition, filters, (from, until), room)?;
            new.skipped += until.0.saturating_sub(piece.next.0);
            new.records.extend(piece.records);
        }
        *next = until.max(from);
    }
    Ok(new)
}
