//! `/api/v1/groups`: how far consumer groups are behind, in records and in seconds, and when they lose records.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::failure::Failure;
use crate::service::callers::caller::Caller;
use crate::service::callers::shares::Work;
use crate::service::live::standing;
use crate::service::request;
use crate::service::shared::Shared;

const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1_000;

pub fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/api/v1/groups", get(list))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    /// A part of the name.
    #[serde(default)]
    contains: String,
    after: Option<String>,
    limit: Option<usize>,
}

async fn list(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    parameters: Result<Query<Parameters>, QueryRejection>,
) -> Result<Json<Value>, Failure> {
    let Query(wanted) = parameters?;
    let limit = Failure::check_limit(wanted.limit, LIMIT, LIMIT_MAX)?;
    let asked = request::Groups {
        after: wanted.after,
        limit: Some(limit),
    };
    let (office, by) = (shared.office.get()?, caller.clone());
    // Each group is decoded, and the next record of each is read.
    let page = shared.blocking(&caller, Work::Look, move |shared, _| {
        let page = office.groups.page(&by, &asked, &wanted.contains)?;
        let groups: Vec<Value> = page
            .groups
            .iter()
            .map(|(name, group)| {
                let is_idle = office.holds.is_idle(name);
                json!({
                    "group": name,
                    "owner": group.owner,
                    "touched_us": group.touched_us,
                    "is_idle": is_idle,
                    "partitions": standing::places(shared, name, group, is_idle),
                })
            })
            .collect();
        Ok(json!({"groups": groups, "next": page.next}))
    });
    Ok(Json(page.await?))
}
