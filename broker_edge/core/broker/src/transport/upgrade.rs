//! The HTTP request that opens a WebSocket for MQTT, and its response. Bytes in, bytes out.

use tungstenite::handshake::machine::TryParse;
use tungstenite::handshake::server::{Request, create_response, write_response};
use tungstenite::http::{HeaderMap, HeaderName, HeaderValue, Method, header};

use super::first_bytes::http_answer;
use crate::hosts::Origins;

const PATH: &str = "/mqtt";
const SUBPROTOCOL: &str = "mqtt";

/// The headers of which a second one would leave open what the client asks for: a proxy before the broker may believe
/// the other one.
const SINGLE: [(HeaderName, &str); 5] = [
    (header::HOST, "The request has more than one `Host` header."),
    (
        header::UPGRADE,
        "The request has more than one `Upgrade` header.",
    ),
    (
        header::SEC_WEBSOCKET_KEY,
        "The request has more than one `Sec-WebSocket-Key` header.",
    ),
    (
        header::SEC_WEBSOCKET_VERSION,
        "The request has more than one `Sec-WebSocket-Version` header.",
    ),
    (
        header::ORIGIN,
        "The request has more than one `Origin` header.",
    ),
];

/// The result of parsing the bytes received so far.
#[derive(Debug, PartialEq, Eq)]
pub enum Upgrade {
    Incomplete,
    /// The request takes `len` bytes; the bytes after it are frames.
    Accepted {
        len: usize,
        answer: Vec<u8>,
        /// A web page from another host sent the request.
        is_foreign: bool,
    },
    Refused {
        reason: &'static str,
        answer: Vec<u8>,
    },
}

/// Parses the request at the start of `bytes`; `origins` are the pages that count as the broker's own.
pub fn parse(bytes: &[u8], origins: &Origins) -> Upgrade {
    let (len, request) = match Request::try_parse(bytes) {
        Ok(Some(parsed)) => parsed,
        Ok(None) => return Upgrade::Incomplete,
        Err(_) => return refused("400 Bad Request", "", "This is not an HTTP/1.1 request."),
    };
    if let Some((status, headers, reason)) = refusal_of(&request) {
        return refused(status, headers, reason);
    }
    let Ok(mut response) = create_response(&request) else {
        return refused(
            "400 Bad Request",
            "",
            "The request is not a valid WebSocket opening handshake (RFC 6455).",
        );
    };
    response.headers_mut().insert(
        header::SEC_WEBSOCKET_PROTOCOL,
        HeaderValue::from_static(SUBPROTOCOL),
    );
    let mut answer = Vec::new();
    write_response(&mut answer, &response).expect("writing to memory does not fail");
    Upgrade::Accepted {
        len,
        answer,
        is_foreign: is_foreign(&request, origins),
    }
}

/// The status, headers and reason of the answer to a request that opens no WebSocket for MQTT.
fn refusal_of(request: &Request) -> Option<(&'static str, &'static str, &'static str)> {
    let headers = request.headers();
    if let Some(reason) = contradiction_in(headers) {
        return Some(("400 Bad Request", "", reason));
    }
    if request.uri().path() != PATH {
        return Some(("404 Not Found", "", "MQTT over WebSocket is at /mqtt."));
    }
    let wants_upgrade = request.method() == Method::GET
        && headers
            .get(header::UPGRADE)
            .is_some_and(|upgrade| upgrade.as_bytes().eq_ignore_ascii_case(b"websocket"));
    if !wants_upgrade {
        return Some((
            "426 Upgrade Required",
            "Upgrade: websocket\r\n",
            "This port accepts only MQTT over WebSocket.",
        ));
    }
    if headers
        .get(header::SEC_WEBSOCKET_VERSION)
        .is_some_and(|version| version != "13")
    {
        return Some((
            "426 Upgrade Required",
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
            "This port supports only WebSocket version 13.",
        ));
    }
    let reason = if !headers.contains_key(header::HOST) {
        "The request has no `Host` header."
    } else if !list(headers, &header::SEC_WEBSOCKET_PROTOCOL).any(|name| name == SUBPROTOCOL) {
        "The request must offer the subprotocol `mqtt`."
    } else {
        return None;
    };
    Some(("400 Bad Request", "", reason))
}

/// What RFC 9112 (3.2) and RFC 6455 (11.3) forbid: several values where one counts.
fn contradiction_in(headers: &HeaderMap) -> Option<&'static str> {
    let is_repeated = |name: &HeaderName| headers.get_all(name).iter().nth(1).is_some();
    let repeated = SINGLE.iter().find(|(name, _)| is_repeated(name));
    if let Some((_, reason)) = repeated {
        return Some(reason);
    }
    // `Connection` is a list, which may take several lines.
    let closes = list(headers, &header::CONNECTION).any(|word| word.eq_ignore_ascii_case("close"));
    let upgrades = headers.contains_key(header::UPGRADE);
    (closes && upgrades).then_some("The request asks for `Upgrade` and for `Connection: close`.")
}

/// The elements of a header that is a list, from all its lines.
fn list<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let lines = headers.get_all(name).into_iter();
    let lines = lines.filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim)
}

/// Browsers send the page's origin; programs need not. What cannot be read counts as foreign.
fn is_foreign(request: &Request, origins: &Origins) -> bool {
    let headers = request.headers();
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    let Some(origin) = headers.get(header::ORIGIN) else {
        return false;
    };
    let is_relative = request.uri().authority().is_none();
    let host = headers.get(header::HOST).filter(|_| is_relative);
    let host = host.and_then(text);
    text(origin).is_none_or(|origin| origins.is_foreign(&origin, host.as_deref()))
}

fn refused(status: &str, headers: &str, reason: &'static str) -> Upgrade {
    Upgrade::Refused {
        reason,
        answer: http_answer(status, headers, reason),
    }
}

/// The answer to a request over the size limit.
pub fn too_large() -> Vec<u8> {
    http_answer(
        "431 Request Header Fields Too Large",
        "",
        "The request is too large.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "GET /mqtt HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: keep-alive, \
        Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: \
        13\r\nSec-WebSocket-Protocol: mqttv3.1, mqtt\r\n\r\n";

    fn status(request: &str) -> String {
        match parse(request.as_bytes(), &Origins::default()) {
            Upgrade::Refused { answer, .. } => {
                let text = String::from_utf8(answer).unwrap();
                text.split("\r\n").next().unwrap().to_owned()
            }
            other => panic!("{request}: {other:?}"),
        }
    }

    #[test]
    fn a_good_request_is_accepted_and_every_beginning_of_it_is_incomplete() {
        let bytes = [GOOD.as_bytes(), b"\x82\x80"].concat();
        let Upgrade::Accepted {
            len,
            answer,
            is_foreign: false,
        } = parse(&bytes, &Origins::default())
        else {
            panic!("refused");
        };
        assert_eq!(len, GOOD.len());
        let answer = String::from_utf8(answer).unwrap().to_lowercase();
        assert!(answer.starts_with("http/1.1 101 switching protocols\r\n"));
        // The example of RFC 6455, 1.3.
        assert!(answer.contains("\r\nsec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=\r\n"));
        assert!(answer.contains("\r\nsec-websocket-protocol: mqtt\r\n"));
        for end in 0..GOOD.len() {
            let begun = parse(&GOOD.as_bytes()[..end], &Origins::default());
            assert_eq!(begun, Upgrade::Incomplete);
        }
    }

    #[test]
    fn what_opens_no_websocket_for_mqtt_gets_the_right_answer() {
        let change = |from: &str, to: &str| {
            assert!(GOOD.contains(from));
            GOOD.replace(from, to)
        };
        assert_eq!(status(&change("/mqtt ", "/ ")), "HTTP/1.1 404 Not Found");
        let bad = "HTTP/1.1 400 Bad Request";
        assert_eq!(status(&change("mqttv3.1, mqtt", "wamp")), bad);
        assert_eq!(status(&change("Sec-WebSocket-Protocol", "X-Other")), bad);
        assert_eq!(status(&change("Sec-WebSocket-Key", "X-Other")), bad);
        assert_eq!(status("GET\0"), bad);
        let upgrade = "HTTP/1.1 426 Upgrade Required";
        assert_eq!(status(&change("Version: 13", "Version: 8")), upgrade);
        assert_eq!(status(&change("Upgrade: websocket", "X-Other: a")), upgrade);
        assert_eq!(status(&change("GET", "POST")), bad);
    }

    fn reason(request: &str) -> &'static str {
        match parse(request.as_bytes(), &Origins::default()) {
            Upgrade::Refused { answer, reason } => {
                assert!(answer.starts_with(b"HTTP/1.1 400 "), "{request}");
                reason
            }
            other => panic!("{request}: {other:?}"),
        }
    }

    #[test]
    fn a_header_that_must_be_single_is_refused_when_it_is_repeated() {
        for (name, value) in [
            ("Host", "h"),
            ("Host", "other"),
            ("Upgrade", "h2c"),
            ("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("Sec-WebSocket-Version", "8"),
        ] {
            let told = reason(&GOOD.replace("\r\n\r\n", &format!("\r\n{name}: {value}\r\n\r\n")));
            let name = format!("more than one `{name}` header").to_lowercase();
            assert!(told.to_lowercase().contains(&name), "{told}");
        }
        let origins = "\r\nOrigin: http://h\r\nOrigin: http://evil.example\r\n\r\n";
        assert!(reason(&GOOD.replace("\r\n\r\n", origins)).contains("`Origin`"));
        let hostless = reason(&GOOD.replace("Host: h\r\n", ""));
        assert_eq!(hostless, "The request has no `Host` header.");
    }

    #[test]
    fn an_upgrade_of_a_connection_that_is_to_be_closed_is_refused() {
        for more in ["keep-alive, Upgrade, close", "Upgrade\r\nConnection: Close"] {
            let told = reason(&GOOD.replace("keep-alive, Upgrade", more));
            assert!(told.contains("`Connection: close`"), "{told}");
        }
        // Lists may take several lines.
        let lists = GOOD.replace("keep-alive, Upgrade", "Upgrade\r\nConnection: keep-alive");
        let lists = lists.replace("mqttv3.1, mqtt", "mqttv3.1\r\nSec-WebSocket-Protocol: mqtt");
        let parsed = parse(lists.as_bytes(), &Origins::default());
        assert!(matches!(parsed, Upgrade::Accepted { .. }), "{parsed:?}");
    }
}
