//! Who the caller is: the name that the broker has verified, for programs that sign what a person decides.

use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::service::callers::caller::Caller;
use crate::service::shared::Shared;

pub const PATH: &str = "/api/v1/whoami";

pub fn routes() -> Router<Arc<Shared>> {
    Router::new().route(PATH, get(whoami))
}

async fn whoami(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Json<Value> {
    Json(answer(&shared, &caller))
}

/// `user` is null for a caller without credentials; the guard admits such callers only if the broker allows it.
pub fn answer(shared: &Shared, caller: &Caller) -> Value {
    json!({
        "log_id": shared.log_id,
        "user": caller.user().map(|user| &**user),
        "tenant": caller.tenant(),
        "operator": caller.is_operator(),
        "viewer": caller.is_viewer(),
    })
}
