//! What a node of a cluster is and knows of the others, and the leader that an operator wants.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::{get, put};
use axum::{Json, Router};
use headwater_cluster::marks::Node;
use serde::Deserialize;
use serde_json::{Value, json};

use super::failure::Failure;
use crate::cluster::report::Report;
use crate::cluster::transfer::{Asked, Refusal};
use crate::service::shared::Shared;

/// The thread of the node answers between two events.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

pub fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/api/v1/cluster", get(cluster))
        .route("/api/v1/cluster/leader", put(elect))
}

async fn cluster(State(shared): State<Arc<Shared>>) -> Result<Json<Report>, Failure> {
    if shared.cluster.is_none() {
        return Err(no_cluster());
    }
    let report = shared.cluster_report().await;
    report.map(Json).ok_or_else(silent)
}

fn no_cluster() -> Failure {
    Failure::not_found("this broker is not a node of a cluster")
}

fn silent() -> Failure {
    Failure::unavailable("the node does not answer; ask again")
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ElectParameters {
    node: String,
}

/// Begins to give the log to another node. Who leads in the end is seen in the reports.
async fn elect(
    State(shared): State<Arc<Shared>>,
    parameters: Result<Query<ElectParameters>, QueryRejection>,
) -> Result<(StatusCode, Json<Value>), Failure> {
    let inbox = shared.cluster.as_ref().ok_or_else(no_cluster)?;
    let Query(wanted) = parameters?;
    let to = Node::new(&wanted.node).map_err(|error| Failure::invalid(error.to_string()))?;
    let (answer, answered) = sync_channel(1);
    inbox.transfer(Asked {
        to: to.clone(),
        answer,
    });
    let wait = move || answered.recv_timeout(ANSWER_WITHIN).ok();
    let answer = tokio::task::spawn_blocking(wait).await.ok().flatten();
    let begun = answer.ok_or_else(silent)?.map_err(refused)?;
    let said = json!({"from": begun.from.as_str(), "to": to.as_str(), "epoch": begun.epoch});
    Ok((StatusCode::ACCEPTED, Json(said)))
}

fn refused(refusal: Refusal) -> Failure {
    let message = refusal.to_string();
    match refusal {
        Refusal::NoNode(_) => Failure::not_found(message),
        Refusal::NotLeader(_) => Failure::new(StatusCode::CONFLICT, "not_leader", message),
        _ => Failure::new(StatusCode::CONFLICT, "failed_precondition", message),
    }
}

impl Shared {
    /// None without a cluster, and when the node does not answer.
    pub async fn cluster_report(&self) -> Option<Report> {
        let inbox = Arc::clone(self.cluster.as_ref()?);
        let (answer, answered) = sync_channel(1);
        inbox.ask(answer);
        let wait = move || answered.recv_timeout(ANSWER_WITHIN).ok();
        tokio::task::spawn_blocking(wait).await.ok().flatten()
    }
}
