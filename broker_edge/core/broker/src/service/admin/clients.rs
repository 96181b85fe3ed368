//! `/api/v1/clients`: asks the event loop about its clients and waits a bounded time for the answer.
//!
//! The loop does the work, bounded per turn; this file only handles HTTP. It keeps no state between requests: each page
//! says where the next one begins. `/api/v1/client?id=` is for ids that a path cannot have: browsers and proxies take
//! `.` and `..` for steps in it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
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
        .route("/api/v1/clients/{client_id}", get(show_at).delete(kick_at))
        .route("/api/v1/client", get(show_named).delete(kick_named))
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShowNamed {
    id: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KickNamed {
    id: String,
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
    parameters: Result<Query<ListParameters>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(wanted) = parameters?;
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

async fn show_at(
    State(shared): State<Arc<Shared>>,
    Path(client_id): Path<String>,
) -> Result<Response, Failure> {
    show(&shared, client_id).await
}

async fn show_named(
    State(shared): State<Arc<Shared>>,
    parameters: Result<Query<ShowNamed>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(wanted) = parameters?;
    show(&shared, wanted.id).await
}

async fn show(shared: &Shared, client_id: String) -> Result<Response, Failure> {
    let wanted = client_id.clone();
    let detail = ask(shared, |answer| {
        Command::Clients(ClientsRequest::Show {
            client_id: wanted,
            answer,
        })
    })
    .await?;
    let detail = detail.ok_or_else(|| no_client(&client_id))?;
    Ok(Json(detail).into_response())
}

async fn kick_at(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(pass): Extension<Arc<Pass>>,
    Path(client_id): Path<String>,
    parameters: Result<Query<KickParameters>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(wanted) = parameters?;
    kick(&shared, &caller, &pass, client_id, wanted.session).await
}

async fn kick_named(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(pass): Extension<Arc<Pass>>,
    parameters: Result<Query<KickNamed>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(wanted) = parameters?;
    kick(&shared, &caller, &pass, wanted.id, wanted.session).await
}

async fn kick(
    shared: &Shared,
    caller: &Caller,
    pass: &Pass,
    client_id: String,
    ends_session: bool,
) -> Result<Response, Failure> {
    let named = client_id.clone();
    let kicked = ask(shared, |answer| {
        Command::Clients(ClientsRequest::Kick {
            client_id: named,
            ends_session,
            answer,
        })
    })
    .await?;
    let kicked = kicked.ok_or_else(|| no_client(&client_id))?;
    shared.metrics.events.note(&ClientEvent {
        client_id: &client_id,
        what: What::Kicked,
        act: None,
        reason: if ends_session {
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
