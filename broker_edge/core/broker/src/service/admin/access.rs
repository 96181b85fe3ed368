//! `/api/v1/access`: whether a client may do something, and the line of the ACL file that decides (docs/console.md).

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use super::failure::Failure;
use crate::auth::{Access, Asked, Explanation};
use crate::service::shared::Shared;

pub fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/api/v1/access", get(access))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    user: Option<String>,
    client_id: Option<String>,
    access: Wanted,
    topic: String,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Wanted {
    Publish,
    Subscribe,
    Receive,
    Replay,
}

#[derive(Debug, Serialize)]
struct Answer {
    #[serde(flatten)]
    explained: Explanation,
    /// The ACL file as the settings name it.
    file: Option<String>,
}

async fn access(
    State(shared): State<Arc<Shared>>,
    parameters: Result<Query<Parameters>, QueryRejection>,
) -> Result<Json<Answer>, Failure> {
    let Query(wanted) = parameters?;
    let is_given = |text: &&str| !text.is_empty();
    let asked = Asked {
        user: wanted.user.as_deref().filter(is_given),
        client_id: wanted.client_id.as_deref().filter(is_given),
        access: match wanted.access {
            Wanted::Publish => Access::Publish,
            Wanted::Subscribe => Access::Subscribe,
            Wanted::Receive => Access::Receive,
            Wanted::Replay => Access::Replay,
        },
        topic: &wanted.topic,
    };
    let explained = shared
        .auth
        .current()
        .explain(&asked)
        .map_err(|error| Failure::invalid(format!("topic: {error}")))?;
    let file = shared.config.auth.acl_file.as_ref();
    Ok(Json(Answer {
        explained,
        file: file.map(|path| path.display().to_string()),
    }))
}
