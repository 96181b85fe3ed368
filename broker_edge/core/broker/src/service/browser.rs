//! What a browser may be made to do to the admin listener by a page of somebody else: nothing.
//!
//! The name in `Host` has to be one that nobody else can make resolve to here ([`Hosts`]), which ends DNS rebinding.
//! Methods that change something are taken from pages of the same origin only; programs name no origin and are not
//! concerned. All answers forbid to be framed, to load anything from elsewhere, and to be taken for another type.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::gate::Pass;
use crate::audit;
use crate::hosts::{self, Hosts, Origin};
use crate::metrics::Metrics;

/// The dashboard's own script and style, and requests to this listener; nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, HeaderValue); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(POLICY),
    ),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    ),
    (
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    ),
];

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

pub(super) struct Browser {
    pub hosts: Hosts,
    /// As pages at this listener have it.
    pub scheme: &'static str,
    pub metrics: Arc<Metrics>,
}

/// Puts what browsers have to obey on an answer.
pub(super) fn bind(response: &mut Response) {
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, value);
    }
}

pub(super) async fn guard(
    State(browser): State<Arc<Browser>>,
    request: Request,
    next: Next,
) -> Response {
    match browser.check(&request) {
        Ok(()) => next.run(request).await,
        Err(refused) => {
            browser.note(refused.0, request.extensions().get::<Arc<Pass>>());
            refused.into_response()
        }
    }
}

/// Status, the word for programs, and the sentence for people.
type Refused = (StatusCode, Json<serde_json::Value>);

fn refused(status: StatusCode, error: &str, message: impl Into<String>) -> Refused {
    let message = message.into();
    (status, Json(json!({"error": error, "message": message})))
}

impl Browser {
    /// Has a refusal counted and logged.
    fn note(&self, status: StatusCode, pass: Option<&Arc<Pass>>) {
        let reason = match status {
            StatusCode::MISDIRECTED_REQUEST => "host",
            StatusCode::FORBIDDEN => "origin",
            _ => return,
        };
        self.metrics.audit.refuse(&audit::Refused {
            door: audit::Door::Admin,
            act: "call",
            reason,
            user: None,
            address: pass.map(|pass| pass.address.ip()),
            client_id: None,
        });
    }

    fn check(&self, request: &Request) -> Result<(), Refused> {
        // Probes and scrapers call by any name, and nothing of these is worth a rebinding.
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        if is_read && matches!(request.uri().path(), "/healthz" | "/readyz" | "/metrics") {
            return Ok(());
        }
        let host = one(request.headers(), &header::HOST)?;
        // A target with a host of its own takes the place of the header, so both are looked at.
        let target = request.uri().authority().map(Authority::as_str);
        if host.is_none() && request.version() > Version::HTTP_10 {
            let message = "a request of HTTP/1.1 needs one Host header";
            return Err(refused(
                StatusCode::BAD_REQUEST,
                "invalid_argument",
                message,
            ));
        }
        for called in [host, target].into_iter().flatten() {
            let known = hosts::split(called).is_some_and(|(name, _)| self.hosts.knows(name));
            if !known {
                return Err(self.unknown_host(called));
            }
        }
        if is_read {
            return Ok(());
        }
        self.check_origin(request.headers(), target.or(host))
    }

    fn unknown_host(&self, called: &str) -> Refused {
        let called: String = called.chars().take(100).collect();
        let message = format!(
            "this listener is not known by the name `{}`: add the name to admin.hosts, or call it by its address",
            called.escape_debug()
        );
        refused(
            StatusCode::MISDIRECTED_REQUEST,
            "misdirected_request",
            message,
        )
    }

    /// For what changes something: a page may ask for it only where it came from.
    fn check_origin(&self, headers: &HeaderMap, called: Option<&str>) -> Result<(), Refused> {
        let site = one(headers, &FETCH_SITE)?;
        let origin = one(headers, &header::ORIGIN)?;
        let is_own_site = site.is_none_or(|site| matches!(site, "same-origin" | "none"));
        let is_own_origin = origin.is_none_or(|origin| {
            let origin = Origin::parse(origin);
            let called = called.and_then(hosts::split);
            match (origin, called) {
                // The browser itself says that they are the same; a proxy may have taken the TLS off.
                (Some(origin), Some((host, port))) if site == Some("same-origin") => {
                    origin.is_at(host, port)
                }
                (Some(origin), Some((host, port))) => origin.is_of(self.scheme, host, port),
                _ => false,
            }
        });
        if is_own_site && is_own_origin {
            return Ok(());
        }
        let message = "a web page may change something only at the address that it was loaded from";
        Err(refused(StatusCode::FORBIDDEN, "foreign_origin", message))
    }
}

/// The only header of a name: two, or one that is no text, are refused, because others may read them differently.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refused> {
    let mut values = headers.get_all(name).iter();
    let (first, second) = (values.next(), values.next());
    let text = first.map(|value| value.to_str());
    match (text, second) {
        (None, _) => Ok(None),
        (Some(Ok(text)), None) => Ok(Some(text)),
        _ => Err(refused(
            StatusCode::BAD_REQUEST,
            "invalid_argument",
            format!("a request has one header {name}, of plain text"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn status(method: &str, target: &str, headers: &[(&str, &str)]) -> u16 {
        let browser = Browser {
            hosts: Hosts::new(&["broker.example.com".to_owned()]),
            scheme: "http",
            metrics: Arc::default(),
        };
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        browser
            .check(&request)
            .map_or_else(|(status, _)| status.as_u16(), |()| 200)
    }

    #[test]
    fn a_name_of_somebody_else_is_refused_whatever_way_it_comes() {
        let get = |target, hosts: &[&str]| {
            let headers: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
            status("GET", target, &headers)
        };
        for good in [
            "127.0.0.1:8080",
            "[::1]:8080",
            "localhost",
            "broker.example.com:9",
        ] {
            assert_eq!(get("/", &[good]), 200, "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:8080",
            "",
            "localhost@evil.example",
            "a b",
        ] {
            assert_eq!(get("/", &[bad]), 421, "{bad}");
        }
        assert_eq!(get("/", &["localhost", "evil.example"]), 400);
        assert_eq!(get("/", &["localhost", "localhost"]), 400);
        assert_eq!(get("/", &[]), 400);
        assert_eq!(get("http://evil.example/", &["localhost"]), 421);
        assert_eq!(get("http://localhost/", &["evil.example"]), 421);
        assert_eq!(get("/healthz", &["evil.example"]), 200);
        assert_eq!(get("/metrics", &["evil.example"]), 200);
        assert_eq!(get("/healthz/../", &["evil.example"]), 421);
    }

    #[test]
    fn what_changes_something_comes_from_the_same_origin_or_from_no_page() {
        let post = |headers: &[(&str, &str)]| {
            let host = [("host", "localhost:8080")];
            status("POST", "/", &[&host, headers].concat())
        };
        assert_eq!(post(&[]), 200);
        assert_eq!(post(&[("origin", "http://localhost:8080")]), 200);
        assert_eq!(post(&[("sec-fetch-site", "same-origin")]), 200);
        assert_eq!(post(&[("sec-fetch-site", "none")]), 200);
        let behind_a_proxy = [
            ("sec-fetch-site", "same-origin"),
            ("origin", "https://localhost:8080"),
        ];
        assert_eq!(post(&behind_a_proxy), 200);
        for origin in [
            "null",
            "",
            "http://evil.example",
            "https://localhost:8080",
            "http://localhost",
            "http://localhost:8080.evil.example",
            "http://localhost:8080@evil.example",
        ] {
            assert_eq!(post(&[("origin", origin)]), 403, "{origin}");
        }
        for site in ["cross-site", "same-site", "", "x"] {
            assert_eq!(post(&[("sec-fetch-site", site)]), 403, "{site}");
        }
        let both = [
            ("sec-fetch-site", "cross-site"),
            ("origin", "http://localhost:8080"),
        ];
        assert_eq!(post(&both), 403);
        let twice = [
            ("origin", "http://localhost:8080"),
            ("origin", "http://evil.example"),
        ];
        assert_eq!(post(&twice), 400);
        for method in ["PUT", "DELETE", "PATCH", "OPTIONS"] {
            let headers = [("host", "localhost"), ("origin", "http://evil.example")];
            assert_eq!(status(method, "/healthz", &headers), 403, "{method}");
        }
    }
}
