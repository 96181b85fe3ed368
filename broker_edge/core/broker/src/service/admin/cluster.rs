//! What a node of a cluster is, and what it knows of the others.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};

use super::failure::Failure;
use crate::cluster::report::Report;
use crate::service::shared::Shared;

/// The thread of the node answers between two events.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

pub fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/api/v1/cluster", get(cluster))
}

async fn cluster(State(shared): State<Arc<Shared>>) -> Result<Json<Report>, Failure> {
    if shared.cluster.is_none() {
        return Err(Failure::not_found("this broker is not a node of a cluster"));
    }
    let report = shared.cluster_report().await;
    let none = || Failure::unavailable("the node does not answer; ask again");
    report.map(Json).ok_or_else(none)
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
