//! `/artifacts/{name}/{version}`: the bytes of an artifact over HTTP, whole or a range of them (docs/artifacts.md,
//! section 5), for devices that expect a URL.
//!
//! A download uses one thread of the blocking pool, which reads the chunks in order, two ahead of the client.
//! `flight.max_reads` bounds all downloads together with all other reads, and `flight.max_reads_per_user` those of one
//! user. Devices use their own credentials: a user who may read the topic of the chunks may download them.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;

use super::artifact_manifest::{Manifest, is_name, newest};
use super::byte_range::{RequestedRange, wanted};
use super::failure::Failure;
use crate::auth::Access;
use crate::service::callers::caller::Caller;
use crate::service::callers::shares::{ReadPermits, Work};
use crate::service::error::Refusal;
use crate::service::shared::Shared;

/// Chunks that are read ahead of the client.
const AHEAD: usize = 2;
/// A download whose client takes nothing for this long ends; the client can resume with a range.
const STALL: Duration = Duration::from_secs(60);

pub fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/artifacts/{name}/{version}", get(download))
        .route("/artifacts/{name}/{version}/manifest", get(manifest))
}

/// An artifact that the caller may read.
struct FoundArtifact {
    manifest: Manifest,
    /// The manifest as it is in the log.
    text: Vec<u8>,
    chunks_topic: String,
}

async fn download(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path((name, version)): Path<(String, String)>,
    method: Method,
    asked: HeaderMap,
) -> Result<Response, Failure> {
    let found = find(&shared, &caller, &name, &version).await?;
    let size = found.manifest.size;
    let tag = format!("\"{}\"", found.manifest.sha256);
    let text = |name: HeaderName| asked.get(name).and_then(|value| value.to_str().ok());
    if text(header::IF_NONE_MATCH).is_some_and(|tags| names(tags, &tag)) {
        return Ok(answer(StatusCode::NOT_MODIFIED, &tag, Body::empty()));
    }
    let is_same = text(header::IF_RANGE).is_none_or(|held| held.trim() == tag);
    let range = match wanted(text(header::RANGE).filter(|_| is_same), size) {
        RequestedRange::Whole => None,
        RequestedRange::Part(range) => Some(range),
        RequestedRange::Nothing => {
            let message = format!("the range begins after the last of {size} bytes");
            let status = StatusCode::RANGE_NOT_SATISFIABLE;
            let mut response = Failure::new(status, "out_of_range", message).into_response();
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_RANGE, value(&format!("bytes */{size}")));
            return Ok(response);
        }
    };
    let status = range
        .as_ref()
        .map_or(StatusCode::OK, |_| StatusCode::PARTIAL_CONTENT);
    let bytes = range.clone().unwrap_or(0..size);
    let body = if method == Method::HEAD {
        Body::empty()
    } else {
        send(&shared, caller, found, bytes.clone())?
    };
    let mut response = answer(status, &tag, body);
    let headers = response.headers_mut();
    let length = bytes.end - bytes.start;
    headers.insert(header::CONTENT_LENGTH, value(&length.to_string()));
    if let Some(range) = range {
        let text = format!("bytes {}-{}/{size}", range.start, range.end - 1);
        headers.insert(header::CONTENT_RANGE, value(&text));
    }
    Ok(response)
}

async fn manifest(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path((name, version)): Path<(String, String)>,
) -> Result<Response, Failure> {
    let found = find(&shared, &caller, &name, &version).await?;
    let kind = [(header::CONTENT_TYPE, "application/json")];
    Ok((kind, found.text).into_response())
}

/// Whether `If-None-Match` names this tag.
fn names(tags: &str, tag: &str) -> bool {
    let tags = tags.split(',').map(str::trim);
    tags.map(|one| one.strip_prefix("W/").unwrap_or(one))
        .any(|one| one == "*" || one == tag)
}

fn answer(status: StatusCode, tag: &str, body: Body) -> Response {
    let headers = [
        (header::ETAG, value(tag)),
        (header::ACCEPT_RANGES, HeaderValue::from_static("bytes")),
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/octet-stream"),
        ),
    ];
    (status, headers, body).into_response()
}

fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("digits, hexadecimal digits and quotes stand in headers")
}

async fn find(
    shared: &Arc<Shared>,
    caller: &Caller,
    name: &str,
    version: &str,
) -> Result<FoundArtifact, Failure> {
    if !is_name(name) || !is_name(version) {
        return Err(missing(name, version));
    }
    let chunks_topic = format!("artifacts/{name}/{version}/chunks");
    if !caller.may(Access::Receive, &chunks_topic) {
        shared.metrics.auth.calls_denied.inc();
        let message = format!("this user may not read `{chunks_topic}`");
        return Err(Failure::denied(message));
    }
    let topic = format!("artifacts/{name}/{version}/manifest");
    let by = Arc::clone(shared);
    // The search goes on when its client disconnects. Without turns, a client that retries would pile up searches.
    let turn = shared.shares.turn(caller, Work::Look).await;
    let turn = turn.map_err(|refusal| over_share(shared, &refusal))?;
    let read = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let partition = by.log.route(&topic).partition;
        let partition = by
            .log
            .partition(partition)
            .ok_or("its partition does not exist")?;
        newest(partition, &topic)
    });
    let text = match read.await {
        Ok(Ok(text)) => text.filter(|text| !text.is_empty()),
        Ok(Err(error)) => return Err(broken(name, version, &error)),
        Err(error) => return Err(broken(name, version, &error.to_string())),
    };
    let text = text.ok_or_else(|| missing(name, version))?;
    let manifest =
        Manifest::parse(&text, name, version).map_err(|error| broken(name, version, &error))?;
    Ok(FoundArtifact {
        manifest,
        text,
        chunks_topic,
    })
}

fn over_share(shared: &Shared, refusal: &Refusal) -> Failure {
    shared.metrics.flight.reads_refused.inc();
    Failure::unavailable(refusal.message())
}

fn missing(name: &str, version: &str) -> Failure {
    Failure::not_found(format!("there is no artifact `{name:.64}` `{version:.64}`"))
}

fn broken(name: &str, version: &str, reason: &str) -> Failure {
    let message = format!("the artifact {name} {version} cannot be read: {reason}");
    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
}

/// Starts the reading thread; it keeps pace with the client.
fn send(
    shared: &Arc<Shared>,
    caller: Caller,
    found: FoundArtifact,
    bytes: Range<u64>,
) -> Result<Body, Failure> {
    let permits = shared.shares.read(&caller);
    let permits = permits.map_err(|refusal| over_share(shared, &refusal))?;
    let (chunks, stream) = mpsc::channel(AHEAD);
    let sending = Sending {
        shared: Arc::clone(shared),
        caller,
        found,
        bytes,
        chunks,
        permits: Some(permits),
    };
    tokio::task::spawn_blocking(move || sending.run(&Handle::current()));
    Ok(Body::from_stream(ReceiverStream::new(stream)))
}

/// A download in progress.
struct Sending {
    shared: Arc<Shared>,
    caller: Caller,
    found: FoundArtifact,
    bytes: Range<u64>,
    chunks: mpsc::Sender<Result<Bytes, String>>,
    permits: Option<ReadPermits>,
}

impl Sending {
    fn run(mut self, runtime: &Handle) {
        let chunk_size = self.found.manifest.chunk_size;
        let first = self.bytes.start / chunk_size;
        let end = self.bytes.end.div_ceil(chunk_size);
        let chunks = self.chunks.clone();
        for index in first..end {
            let place = runtime.block_on(async { timeout(STALL, chunks.reserve()).await });
            let Ok(Ok(place)) = place else { return };
            let chunk = self.chunk(index).map_err(|reason| {
                tracing::warn!(
                    topic = self.found.chunks_topic,
                    index,
                    reason,
                    "a download failed"
                );
                // The connection ends before the announced length, so the client knows that bytes are missing.
                reason
            });
            let is_last = chunk.is_err() || index + 1 == end;
            if is_last {
                // Before the last bytes leave: a client that has them all may begin its next download at once.
                self.permits = None;
            }
            place.send(chunk);
            if is_last || *self.shared.stopping.borrow() {
                return;
            }
        }
    }

    /// The requested bytes of a chunk.
    fn chunk(&mut self, index: u64) -> Result<Bytes, String> {
        let renewed = self.caller.renewed(&self.shared.auth);
        if let Some(caller) = renewed.map_err(|refusal| refusal.message().to_owned())? {
            self.caller = caller;
            if !self.caller.may(Access::Receive, &self.found.chunks_topic) {
                return Err("the right to read it was revoked".to_owned());
            }
        }
        let manifest = &self.found.manifest;
        let offset = manifest.offset_of(index).ok_or("the chunk has no offset")?;
        let partition = self.shared.partition(manifest.partition);
        let partition = partition.map_err(|refusal| refusal.message().to_owned())?;
        let batches = partition.read(offset, 1).map_err(|e| e.to_string())?;
        let record = batches.iter().find_map(|batch| {
            let index = offset.0.checked_sub(batch.base_offset().0)?;
            let index = usize::try_from(index).ok().filter(|at| *at < batch.len())?;
            Some(batch.record(index))
        });
        let record = record.ok_or("there is no record at the chunk's offset")?;
        let bytes = manifest.bytes_of(index);
        if record.topic != self.found.chunks_topic || record.payload.len() as u64 != bytes {
            return Err("the record at the chunk's offset is not the chunk".to_owned());
        }
        let base = index * manifest.chunk_size;
        let within = |at: u64| usize::try_from(at.saturating_sub(base).min(bytes)).unwrap_or(0);
        let part = within(self.bytes.start)..within(self.bytes.end);
        let part = record.payload.get(part).unwrap_or_default();
        let metrics = &self.shared.metrics.flight;
        metrics.bytes_read.inc_by(part.len() as u64);
        Ok(Bytes::copy_from_slice(part))
    }
}
