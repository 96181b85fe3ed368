//! Admin HTTP: health, readiness, metrics, status. Read-only.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use headwater_log::{Partition, PartitionState};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::offsets::gap_rows;
use super::{Shared, stopped};
use crate::VERSION;
use crate::metrics::PartitionFigures;

const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) async fn serve(
    shared: Arc<Shared>,
    listener: TcpListener,
    stopping: watch::Receiver<bool>,
) {
    let routes = Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/api/v1/status", get(status))
        .with_state(shared);
    if let Err(error) = axum::serve(listener, routes)
        .with_graceful_shutdown(stopped(stopping))
        .await
    {
        tracing::error!(%error, "admin HTTP ended");
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
                    "no space left on the device; appends resume once space is freed".to_owned()
                }
                PartitionState::Stopped(reason) => reason,
            };
            Some(json!({"partition": partition.name(), "reason": reason}))
        })
        .collect();
    if reasons.is_empty() {
        return "ready".into_response();
    }
    (
        StatusCode::SERVICE_UNAVAILABLE,
        Json(json!({"ready": false, "partitions": reasons})),
    )
        .into_response()
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    for partition in shared.log.partitions() {
        shared.metrics.set_partition(&PartitionFigures {
            name: partition.name(),
            log_start: partition.log_start().0,
            high_watermark: partition.high_watermark().0,
            bytes: partition.size_bytes(),
            queued_bytes: partition.queued_bytes(),
            running: partition.state() == PartitionState::Running,
            gap_offsets: partition
                .gaps()
                .iter()
                .map(|gap| gap.range.end.0 - gap.range.start.0)
                .sum(),
            damaged_bytes: partition.damaged_bytes(),
        });
    }
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &shared.metrics.registry()) {
        Ok(()) => ([(header::CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn status(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let partitions: Vec<Value> = shared
        .log
        .partitions()
        .iter()
        .map(partition_status)
        .collect();
    Json(json!({
        "log_id": shared.log_id,
        "version": VERSION,
        "connections": shared.metrics.mqtt.connections.get(),
        "sessions": shared.metrics.mqtt.sessions.get(),
        "partitions": partitions,
    }))
}

fn partition_status(partition: &Partition) -> Value {
    let (state, reason) = match partition.state() {
        PartitionState::Running => ("running", None),
        PartitionState::Full => ("full", None),
        PartitionState::Stopped(reason) => ("stopped", Some(reason)),
    };
    let (gaps, gaps_left_out) = gap_rows(partition);
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
        "state": state,
        "reason": reason,
    })
}
