//! HTTP of the admin listener: limits the time for a request's head and for its answer, and the size of a body.
//!
//! Routes do not depend on it. The gate limits the number of connections.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming as Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::watch;
use tonic::codegen::Service as _;

use super::browser;
use crate::config::AdminSettings;
use crate::metrics::Metrics;
use crate::service::connections::incoming::{Conn, Incoming};
use crate::service::shared::stopped;

/// The largest head of a request.
const HEAD_BYTES_MAX: usize = 32 << 10;

/// Serves the routes until the broker stops, then finishes the requests in progress.
pub async fn serve(
    mut incoming: Incoming,
    routes: Router,
    limits: AdminSettings,
    metrics: Arc<Metrics>,
    stopping: watch::Receiver<bool>,
) {
    let routes = limited(routes, &limits, &metrics);
    loop {
        let stop = stopped(stopping.clone());
        tokio::pin!(stop);
        let accepted = tokio::select! {
            () = &mut stop => return,
            accepted = incoming.next() => accepted,
        };
        // The listener has ended.
        let Some(stream) = accepted else {
            return;
        };
        let (routes, metrics) = (routes.clone(), Arc::clone(&metrics));
        let (stopping, time) = (stopping.clone(), limits.request_timeout.0);
        tokio::spawn(async move {
            metrics.detail.admin_connections.inc();
            serve_one(stream, routes, time, stopping).await;
            metrics.detail.admin_connections.dec();
        });
    }
}

/// Serves one connection until it ends.
pub async fn serve_one(
    stream: Conn,
    routes: Router,
    time: Duration,
    stopping: watch::Receiver<bool>,
) {
    let pass = Arc::clone(stream.pass());
    let service = service_fn(move |mut request: hyper::Request<Body>| {
        request.extensions_mut().insert(Arc::clone(&pass));
        routes.clone().call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(time)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(stopping) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an admin connection ended");
    }
}

/// The routes, wrapped in their limits.
pub fn limited(routes: Router, limits: &AdminSettings, metrics: &Arc<Metrics>) -> Router {
    let (time, metrics) = (limits.request_timeout.0, Arc::clone(metrics));
    let body_bytes_max = limits.max_body_bytes.0;
    routes
        .layer(DefaultBodyLimit::max(limits.max_body_bytes.as_usize()))
        .layer(from_fn(move |request: Request, next: Next| {
            let metrics = Arc::clone(&metrics);
            async move {
                let mut response = if announced(&request) > body_bytes_max {
                    too_large(body_bytes_max)
                } else {
                    let answered = tokio::time::timeout(time, next.run(request)).await;
                    answered.unwrap_or_else(|_| too_slow(time))
                };
                let class = class_of(response.status());
                metrics.detail.count_admin_request(class);
                browser::bind(&mut response);
                response
            }
        }))
}

/// The body size that the head announces. A body without an announced size is bounded while it is read.
fn announced(request: &Request) -> u64 {
    let length = request.headers().get(header::CONTENT_LENGTH);
    length
        .and_then(|length| length.to_str().ok())
        .and_then(|length| length.parse().ok())
        .unwrap_or(0)
}

fn too_large(bytes_max: u64) -> Response {
    let sentence =
        format!("the request body is over the limit of {bytes_max} bytes (admin.max_body_bytes)");
    (StatusCode::PAYLOAD_TOO_LARGE, sentence).into_response()
}

fn too_slow(time: Duration) -> Response {
    let sentence = format!(
        "the request took longer than {} ms (admin.request_timeout)",
        time.as_millis()
    );
    (StatusCode::SERVICE_UNAVAILABLE, sentence).into_response()
}

fn class_of(status: StatusCode) -> &'static str {
    match status.as_u16() {
        0..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        _ => "5xx",
    }
}
