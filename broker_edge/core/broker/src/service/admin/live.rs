//! `/api/v1/live`: what the broker does now and did in the last 15 minutes, for pages (docs/console.md).

use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::Value;

use super::failure::Failure;
use super::stream::Events;
use crate::service::callers::caller::Caller;
use crate::service::live;
use crate::service::shared::Shared;

pub fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/api/v1/live", get(stream))
        .route("/api/v1/live/history", get(history))
}

async fn history(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(shared.samples.history())
}

async fn stream(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Failure> {
    let (events, response) = Events::open(&shared, caller)?;
    tokio::spawn(run(shared, events));
    Ok(response)
}

async fn run(shared: Arc<Shared>, mut events: Events) {
    let mut seconds = shared.samples.seconds();
    loop {
        let data = live::event(&shared);
        if events.send("stats", &data).await.is_err() {
            return;
        }
        tokio::select! {
            changed = seconds.changed() => if changed.is_err() { return },
            () = events.over() => return,
        }
    }
}
