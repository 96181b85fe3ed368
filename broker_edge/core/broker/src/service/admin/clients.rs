//! `/api/v1/clients`: asks the event loop about its clients and waits a bounded time for the answer.
//!
//! The loop does the work, bounded per turn; this file only handles HTTP. It keeps no state between requests: each page
//! says where the next one begins.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use tokio::sync::oneshot::{Sender, channel};

use super::failure::Failure;
use crate::client_events::{ClientEvent, What};
use crate::engine::{ClientsRequest, PAGE_MAX, PageQuery};
use crate::event_loop::Command;
use crate::service::callers::caller::Caller;
use crate::service::connections::pass::Pass;
use crate::service::shared::Shared;

/// How long to wait for the loop's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Clients per page when the request gives no limit.
const PAGE_DEFAULT: usize = 100;

pub fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/api/v1/clients", get(list))
        .route("/api/v1/clients/{client_id}", get(show).delete(kick))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListParameters {
    limit: Option<usize>,
    after: Option<String>,
    filter: Option<String>,
    connected: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KickParameters {
    #[serde(default)]
    session: bool,
}

fn no_client(client_id: &str) -> Failure {
    Failure::not_found(format!("there is no client `{client_id}`"))
}

/// Asks the loop and waits. Fails at once when the queue is full.
pub async fn ask<T>(
    shared: &Shared,
    command: impl FnOnce(Sender<T>) -> Command,
) -> Result<T, Failure> {
    let (answer, answered) = channel();
    shared
        .commands
        .ask(command(answer))
        .map_err(|error| Failure::unavailable(error.to_string()))?;
    match tokio::time::timeout(ANSWER_TIMEOUT, answered).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err(Failure::unavailable("the MQTT loop has stopped")),
        Err(_) => Err(Failure::unavailable(format!(
            "the MQTT loop did not answer within {} s",
            ANSWER_TIMEOUT.as_secs()
        ))),
    }
}

async fn list(
    State(shared): State<Arc<Shared>>,
    parameters: Result<Query<ListParameters>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Failure> {
    let Query(wanted) = parameters.map_err(|error| Failure::invalid(error.body_text()))?;
    let limit = Failure::check_limit(wanted.limit, PAGE_DEFAULT, PAGE_MAX)?;
    let query = PageQuery {
        after: wanted.after,
        limit,
        contains: wanted.filter,
        connected: wanted.connected,
    };
    let page = ask(&shared, |answer| {
        Command::Clients(ClientsRequest::List { query, answer })
    })
    .await?;
    Ok(Json(page).into_response())
}

async fn show(
    State(shared): State<Arc<Shared>>,
    Path(client_id): Path<String>,
) -> Result<Response, Failure> {
    let wanted = client_id.clone();
    let detail = ask(&shared, |answer| {
        Command::Clients(ClientsRequest::Show {
            client_id: wanted,
            answer,
        })
    })
    .await?;
    let detail = detail.ok_or_else(|| no_client(&client_id))?;
    Ok(Json(detail).into_response())
}

async fn kick(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(pass): Extension<Arc<Pass>>,
    Path(client_id): Path<String>,
    parameters: Result<Query<KickParameters>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Failure> {
    let Query(wanted) = parameters.map_err(|error| Failure::invalid(error.body_text()))?;
    let named = client_id.clone();
    let kicked = ask(&shared, |answer| {
        Command::Clients(ClientsRequest::Kick {
            client_id: named,
            ends_session: wanted.session,
            answer,
        })
    })
    .await?;
    let kicked = kicked.ok_or_else(|| no_client(&client_id))?;
    shared.metrics.events.note(&ClientEvent {
        client_id: &client_id,
        what: What::Kicked,
        act: None,
        reason: if wanted.session {
            "by an operator, who ended its session"
        } else {
            "by an operator"
        },
        topic: None,
        user: caller.user().map(|user| &**user),
        address: Some(pass.address),
        version: None,
    });
    Ok(Json(kicked).into_response())
}
