//! Whole connections of the admin listener as a function of bytes: what a client sends until it closes its side. The
//! routes with their guards, the event loop and the log behind them are those of a broker; only the socket is missing.
//!
//! `OPERATOR` and `VIEWER` in the input stand for tokens that nobody can guess. Checked: nothing panics, no answer is an
//! internal error, and without a token only health is answered.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::{Next, from_fn};
use headwater_log::{Log, Seams};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};

use super::admin::browser::Browser;
use super::authenticate::authenticate;
use super::connections::gate::Gate;
use super::connections::incoming::{ByteStream, Conn};
use super::shared::Addresses;
use super::{Gates, ServiceContext, admin, open_office, share};
use crate::auth::AuthService;
use crate::clock::now_us;
use crate::config::Config;
use crate::data_plane::{self, DataPlane, DataPlaneContext, LoopParts};
use crate::fuzz::memory_files::MemoryFiles;
use crate::hosts::Hosts;
use crate::log_settings::log_config;
use crate::metrics::Metrics;
use crate::reload::Reloads;
use crate::state::StateStore;

/// The part of the answers that is examined; the rest is thrown away.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Most answers need another thread, not the disk.
const ANSWER_WAIT: Duration = Duration::from_millis(20);
const IDLE_POLLS: u8 = 4;
const STATE_BYTES: u64 = 64 << 10;
/// Passwords are `op` and `eye`; the digests are fast.
const USERS: &str = "\
op:$6$MDEyMzQ1Njc4OWFiY2RlZg==$GTUcQ6cQ5/Rv/W772O/lTuipzfscfK0hGGuSk/XwX/v3pRJIPpomqQRcafUBfwxxTsqNv9m7UpME2mjx7wxpqQ==
eye:$6$MDEyMzQ1Njc4OWFiY2RlZg==$SeRDVjwJVn7T5qwRs9KeTSNUF613185w989vSoEkyDtbZCYHzHrngFIG83XazK+GK/vH8MmCHsGYcj8HHjqn2A==
";
const ACL: &str = "user op\noperator\ntopic read #\nuser eye\nviewer\n";
/// `op:op`, as a header.
const OPERATOR: &str = "Basic b3A6b3A=";
const VIEWER: &str = "Basic ZXllOmV5ZQ==";
const SIGN_IN: &str = "/api/v1/session";

/// A client that has sent everything. It closes its side after the answers, because the broker ends requests whose
/// client has closed.
struct Sent {
    unread: Vec<u8>,
    position: usize,
    answer: Arc<Mutex<Vec<u8>>>,
    /// Requests that are being answered.
    running: Arc<AtomicUsize>,
    /// How long it waits for their answers.
    answer_wait: Duration,
    wait: Option<Pin<Box<Sleep>>>,
    /// How often it was asked for more while nothing was answered.
    idle_polls: u8,
}

impl AsyncRead for Sent {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.position == self.unread.len() {
            if self.running.load(Ordering::Relaxed) > 0 {
                self.idle_polls = 0;
                // A request whose body is incomplete would wait for ever.
                let answer_wait = self.answer_wait;
                let wait = self
                    .wait
                    .get_or_insert_with(|| Box::pin(sleep(answer_wait)));
                ready!(wait.as_mut().poll(context));
            } else if self.idle_polls < IDLE_POLLS {
                // What was read may be a request that begins in this turn.
                self.idle_polls += 1;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        let rest = &self.unread[self.position..];
        let count = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..count]);
        self.position += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Sent {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let mut answer = self.answer.lock();
        let room = ANSWER_BYTES_MAX - answer.len();
        answer.extend_from_slice(&bytes[..bytes.len().min(room)]);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl ByteStream for Sent {}

/// Counts a request until it is answered or dropped.
struct Running(Arc<AtomicUsize>);

impl Running {
    fn new(count: Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A broker without listeners. It lives as long as the process.
struct Door {
    runtime: Runtime,
    routes: Router,
    gate: Arc<Gate>,
    timeout: Duration,
    operator: String,
    viewer: String,
    stopping: watch::Receiver<bool>,
    running: Arc<AtomicUsize>,
    answer_wait: Duration,
    _stop: watch::Sender<bool>,
    _gates: Gates,
    _data_plane: DataPlane,
}

impl Door {
    fn open(answer_wait: Duration) -> Self {
        let folder = std::env::temp_dir().join(format!("headwater-fuzz-{}", std::process::id()));
        let (users, acl) = (folder.join("users"), folder.join("acl"));
        std::fs::create_dir_all(&folder).expect("room for two small files");
        std::fs::write(&users, USERS).expect("room for two small files");
        std::fs::write(&acl, ACL).expect("room for two small files");
        let mut config = Config::default();
        config.auth.password_file = Some(users);
        config.auth.acl_file = Some(acl);
        let auth = AuthService::start(&config.auth, true).expect("good files");
        let (own, reloads) = (Arc::clone(&auth), Reloads::default());
        reloads.add(move || own.reload().map_err(|error| error.to_string()));
        let mut settings = log_config(&config);
        settings.segment_bytes = 64 << 10;
        let files = Seams {
            files: Arc::new(MemoryFiles::default()),
            ..Seams::system()
        };
        let (log, _) = Log::open(settings, files).expect("a log opens in its own folder");
        let state = StateStore::open(&log, STATE_BYTES).expect("state follows from the log");
        let (state, metrics) = (Arc::new(state), Arc::new(Metrics::default()));
        let loop_parts = LoopParts::new().expect("a poll");
        let context = ServiceContext {
            metrics: Arc::clone(&metrics),
            commands: loop_parts.commands(),
            auth: Arc::clone(&auth),
            reloads: Arc::new(reloads),
            cluster: None,
        };
        let (stop, stopping) = watch::channel(false);
        let addresses = Addresses {
            flight: address(),
            admin: address(),
        };
        let shared = share(&config, log.clone(), context, addresses, stopping.clone());
        let shared = shared.expect("random bytes");
        open_office(&shared, Arc::clone(&state));
        let context = DataPlaneContext {
            config: config.clone(),
            log,
            metrics: Arc::clone(&metrics),
            auth,
            listeners: Vec::new(),
        };
        let data_plane = data_plane::start(loop_parts, context, Some(state)).expect("a thread");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let gates = Gates::new(&shared);
        let gate = Arc::clone(&gates.admin);
        let browser = Browser {
            hosts: Hosts::new(&config.admin.hosts),
            scheme: "http",
            metrics: Arc::clone(&metrics),
        };
        let token = |password| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_static(password));
            let (pass, _) = gate.enter(address(), 0).expect("the first has room");
            let caller = runtime.block_on(authenticate(&shared, &headers, &pass));
            pass.leave();
            let caller = caller.expect("it is in the file");
            let token = shared.bearers.issue(caller.identity(), now_us());
            format!("Bearer {}", token.expect("a password was used"))
        };
        let running = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&running);
        let routes =
            admin::routes(&shared, browser).layer(from_fn(move |request: Request, next: Next| {
                let running = Running::new(Arc::clone(&count));
                async move {
                    let response = next.run(request).await;
                    drop(running);
                    response
                }
            }));
        Self {
            operator: token(OPERATOR),
            viewer: token(VIEWER),
            routes: admin::http::limited(routes, &config.admin, &metrics),
            running,
            answer_wait,
            timeout: config.admin.request_timeout.0,
            runtime,
            gate,
            stopping,
            _stop: stop,
            _gates: gates,
            _data_plane: data_plane,
        }
    }

    /// The beginning of what a client gets that sends these bytes.
    fn ask(&self, bytes: Vec<u8>) -> Vec<u8> {
        let (pass, _) = self
            .gate
            .enter(address(), 0)
            .expect("one connection at a time");
        let answer = Arc::default();
        let sent = Sent {
            unread: bytes,
            position: 0,
            answer: Arc::clone(&answer),
            running: Arc::clone(&self.running),
            answer_wait: self.answer_wait,
            wait: None,
            idle_polls: 0,
        };
        let conn = Conn::new(Arc::clone(&pass), sent, None);
        let (routes, stopping) = (self.routes.clone(), self.stopping.clone());
        self.runtime
            .block_on(admin::http::serve_one(conn, routes, self.timeout, stopping));
        pass.leave();
        std::mem::take(&mut *answer.lock())
    }
}

fn address() -> SocketAddr {
    (IpAddr::from(Ipv4Addr::LOCALHOST), 9).into()
}

/// Puts the token where its name is. Returns whether the name was there.
fn replace(bytes: &mut Vec<u8>, name: &[u8], token: &str) -> bool {
    let place = bytes.windows(name.len()).position(|part| part == name);
    if let Some(at) = place {
        bytes.splice(at..at + name.len(), token.bytes());
    }
    place.is_some()
}

pub(crate) fn admin_http(input: &[u8]) {
    static DOOR: OnceLock<Door> = OnceLock::new();
    let door = DOOR.get_or_init(|| Door::open(ANSWER_WAIT));
    let mut bytes = input.to_vec();
    let is_known = [
        replace(&mut bytes, b"OPERATOR", &door.operator),
        replace(&mut bytes, b"VIEWER", &door.viewer),
    ];
    // A body to sign in may show a password in more ways than can be searched for here.
    let shows_password = [OPERATOR, VIEWER, SIGN_IN].iter().any(|shown| {
        let shown = shown.trim_start_matches("Basic ").as_bytes();
        bytes.windows(shown.len()).any(|part| part == shown)
    });
    let answer = door.ask(bytes);
    check(&answer, is_known.contains(&true) || shows_password);
}

/// Examines the first answer; where it ends, the next one begins.
fn check(answer: &[u8], shows_credentials: bool) {
    let mut rest = answer;
    while let Some(status) = rest
        .strip_prefix(b"HTTP/1.1 ")
        .and_then(|rest| rest.get(..3))
    {
        assert_ne!(status, b"500", "{}", String::from_utf8_lossy(rest));
        let Some(end) = rest.windows(4).position(|part| part == b"\r\n\r\n") else {
            return;
        };
        let (head, body) = rest.split_at(end + 4);
        let length = length(head);
        let is_health =
            length <= 2 || body.starts_with(b"ready") || body.starts_with(b"{\"ready\"");
        assert!(
            shows_credentials || status[0] != b'2' || is_health || is_of_console(head),
            "answered without credentials: {}",
            String::from_utf8_lossy(rest)
        );
        // The answer to HEAD announces a body and has none.
        rest = if body.starts_with(b"HTTP/1.1 ") {
            body
        } else {
            body.get(length..).unwrap_or_default()
        };
    }
}

/// Whether an answer is a file of the console, which has no data; answers with data have other types.
fn is_of_console(head: &[u8]) -> bool {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    ["text/html", "text/css", "text/javascript", "image/svg+xml"]
        .iter()
        .any(|kind| head.contains(&format!("\r\ncontent-type: {kind}")))
}

fn length(head: &[u8]) -> usize {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    length.and_then(|length| length.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{ANSWER_BYTES_MAX, Door, admin_http, check, replace};

    #[test]
    fn the_routes_answer_as_those_of_a_broker() {
        // A slow machine answers late.
        let door = Door::open(Duration::from_secs(60));
        let ask = |request: &str| {
            let mut bytes = request.as_bytes().to_vec();
            replace(&mut bytes, b"OPERATOR", &door.operator);
            replace(&mut bytes, b"VIEWER", &door.viewer);
            let answer = door.ask(bytes);
            assert!(answer.len() < ANSWER_BYTES_MAX);
            String::from_utf8_lossy(&answer)[9..12].to_owned()
        };
        let host = "HTTP/1.1\r\nHost: localhost\r\n";
        assert_eq!(ask(&format!("GET /healthz {host}\r\n")), "200");
        assert_eq!(ask(&format!("GET /api/v1/status {host}\r\n")), "401");
        let viewer = format!("{host}Authorization: VIEWER\r\n\r\n");
        assert_eq!(ask(&format!("GET /api/v1/status {viewer}")), "200");
        for path in ["clients", "segments", "events"] {
            let request = format!("GET /api/v1/{path} {viewer}");
            assert_eq!(ask(&request), "200", "{path}");
        }
        assert_eq!(ask(&format!("POST /api/v1/reload {viewer}")), "403");
        let operator = format!("{host}Authorization: OPERATOR\r\n\r\n");
        assert_eq!(ask(&format!("POST /api/v1/reload {operator}")), "200");
        let sign_in = |body: &str| {
            let kind = "Content-Type: application/json";
            let length = body.len();
            format!("POST /api/v1/session {host}{kind}\r\nContent-Length: {length}\r\n\r\n{body}")
        };
        let password = r#"{"user": "eye", "password": "eye"}"#;
        assert_eq!(ask(&sign_in(password)), "200");
        assert_eq!(ask(&sign_in(r#"{"user": "eye"}"#)), "400");
        assert_eq!(ask(&sign_in(r#"{"token": "x"}"#)), "401");
        admin_http(sign_in(password).as_bytes());
        assert_eq!(ask("nonsense\r\n\r\n"), "400");
        admin_http(b"GET / HTTP/1.1\r\n");
    }

    /// The negative controls.
    #[test]
    #[should_panic(expected = "answered without credentials")]
    fn an_answer_without_credentials_is_noticed() {
        let refused = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno";
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        check(answer, true);
        check(&[&refused[..], &answer[..]].concat(), false);
    }

    #[test]
    #[should_panic(expected = "500 Internal")]
    fn an_internal_error_is_noticed() {
        let answer = b"HTTP/1.1 500 Internal Server Error\r\n\r\n";
        check(answer, true);
    }
}
