//! Why a request of admin HTTP is not answered: a status, an error code for programs and a sentence for people.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tonic::Code;

use crate::service::error::Refusal;

#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    pub status: StatusCode,
    error: &'static str,
    message: String,
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let body = json!({"error": self.error, "message": self.message});
        (self.status, Json(body)).into_response()
    }
}

impl Failure {
    pub fn new(status: StatusCode, error: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            error,
            message: message.into(),
        }
    }

    /// The number of entries that an answer may have.
    ///
    /// # Errors
    /// It is out of its range.
    pub fn check_limit(limit: Option<usize>, usual: usize, most: usize) -> Result<usize, Self> {
        let limit = limit.unwrap_or(usual);
        if (1..=most).contains(&limit) {
            return Ok(limit);
        }
        let message = format!("limit: {limit} is out of range; write 1 to {most}");
        Err(Self::invalid(message))
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_argument", message)
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub fn denied(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_denied", message)
    }
}

/// The parameters of a request are missing, unknown, or none of their kind.
impl From<QueryRejection> for Failure {
    fn from(rejection: QueryRejection) -> Self {
        Self::invalid(rejection.body_text())
    }
}

/// The refusals of Flight have the same error codes here.
impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal.code() {
            Code::InvalidArgument | Code::OutOfRange => StatusCode::BAD_REQUEST,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::Unauthenticated => StatusCode::UNAUTHORIZED,
            Code::Unavailable | Code::ResourceExhausted => StatusCode::SERVICE_UNAVAILABLE,
            Code::FailedPrecondition => StatusCode::CONFLICT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, refusal.error(), refusal.message())
    }
}
