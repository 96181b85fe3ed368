//! Access rules of the admin listener. Health is open. Metrics are for every user (or open). Artifacts are for users
//! who may read their topic. Every user may ask for their own name. Signing in and out and the files of the console
//! are for everybody. Everything else: viewers may read it, operators may also change it. A new path falls under this
//! last rule until it is named here.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::failure::Failure;
use super::{console, session, whoami};
use crate::audit::{self, Interface, Operated};
use crate::service::authenticate::{OF_CONSOLE, authenticate};
use crate::service::callers::caller::Caller;
use crate::service::connections::pass::{Pass, PassState};
use crate::service::error::Refusal;
use crate::service::shared::Shared;

pub async fn guard(
    State(shared): State<Arc<Shared>>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(pass) = request.extensions().get::<Arc<Pass>>().cloned() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let path = request.uri().path();
    let is_metrics = path == "/metrics";
    let is_artifact = path.starts_with("/artifacts/");
    let is_whoami = matches!(path, whoami::PATH | console::PATH);
    if console::is_open(path) {
        return next.run(request).await;
    }
    if matches!(path, "/healthz" | "/readyz") || (is_metrics && shared.auth.opens_metrics()) {
        return closing_if_pending(next.run(request).await, &pass);
    }
    if let Err((max, setting)) = pass.take_slot().await {
        let message = Refusal::too_many_connections("address", max, &setting);
        return closing(Failure::unavailable(message.message()).into_response());
    }
    if session::is_for_everybody(&request) {
        // What it shows is in its body or does not matter, so the route examines it.
        return closing_if_pending(next.run(request).await, &pass);
    }
    let caller = match authenticate(&shared, request.headers(), &pass).await {
        Ok(caller) => caller,
        Err(refusal) => {
            let response = refused(&refusal, request.headers());
            // The console now asks for a password, and typing it takes longer than the connection's deadline.
            return if request.headers().contains_key(OF_CONSOLE) {
                closing_if_pending(response, &pass)
            } else {
                response
            };
        }
    };
    let is_look = matches!(*request.method(), Method::GET | Method::HEAD);
    let user = caller.user().cloned();
    let is_operator = caller.is_operator();
    match check(&caller, is_metrics || is_artifact || is_whoami, is_look) {
        Ok(()) => {
            // Handlers of records check the rights themselves, others tell them.
            request.extensions_mut().insert(caller);
            // Others only look, whatever their method is.
            if is_look || !is_operator {
                return next.run(request).await;
            }
            let act = format!("{} {}", request.method(), request.uri());
            let response = next.run(request).await;
            audit::operated(&Operated {
                door: Interface::Admin.name(),
                act: &act,
                result: outcome(response.status()),
                user: user.as_deref(),
                address: Some(pass.address.ip()),
            });
            response
        }
        Err(message) => {
            shared.metrics.auth.calls_denied.inc();
            shared.refuse_call(&pass, "acl", user.as_deref());
            Failure::denied(message).into_response()
        }
    }
}

/// The answer to a request with these headers whose caller is refused.
pub fn refused(refusal: &Refusal, headers: &HeaderMap) -> Response {
    if refusal.is_too_many() {
        return Failure::unavailable(refusal.message()).into_response();
    }
    let status = StatusCode::UNAUTHORIZED;
    let failure = Failure::new(status, "unauthenticated", refusal.message());
    let mut response = failure.into_response();
    // A browser that sees this asks for a password as well.
    if !headers.contains_key(OF_CONSOLE) {
        let scheme = HeaderValue::from_static("Basic realm=\"headwater\"");
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, scheme);
    }
    response
}

/// An answer to a caller who may be unknown. A connection without a known user is cut off at its deadline, which would
/// hit a client that reuses it in the middle of a request.
fn closing_if_pending(response: Response, pass: &Pass) -> Response {
    match pass.state() {
        PassState::Pending => closing(response),
        PassState::In | PassState::Closed => response,
    }
}

/// The last answer on its connection.
pub fn closing(mut response: Response) -> Response {
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

/// The result of an action, for the audit.
fn outcome(status: StatusCode) -> &'static str {
    if status.is_success() {
        "ok"
    } else {
        status.canonical_reason().unwrap_or("failed")
    }
}

fn check(caller: &Caller, is_for_users: bool, is_look: bool) -> Result<(), String> {
    if is_for_users {
        return Ok(());
    }
    let refused = if is_look {
        caller.must_view("this path")
    } else {
        caller.must_operate("this path")
    };
    refused.map_err(|refusal| refusal.message().to_owned())
}
