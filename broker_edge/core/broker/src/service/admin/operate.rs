//! What an operator can change while the broker runs: maintenance (`drain`) and the log level.

use std::sync::Arc;

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::routing::{get, put};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::failure::Failure;
use crate::engine::Drain;
use crate::event_loop::Command;
use crate::logging;
use crate::service::shared::Shared;

pub fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/api/v1/drain", put(drain).delete(serve_again))
        .route("/api/v1/log-level", get(level).put(set_level))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainParameters {
    /// Tell the clients not to reconnect.
    #[serde(default)]
    moved: bool,
}

async fn drain(
    State(shared): State<Arc<Shared>>,
    parameters: Result<Query<DrainParameters>, QueryRejection>,
) -> Result<Json<Value>, Failure> {
    let Query(wanted) = parameters?;
    let drain = if wanted.moved {
        Drain::ForGood
    } else {
        Drain::ForNow
    };
    shared.tell(Command::Drain(Some(drain)))?;
    Ok(Json(json!({"draining": true})))
}

async fn serve_again(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, Failure> {
    shared.tell(Command::Drain(None))?;
    Ok(Json(json!({"draining": false})))
}

impl Shared {
    /// Sends the loop a command that has no answer.
    fn tell(&self, command: Command) -> Result<(), Failure> {
        let told = self.commands.ask(command);
        told.map_err(|error| Failure::unavailable(error.to_string()))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LevelWanted {
    level: String,
}

async fn level() -> Json<Value> {
    Json(json!({"level": logging::level()}))
}

async fn set_level(
    wanted: Result<Json<LevelWanted>, JsonRejection>,
) -> Result<Json<Value>, Failure> {
    let Json(wanted) = wanted
        .map_err(|error| Failure::new(error.status(), "invalid_argument", error.body_text()))?;
    logging::set_level(&wanted.level).map_err(Failure::invalid)?;
    tracing::info!(level = wanted.level, "log level changed");
    Ok(level().await)
}
