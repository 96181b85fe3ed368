//! `/api/v1/trace`: where one record is, and whose place has passed it (docs/console.md).
//!
//! It looks at what the broker keeps anyway: the log, the places of sessions and those of groups. No delivery is recorded,
//! so none is told.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::routing::get;
use axum::{Json, Router};
use headwater_log::{Offset, Partition};
use headwater_mqtt::topic::{filter_matches, parse_shared};
use serde::{Deserialize, Serialize};

use super::clients::ask;
use super::failure::Failure;
use crate::auth::Access;
use crate::engine::{ClientsRequest, PageQuery};
use crate::event_loop::Command;
use crate::service::callers::caller::Caller;
use crate::service::callers::shares::Work;
use crate::service::error::Refusal;
use crate::service::groups::group::Group;
use crate::service::office::Office;
use crate::service::records::shown::{One, Shown, one};
use crate::service::request;
use crate::service::shared::Shared;

/// Sessions that are looked at, beside those of the publisher and of the routing key.
const SESSIONS_MAX: usize = 200;
/// Of an offset in a sentence.
const DIGITS_MAX: usize = 40;
/// Of a payload.
const VALUE_BYTES_MAX: usize = 64 << 10;

pub fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/api/v1/trace", get(trace))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    at: String,
}

#[derive(Debug, Serialize)]
struct Trace {
    partition: u32,
    name: String,
    offset: u64,
    log_start: u64,
    high_watermark: u64,
    #[serde(flatten)]
    found: Found,
    record: Option<Shown>,
    batch: Option<BatchOf>,
    sessions: Vec<SessionPlace>,
    sessions_left_out: bool,
    groups: Vec<GroupPlace>,
}

#[derive(Debug, Serialize)]
struct Found {
    state: &'static str,
    reason: String,
}

#[derive(Debug, Serialize)]
struct BatchOf {
    first: u64,
    next: u64,
    epoch: u64,
}

#[derive(Debug, Serialize)]
struct SessionPlace {
    client_id: String,
    connected: bool,
    filter: String,
    /// Null for a share, whose place is that of its group, and for a session without a place in the partition.
    next: Option<u64>,
    has_passed: Option<bool>,
}

#[derive(Debug, Serialize)]
struct GroupPlace {
    group: String,
    /// How far it has looked.
    next: u64,
    has_passed: bool,
    /// It has looked at the record, which does not match its filter.
    without_match: bool,
    is_idle: bool,
}

async fn trace(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    parameters: Result<Query<Parameters>, QueryRejection>,
) -> Result<Json<Trace>, Failure> {
    let Query(wanted) = parameters?;
    let (partition, offset) = place_of(&shared, &wanted.at)?;
    let partition = partition.clone();
    let (of, by, office) = (partition.clone(), caller.clone(), shared.office.get().ok());
    let (found, one, groups) = shared
        .blocking(&caller, Work::Look, move |_, _| {
            let (found, one) = find(&of, offset, &by)?;
            let groups = office.map_or_else(
                || Ok(Vec::new()),
                |office| groups(&office, &by, &of, offset),
            );
            Ok((found, one, groups?))
        })
        .await?;
    let (sessions, sessions_left_out) = match &one {
        Some(one) => sessions(&shared, &partition, offset, one).await?,
        None => (Vec::new(), false),
    };
    let (record, batch) = match one {
        Some(one) => {
            let batch = BatchOf {
                first: one.batch.start.0,
                next: one.batch.end.0,
                epoch: one.epoch.0,
            };
            (one.record, Some(batch))
        }
        None => (None, None),
    };
    Ok(Json(Trace {
        partition: partition.id().0,
        name: partition.name().to_owned(),
        offset: offset.0,
        log_start: partition.log_start().0,
        high_watermark: partition.high_watermark().0,
        found,
        record,
        batch,
        sessions,
        sessions_left_out,
        groups,
    }))
}

/// The partition and the offset that `telemetry-0:4711` names, or `3:4711`.
fn place_of<'s>(shared: &'s Shared, at: &str) -> Result<(&'s Partition, Offset), Failure> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let named = at.trim().rsplit_once(':');
    let Some((name, offset)) = named.filter(|(_, offset)| is_number(offset)) else {
        let message =
            "at: write the name of a partition, a colon and an offset, such as telemetry-0:4711";
        return Err(Failure::invalid(message));
    };
    let partition = shared.named(name)?;
    let offset = offset.parse().map_err(|_| {
        let (offset, end) = (cut(offset), partition.high_watermark());
        Failure::invalid(format!(
            "at: the offset {offset} is too large: {} ends at {end}, and no offset is above {}",
            partition.name(),
            u64::MAX
        ))
    })?;
    Ok((partition, Offset(offset)))
}

/// A number that was typed, which may be of any length.
fn cut(digits: &str) -> String {
    match digits.get(..DIGITS_MAX) {
        Some(first) if digits.len() > DIGITS_MAX => format!("{first}…"),
        _ => digits.to_owned(),
    }
}

/// What became of the record, and the record if it can be read.
fn find(
    partition: &Partition,
    offset: Offset,
    caller: &Caller,
) -> Result<(Found, Option<One>), Refusal> {
    let end = partition.high_watermark();
    let told = |state, reason: String| Ok((Found { state, reason }, None));
    if offset >= end {
        return told(
            "not_yet",
            format!("no record with this offset is on the disk: the partition ends at {end}"),
        );
    }
    if offset < partition.log_start() {
        return told(
            "removed",
            format!(
                "retention has removed what lies below {}",
                partition.log_start()
            ),
        );
    }
    let gaps = partition.gaps();
    if let Some(gap) = gaps.iter().find(|gap| gap.range.contains(&offset)) {
        return told("lost", format!("{}: {}", gap.kind.name(), gap.reason));
    }
    let may_replay = |topic: &str| caller.may(Access::Replay, topic);
    let one = one(partition, offset, VALUE_BYTES_MAX, &may_replay)?;
    let (state, reason) = match &one.record {
        Some(_) => ("here", "on the disk, and acknowledged"),
        None => (
            "purged",
            "its contents were removed on request; the offset remains",
        ),
    };
    let reason = reason.to_owned();
    Ok((Found { state, reason }, Some(one)))
}

/// The groups that read the partition.
fn groups(
    office: &Office,
    caller: &Caller,
    partition: &Partition,
    offset: Offset,
) -> Result<Vec<GroupPlace>, Refusal> {
    let all = request::Groups {
        after: None,
        limit: None,
    };
    let page = office.groups.page(caller, &all, "")?;
    let place = |(group, of): (String, Group)| {
        let place = of.partitions.get(&partition.id().0)?;
        let (next, finished) = (place.next()?, place.finished()?);
        let has_passed = next > offset.0;
        Some(GroupPlace {
            is_idle: office.holds.is_idle(&group),
            group,
            next,
            has_passed,
            without_match: has_passed && finished <= offset.0,
        })
    };
    Ok(page.groups.into_iter().filter_map(place).collect())
}

/// The sessions with a filter for the record's topic, and whether some were not looked at.
async fn sessions(
    shared: &Shared,
    partition: &Partition,
    offset: Offset,
    one: &One,
) -> Result<(Vec<SessionPlace>, bool), Failure> {
    let Some(record) = &one.record else {
        return Ok((Vec::new(), false));
    };
    let query = PageQuery {
        limit: SESSIONS_MAX,
        ..PageQuery::default()
    };
    let page = ask(shared, |answer| {
        Command::Clients(ClientsRequest::List { query, answer })
    })
    .await?;
    let rows = page.clients.iter().filter(|row| row.subscriptions > 0);
    let mut names: Vec<String> = rows.map(|row| row.client_id.clone()).collect();
    // Those who most likely have to do with it, in a large fleet.
    for name in [record.client_id(), &one.key] {
        if page.next.is_some() && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    let number = partition.id().0;
    let mut found = Vec::new();
    for client_id in names {
        let shown = ask(shared, |answer| {
            Command::Clients(ClientsRequest::Show { client_id, answer })
        });
        // It may have gone meanwhile.
        let Some(detail) = shown.await? else {
            continue;
        };
        let mut filters = detail.filters.into_iter().map(|row| row.filter);
        let Some(filter) = filters.find(|filter| matches(filter, record.topic())) else {
            continue;
        };
        let cursor = detail
            .cursors
            .iter()
            .find(|cursor| cursor.partition == number);
        let next = cursor
            .filter(|_| !is_shared(&filter))
            .map(|cursor| cursor.next);
        found.push(SessionPlace {
            client_id: detail.row.client_id,
            connected: detail.row.connected,
            filter,
            next,
            has_passed: next.map(|next| next > offset.0),
        });
    }
    Ok((found, page.next.is_some()))
}

fn is_shared(filter: &str) -> bool {
    matches!(parse_shared(filter), Ok(Some(_)))
}

fn matches(filter: &str, topic: &str) -> bool {
    match parse_shared(filter) {
        Ok(Some(shared)) => filter_matches(shared.filter, topic),
        _ => filter_matches(filter, topic),
    }
}
