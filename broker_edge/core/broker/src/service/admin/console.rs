//! The files of the console, and what it may show to this caller (docs/console.md).
//!
//! The files are for everybody: they have no data, and the form to sign in is among them. All but the first are in the
//! program in compressed form only, which every browser takes.

use std::sync::Arc;

use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::failure::Failure;
use super::whoami;
use crate::config::Config;
use crate::hosts;
use crate::service::callers::caller::Caller;
use crate::service::shared::{Addresses, Shared};

pub const PATH: &str = "/api/v1/console";
/// What the page of this broker can show.
const PAGES: [&str; 9] = [
    "overview", "topics", "tail", "clients", "groups", "log", "damage", "access", "trace",
];

/// A file of the page: its path under `/ui/`, its type, its tag and its compressed bytes.
type UiFile = (&'static str, &'static str, &'static str, &'static [u8]);

// Written by build.rs: `FILES`, in the order of the paths, and `INDEX`.
include!(concat!(env!("OUT_DIR"), "/ui.rs"));

pub fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/", get(async || Html(INDEX)))
        .route("/ui/{*path}", get(file))
        .route(PATH, get(console))
}

/// Whether a path is for everybody.
pub fn is_open(path: &str) -> bool {
    path == "/" || path.starts_with("/ui/")
}

async fn file(Path(path): Path<String>, asked: HeaderMap) -> Result<Response, Failure> {
    let place = FILES.binary_search_by_key(&path.as_str(), |(path, ..)| path);
    let place = place.map_err(|_| Failure::not_found("the console has no such file"))?;
    let (_, kind, tag, bytes) = FILES[place];
    let fixed = |text: &'static str| HeaderValue::from_static(text);
    let headers: [(HeaderName, HeaderValue); 4] = [
        (header::ETAG, fixed(tag)),
        (header::CACHE_CONTROL, fixed("no-cache")),
        (header::CONTENT_TYPE, fixed(kind)),
        (header::CONTENT_ENCODING, fixed("gzip")),
    ];
    let held = asked
        .get(header::IF_NONE_MATCH)
        .and_then(|tags| tags.to_str().ok());
    if held.is_some_and(|tags| tags.split(',').any(|one| one.trim() == tag)) {
        return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
    }
    Ok((headers, bytes).into_response())
}

/// What to show to this caller: the pages, and what `whoami` says.
async fn console(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Json<Value> {
    let partition = |partition: &headwater_log::Partition| json!({"partition": partition.id().0, "name": partition.name(), "class": partition.class().name()});
    let partitions: Vec<Value> = shared.log.partitions().iter().map(partition).collect();
    let mut told = whoami::answer(&shared, &caller);
    told["scope"] = json!("broker");
    told["version"] = json!(crate::VERSION);
    told["pages"] = json!(PAGES);
    told["has_users"] = json!(shared.auth.current().has_users());
    told["server"] = json!(server(&shared.config, shared.addresses, &headers));
    told["cluster"] = json!(shared.cluster.is_some());
    told["partitions"] = json!(partitions);
    Json(told)
}

/// How commands that read the log name this broker: as the settings tell others, or like the address of the page. Where a
/// proxy or a forwarded port leads to the page, nothing says how Flight can be reached.
fn server(config: &Config, at: Addresses, headers: &HeaderMap) -> Option<String> {
    if let Some(told) = &config.cluster.advertise.flight {
        return Some(config.flight_url(told));
    }
    let (host, port) = hosts::called(headers)?;
    let is_direct = port == Some(at.admin.port());
    let is_there_too = at.flight.ip().is_unspecified() || at.flight.ip() == at.admin.ip();
    (is_direct && is_there_too).then(|| config.flight_url(&format!("{host}:{}", at.flight.port())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_told_where_the_broker_knows_how_it_is_reached() {
        let mut config = Config::default();
        let told = |config: &Config, flight: &str, host: &'static str| {
            let at = Addresses {
                flight: flight.parse().unwrap(),
                admin: "10.0.0.1:8080".parse().unwrap(),
            };
            let host = HeaderValue::from_static(host);
            server(config, at, &HeaderMap::from_iter([(header::HOST, host)]))
        };
        for (flight, host, server) in [
            ("10.0.0.1:8815", "edge-1:8080", Some("grpc://edge-1:8815")),
            (
                "0.0.0.0:8815",
                "[fe80::1]:8080",
                Some("grpc://[fe80::1]:8815"),
            ),
            // Another address than that of the page, a forwarded port, and a proxy.
            ("127.0.0.1:8815", "edge-1:8080", None),
            ("10.0.0.1:8815", "localhost:8081", None),
            ("10.0.0.1:8815", "edge-1", None),
        ] {
            assert_eq!(
                told(&config, flight, host).as_deref(),
                server,
                "{flight} {host}"
            );
        }
        config.cluster.advertise.flight = Some("box-1:9000".to_owned());
        let server = told(&config, "127.0.0.1:8815", "edge-1");
        assert_eq!(server.as_deref(), Some("grpc://box-1:9000"));
    }
}
