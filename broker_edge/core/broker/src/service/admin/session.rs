//! Signing in and out with a browser: a password or token becomes a session, which the browser shows as a cookie.
//!
//! Everybody may call these paths, so they examine the caller themselves. Where the password is checked and how guesses
//! are limited, counted and logged is the same as for requests with `Authorization`.

use std::sync::Arc;

use axum::extract::rejection::JsonRejection;
use axum::extract::{Extension, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;

use super::failure::Failure;
use super::guard::{closing, refused};
use super::whoami;
use crate::audit::{self, Interface, Operated};
use crate::clock::now_us;
use crate::service::authenticate::{Shown, authenticate_by};
use crate::service::connections::pass::Pass;
use crate::service::shared::Shared;

const PATH: &str = "/api/v1/session";

pub fn routes() -> Router<Arc<Shared>> {
    Router::new().route(PATH, post(sign_in).delete(sign_out))
}

/// Whether a request signs in or out, which needs no credentials in its head.
pub fn is_for_everybody(request: &Request) -> bool {
    request.uri().path() == PATH && matches!(*request.method(), Method::POST | Method::DELETE)
}

/// Not `Debug`, because it has secrets.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignIn {
    user: Option<String>,
    password: Option<String>,
    token: Option<String>,
}

impl SignIn {
    /// # Errors
    /// It does not have exactly one proof.
    fn shown(self) -> Result<Shown, Failure> {
        match (self.user, self.password, self.token) {
            (Some(user), Some(password), None) => Ok(Shown::Password { user, password }),
            (None, None, Some(token)) => Ok(Shown::token(&token)),
            _ => Err(not_one_proof()),
        }
    }
}

fn not_one_proof() -> Failure {
    Failure::invalid(
        "signing in needs a JSON object with `user` and `password`, or with `token`, and nothing else",
    )
}

/// The parser's own sentence may quote a password, so it is not passed on.
fn unreadable(error: &JsonRejection) -> Failure {
    match error {
        JsonRejection::JsonDataError(_) | JsonRejection::JsonSyntaxError(_) => not_one_proof(),
        _ => Failure::new(error.status(), "invalid_argument", error.body_text()),
    }
}

async fn sign_in(
    State(shared): State<Arc<Shared>>,
    Extension(pass): Extension<Arc<Pass>>,
    headers: HeaderMap,
    wanted: Result<Json<SignIn>, JsonRejection>,
) -> Result<Response, Failure> {
    if !shared.auth.current().has_users() {
        let message = "this broker has no users, so there is nobody to sign in";
        return Err(Failure::invalid(message));
    }
    let Json(wanted) = wanted.map_err(|error| unreadable(&error))?;
    let shown = wanted.shown()?;
    let caller = match authenticate_by(&shared, Ok(shown), &pass).await {
        Ok(caller) => caller,
        Err(refusal) => return Ok(refused(&refusal, &headers)),
    };
    // The browser replaces the cookie, so nobody could end the session of the old one.
    shared.sessions.end(&headers);
    let begun = shared.sessions.begin(&headers, caller.identity(), now_us());
    let cookie = begun.map_err(|error| {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Failure::new(status, "internal", error.to_string())
    })?;
    if caller.is_operator() {
        audit::operated(&Operated {
            door: Interface::Admin.name(),
            act: "POST /api/v1/session",
            result: "ok",
            user: caller.user().map(|user| &**user),
            address: Some(pass.address.ip()),
        });
    }
    let answer = Json(whoami::answer(&shared, &caller));
    Ok((for_browser(cookie), answer).into_response())
}

/// Ends the session of the cookie, if there is one, and has the browser forget it.
async fn sign_out(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    shared.sessions.end(&headers);
    let forget = for_browser(shared.sessions.forget_cookie(&headers));
    // The connection counts towards the limit of this user, who has just signed out, so it is closed.
    closing((StatusCode::NO_CONTENT, forget).into_response())
}

/// The headers of an answer that changes the browser's cookie.
fn for_browser(set_cookie: String) -> [(header::HeaderName, String); 2] {
    [
        (header::SET_COOKIE, set_cookie),
        (header::CACHE_CONTROL, "no-store".to_owned()),
    ]
}
