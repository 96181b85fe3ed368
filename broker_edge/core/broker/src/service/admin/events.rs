//! `/api/v1/events`: what happened to clients of late, and to one of them (docs/console.md).

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;

use super::failure::Failure;
use crate::client_events::EventPage;
use crate::service::shared::Shared;

const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1_000;

pub fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/api/v1/events", get(list))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    client_id: Option<String>,
    after: Option<u64>,
    limit: Option<usize>,
}

async fn list(
    State(shared): State<Arc<Shared>>,
    parameters: Result<Query<Parameters>, QueryRejection>,
) -> Result<Json<EventPage>, Failure> {
    let Query(wanted) = parameters?;
    let limit = Failure::check_limit(wanted.limit, LIMIT, LIMIT_MAX)?;
    let events = &shared.metrics.events;
    let client_id = wanted.client_id.as_deref();
    Ok(Json(events.page(client_id, wanted.after, limit)))
}
