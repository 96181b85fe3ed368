//! The actions of Flight: parses the body of each and passes it to the module that answers it.

use std::sync::Arc;

use arrow_flight::Action;
use headwater_log::Partition;
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::backup;
use crate::service::callers::caller::Caller;
use crate::service::callers::shares::Work;
use crate::service::error::Refusal;
use crate::service::groups::gaps::{self, GapRecord, Gaps};
use crate::service::groups::tenure::Tenure;
use crate::service::office::Office;
use crate::service::records::{offsets, plan};
use crate::service::request;
use crate::service::shared::Shared;

pub const ACTIONS: [(&str, &str); 10] = [
    ("version", "version, protocol, disk format and log id"),
    (
        "topics",
        "topics with their partition, first and next offset",
    ),
    (
        "offsets",
        "log start, high watermark, epoch, offset for a time",
    ),
    (
        "plan",
        "how far to read within limits that count matching records",
    ),
    ("commit", "commits offsets of a consumer group"),
    ("committed", "what a consumer group committed"),
    ("groups", "the consumer groups that the caller may use"),
    (
        "reset_group",
        "moves a consumer group to other offsets, and fences its readers",
    ),
    ("remove_group", "removes a consumer group"),
    ("gap", "records a gap that a reader found"),
];

/// What the audit logs under the name of the caller: an operator did it, or the owner of a group.
pub const OF_OPERATORS: [&str; 3] = ["backup", "remove_group", "reset_group"];

/// The longest reason or log id in a gap report.
const GAP_TEXT_BYTES_MAX: usize = 4_096;

/// Answers an action.
pub async fn act(
    shared: &Arc<Shared>,
    caller: Caller,
    action: &Action,
) -> Result<Vec<String>, Refusal> {
    let body = &action.body;
    match action.r#type.as_str() {
        name @ "backup" => caller.must_operate(name)?,
        name @ ("commit" | "committed" | "groups" | "reset_group" | "gap") => {
            caller.must_replay(name)?
        }
        _ => {}
    }
    if action.r#type == "version" {
        request::read::<request::Empty>("version", body)?;
        return Ok(vec![offsets::version(shared).to_string()]);
    }
    let office = shared.office.get()?;
    let groups = &office.groups;
    let one = match action.r#type.as_str() {
        "topics" => {
            let topics = shared.look(&caller, "topics", body, offsets::topics);
            return topics.await;
        }
        "offsets" => {
            let offsets = shared.look(&caller, "offsets", body, offsets::offsets);
            offsets.await?
        }
        "plan" => shared.look(&caller, "plan", body, plan::plan).await?,
        "commit" => {
            let body = shared.body(&caller, "commit", body).await?;
            groups.commit(&caller, body).await?
        }
        "committed" => {
            let body = request::read("committed", body)?;
            groups.committed(&caller, body).await?
        }
        "groups" => {
            // Every group is decoded to find its owner.
            let asked = Arc::clone(&office);
            let page = shared.look(&caller, "groups", body, move |_, by, body, _| {
                asked.groups.groups(by, &body)
            });
            let page = page.await?;
            groups.durable().await?;
            page
        }
        "reset_group" => {
            let body = shared.body(&caller, "reset_group", body).await?;
            groups.reset(&caller, body).await?
        }
        "remove_group" => {
            let body = request::read("remove_group", body)?;
            groups.remove(&caller, body).await?
        }
        "gap" => report_gap(shared, office, &caller, body).await?,
        "backup" => {
            let body: request::Backup = request::read("backup", body)?;
            shared
                .blocking(&caller, Work::Write, move |shared, _| {
                    backup::backup(shared, &body)
                })
                .await?
        }
        other => return Err(Refusal::not_found(format!("there is no action `{other}`"))),
    };
    Ok(vec![one.to_string()])
}

async fn report_gap(
    shared: &Arc<Shared>,
    office: Arc<Office>,
    caller: &Caller,
    body: &[u8],
) -> Result<Value, Refusal> {
    let body: request::Gap = request::read("gap", body)?;
    if let Some(group) = &body.group {
        office.groups.check_use(caller, group)?;
    }
    shared.shares.report(caller)?;
    let (runtime, by) = (Handle::current(), caller.clone());
    let work =
        move |shared: &Arc<Shared>, _: &_| record_gap(shared, &office.tenure, &by, &body, &runtime);
    shared.blocking(caller, Work::Write, work).await
}

/// Appends to `$gaps` a gap that a reader found.
fn record_gap(
    shared: &Arc<Shared>,
    tenure: &Tenure,
    caller: &Caller,
    gap: &request::Gap,
    runtime: &Handle,
) -> Result<Value, Refusal> {
    for (field, text) in [
        ("reason", Some(&gap.reason)),
        ("log_id", gap.log_id.as_ref()),
    ] {
        if text.is_some_and(|text| text.len() > GAP_TEXT_BYTES_MAX) {
            let message = format!("{field} is longer than {GAP_TEXT_BYTES_MAX} bytes");
            return Err(Refusal::invalid(field, message));
        }
    }
    if gap.reason.starts_with(gaps::OF_RETENTION) {
        let message = "a reason may not begin with `retention: `, which is for the broker's own reports: describe what the reader found";
        return Err(Refusal::invalid("reason", message));
    }
    if gap.end.is_some_and(|end| gap.start >= end) {
        return Err(Refusal::invalid(
            "end",
            "the end of a gap must be above its start",
        ));
    }
    let is_elsewhere = gap
        .log_id
        .as_ref()
        .is_some_and(|log_id| *log_id != shared.log_id);
    if gap.end.is_none() && !is_elsewhere {
        return Err(Refusal::invalid("end", "a gap in this log needs an `end`"));
    }
    let of = if is_elsewhere {
        None
    } else {
        Some(shared.partition(gap.partition)?)
    };
    let gaps = Gaps::of(&shared.log)
        .ok_or_else(|| Refusal::internal("the topic $gaps has no partition"))?;
    let partition = &gaps.partition;
    let records = gaps
        .records(&GapRecord {
            of: gap.partition,
            name: of.map(Partition::name),
            log_id: gap.log_id.as_deref().filter(|_| is_elsewhere),
            start: gap.start,
            end: gap.end,
            reason: &gap.reason,
            group: gap.group.as_deref(),
            user: caller.user().map(|user| &**user),
        })
        .map_err(|_| Refusal::internal("the record of the gap is too large"))?;
    let range = shared.wait_for_room(runtime, partition, records, Partition::append)?;
    let progress = &shared.progress[partition.id().0 as usize];
    runtime.block_on(tenure.reach(progress, range.end))?;
    Ok(json!({}))
}
