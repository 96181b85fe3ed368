//! Admin HTTP: health, readiness, metrics, status. Requests that the event loop answers have their own files.

pub mod access;
pub mod artifact_manifest;
pub mod artifacts;
pub mod browser;
pub mod byte_range;
pub mod clients;
pub mod cluster;
pub mod console;
pub mod events;
pub mod failure;
pub mod groups;
pub mod guard;
pub mod http;
pub mod live;
pub mod operate;
pub mod records;
pub mod segments;
pub mod session;
pub mod stream;
pub mod topics;
pub mod trace;
pub mod whoami;

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use headwater_log::{Cause, DiskLevel, Hold, Partition, PartitionState};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::VERSION;
use crate::audit::Refusals;
use crate::config;
use crate::metrics::{ClusterMetrics, Format, PartitionStats};
use crate::service::connections::incoming::Incoming;
use crate::service::office::Office;
use crate::service::records::offsets::gap_rows;
use crate::service::shared::Shared;
use browser::Browser;
use failure::Failure;

/// The most groups that the status lists for a partition: those furthest behind.
const HELD_BY_MAX: usize = 16;

pub async fn serve(
    shared: Arc<Shared>,
    listener: Incoming,
    browser: Browser,
    stopping: watch::Receiver<bool>,
) {
    let routes = routes(&shared, browser);
    let (limits, metrics) = (shared.config.admin.clone(), Arc::clone(&shared.metrics));
    http::serve(listener, routes, limits, metrics, stopping).await;
}

/// Every path, behind its two guards.
pub fn routes(shared: &Arc<Shared>, browser: Browser) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/api/v1/status", get(status))
        .route("/api/v1/refusals", get(refusals))
        .route("/api/v1/settings", get(settings))
        .merge(access::routes())
        .merge(clients::routes())
        .merge(cluster::routes())
        .merge(console::routes())
        .merge(events::routes())
        .merge(groups::routes())
        .merge(live::routes())
        .merge(operate::routes())
        .merge(records::routes())
        .merge(segments::routes())
        .merge(topics::routes())
        .merge(trace::routes())
        .merge(artifacts::routes())
        .merge(session::routes())
        .merge(whoami::routes())
        .route("/api/v1/reload", post(reload))
        .layer(from_fn_with_state(Arc::clone(shared), guard::guard))
        .layer(from_fn_with_state(Arc::new(browser), browser::guard))
        .with_state(Arc::clone(shared))
}

/// Reloads users, token keys and the ACL. A file with an error keeps its old contents.
async fn reload(State(shared): State<Arc<Shared>>) -> Response {
    let reloads = Arc::clone(&shared.reloads);
    match tokio::task::spawn_blocking(move || reloads.run()).await {
        Ok(Ok(())) => Json(json!({"reloaded": true})).into_response(),
        Ok(Err(message)) => Failure::invalid(message).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    let reasons: Vec<Value> = shared
        .log
        .partitions()
        .iter()
        .filter_map(|partition| {
            let reason = match partition.state() {
                PartitionState::Running => return None,
                PartitionState::Full => {
                    "no space left on the device or in the disk budget; appends resume when there is space".to_owned()
                }
                PartitionState::Following => "another node leads it".to_owned(),
                PartitionState::Stopped(reason) => reason,
            };
            Some(json!({"partition": partition.name(), "reason": reason}))
        })
        .collect();
    let not_ready = |body: Value| (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response();
    if shared.metrics.detail.draining.get() > 0 {
        return not_ready(json!({"ready": false, "draining": true}));
    }
    // Who balances clients over nodes sends them to the one that is ready.
    if shared.office.get().is_err() {
        return not_ready(json!({"ready": false, "standby": true}));
    }
    if reasons.is_empty() {
        return match shared.log.disk_use().level {
            DiskLevel::Normal => "ready".into_response(),
            _ => Json(json!({"ready": true, "disk": disk_status(&shared)})).into_response(),
        };
    }
    not_ready(json!({"ready": false, "partitions": reasons, "disk": disk_status(&shared)}))
}

async fn metrics(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    // Without an answer there are none: the last ones would say of a node that hangs that it leads.
    let cluster = shared.cluster_report().await;
    *shared.metrics.cluster.lock() = cluster.as_ref().map(ClusterMetrics::of);
    for partition in shared.log.partitions() {
        shared.metrics.set_partition(&PartitionStats {
            name: partition.name(),
            log_start: partition.log_start().0,
            high_watermark: partition.high_watermark().0,
            bytes: partition.size_bytes(),
            file_bytes: partition.file_bytes(),
            held_offset: held_offset(&shared, partition),
            oldest_time_s: partition.oldest_time_us().map(|us| us as f64 / 1e6),
            queued_bytes: partition.queued_bytes(),
            running: partition.state() == PartitionState::Running,
            gap_offsets: partition
                .gaps()
                .iter()
                .map(|gap| gap.range.end.0 - gap.range.start.0)
                .sum(),
            damaged_bytes: partition.damaged_bytes(),
        });
        let stats = partition.stats();
        shared.metrics.log.set_partition(partition.name(), &stats);
    }
    shared.metrics.log.set_disk(&shared.log.disk_use());
    let accept = headers.get(header::ACCEPT);
    let format = Format::of(accept.and_then(|value| value.to_str().ok()));
    match format.write(&shared.metrics.registry()) {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The refusals since the start, by caller.
async fn refusals(State(shared): State<Arc<Shared>>) -> Json<Refusals> {
    Json(shared.metrics.audit.refusals())
}

/// The settings that the broker was started with. Secrets are in files, which these name.
async fn settings(State(shared): State<Arc<Shared>>) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (kind, config::to_json(&shared.config)).into_response()
}

async fn status(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let partitions: Vec<Value> = shared
        .log
        .partitions()
        .iter()
        .map(|partition| partition_status(&shared, partition))
        .collect();
    Json(json!({
        "log_id": shared.log_id,
        "version": VERSION,
        "connections": shared.metrics.mqtt.connections.get(),
        "sessions": shared.metrics.mqtt.sessions.get(),
        "disk": disk_status(&shared),
        "partitions": partitions,
    }))
}

fn disk_status(shared: &Shared) -> Value {
    let disk = shared.log.disk_use();
    json!({
        "used_bytes": disk.used_bytes,
        "budget_bytes": disk.budget_bytes,
        "level": disk.level.name(),
    })
}

/// What consumer groups hold of a partition. A node that serves no clients does not know.
fn holds(shared: &Shared, partition: &Partition) -> Vec<Hold> {
    let below = |office: Arc<Office>| {
        office
            .holds
            .below(partition.id(), partition.high_watermark())
    };
    shared.office.get().map(below).unwrap_or_default()
}

/// The lowest offset that a consumer group holds, or the high watermark if no group holds any.
fn held_offset(shared: &Shared, partition: &Partition) -> u64 {
    let end = partition.high_watermark();
    let holds = holds(shared, partition);
    holds.iter().map(|hold| hold.next).min().unwrap_or(end).0
}

fn partition_status(shared: &Shared, partition: &Partition) -> Value {
    let (state, reason) = match partition.state() {
        PartitionState::Running => ("running", None),
        PartitionState::Full => ("full", None),
        PartitionState::Following => ("following", None),
        PartitionState::Stopped(reason) => ("stopped", Some(reason)),
    };
    let (gaps, gaps_left_out) = gap_rows(partition);
    let mut held_by = holds(shared, partition);
    held_by.sort_by_key(|hold| hold.next);
    let held_by: Vec<Value> = held_by
        .iter()
        .take(HELD_BY_MAX)
        .map(|hold| json!({"group": hold.holder, "next": hold.next.0}))
        .collect();
    let removed = Cause::ALL.into_iter().zip(partition.stats().removed);
    let removed: Map<String, Value> = removed
        .map(|(cause, removed)| (cause.name().to_owned(), removed.segments.into()))
        .collect();
    json!({
        "gaps": gaps,
        "gaps_left_out": gaps_left_out,
        "damaged_bytes": partition.damaged_bytes(),
        "partition": partition.id().0,
        "name": partition.name(),
        "class": partition.class().name(),
        "epoch": partition.epoch().0,
        "log_start": partition.log_start().0,
        "high_watermark": partition.high_watermark().0,
        "bytes": partition.size_bytes(),
        "file_bytes": partition.file_bytes(),
        "oldest_us": partition.oldest_time_us(),
        "held_by": held_by,
        "removed_segments": removed,
        "state": state,
        "reason": reason,
    })
}
