//! Protects the admin listener from foreign web pages in a user's browser.
//!
//! The name in `Host` must be one that nobody else can point at this address ([`Hosts`]), which prevents DNS rebinding.
//! Methods that change something are accepted only from pages of the same origin; programs send no origin and are not
//! affected. Every response forbids framing, loading from other origins, and content type sniffing.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::failure::Failure;
use crate::audit;
use crate::hosts::{self, Hosts, Origin};
use crate::metrics::Metrics;
use crate::service::connections::pass::Pass;

/// Allows only the page's own scripts, styles and images, and requests to this listener.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
];

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

pub struct Browser {
    pub hosts: Hosts,
    /// The URL scheme of pages from this listener.
    pub scheme: &'static str,
    pub metrics: Arc<Metrics>,
}

/// Adds the security headers to a response.
pub fn bind(response: &mut Response) {
    for (name, value) in HEADERS {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
}

pub async fn guard(State(browser): State<Arc<Browser>>, request: Request, next: Next) -> Response {
    match browser.check(&request) {
        Ok(()) => next.run(request).await,
        Err(refused) => {
            browser.note(refused.status, request.extensions().get::<Arc<Pass>>());
            refused.into_response()
        }
    }
}

impl Browser {
    /// Counts and logs a refusal.
    fn note(&self, status: StatusCode, pass: Option<&Arc<Pass>>) {
        let reason = match status {
            StatusCode::MISDIRECTED_REQUEST => "host",
            StatusCode::FORBIDDEN => "origin",
            _ => return,
        };
        self.metrics.audit.refuse(&audit::Refused {
            door: audit::Interface::Admin,
            act: "call",
            reason,
            topic: None,
            user: None,
            address: pass.map(|pass| pass.address.ip()),
            client_id: None,
        });
    }

    fn check(&self, request: &Request) -> Result<(), Failure> {
        // Probes and scrapers may use any host name; these paths reveal nothing worth a rebinding attack.
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        if is_read && matches!(request.uri().path(), "/healthz" | "/readyz" | "/metrics") {
            return Ok(());
        }
        let host = one(request.headers(), &header::HOST)?;
        // A host in the request target overrides the header, so both are checked.
        let target = request.uri().authority().map(Authority::as_str);
        if host.is_none() && request.version() > Version::HTTP_10 {
            let message = "an HTTP/1.1 request needs one Host header";
            return Err(Failure::invalid(message));
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

    fn unknown_host(&self, called: &str) -> Failure {
        let called: String = called.chars().take(100).collect();
        let message = format!(
            "this listener does not answer to the name `{}`: add the name to admin.hosts, or use its address",
            called.escape_debug()
        );
        let status = StatusCode::MISDIRECTED_REQUEST;
        Failure::new(status, "misdirected_request", message)
    }

    /// For requests that change something: a page may send them only to its own origin.
    fn check_origin(&self, headers: &HeaderMap, called: Option<&str>) -> Result<(), Failure> {
        let site = one(headers, &FETCH_SITE)?;
        let origin = one(headers, &header::ORIGIN)?;
        let is_own_site = site.is_none_or(|site| matches!(site, "same-origin" | "none"));
        let is_own_origin = origin.is_none_or(|origin| {
            let origin = Origin::parse(origin);
            let called = called.and_then(hosts::split);
            match (origin, called) {
                // The browser says that the origins are the same; a proxy may have terminated TLS.
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
        let message = "a web page may send changes only to the address that it was loaded from";
        Err(Failure::new(
            StatusCode::FORBIDDEN,
            "foreign_origin",
            message,
        ))
    }
}

/// The single header with this name. Two of them, or one that is not text, are refused, because other software may read
/// them differently.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Failure> {
    let mut values = headers.get_all(name).iter();
    let (first, second) = (values.next(), values.next());
    let text = first.map(|value| value.to_str());
    match (text, second) {
        (None, _) => Ok(None),
        (Some(Ok(text)), None) => Ok(Some(text)),
        _ => Err(Failure::invalid(format!(
            "a request may have only one {name} header, in plain text"
        ))),
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
            .map_or_else(|failure| failure.status.as_u16(), |()| 200)
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
