//! Signing in at the admin listener with a browser, and what a session is good for.

use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use headwater_broker::Broker;
use headwater_broker::config::Config;
use headwater_broker::config::units::Age;
use serde_json::{Value, json};
use tonic::metadata::MetadataValue;
use tonic::{Code, Request};

use crate::auth::flight::Flight;
use crate::auth::{basic, line, token, token_keys, write};
use crate::common::http::{ask, ask_with, status};
use crate::common::{DEADLINE, start, start_with, tcp};
use crate::transports::wires::{self, Authority, client_config, tls, tls_settings};

/// Root is an operator, the reader a viewer, the writer neither.
const ACL: &str =
    "user root\noperator\ntopic replay #\nuser reader\nviewer\nuser writer\ntopic write plants/#\n";
const HOST: &str = "Host: localhost";

pub fn start_for_all(dir: &Path, change: impl FnOnce(&mut Config)) -> Broker {
    let users = ["root", "reader", "writer"].map(line).concat();
    write(dir, "users", &users);
    write(dir, "acl", ACL);
    write(dir, "keys", &token_keys());
    start_with(&dir.join("log"), |config| {
        config.auth.password_file = Some(dir.join("users"));
        config.auth.acl_file = Some(dir.join("acl"));
        config.auth.token.keys_file = Some(dir.join("keys"));
        config.auth.token.leeway = Age(Duration::ZERO);
        change(config);
    })
}

/// The complete answer to a request to sign in with this body.
fn post(broker: &Broker, body: &str, headers: &[&str]) -> String {
    let length = format!("Content-Length: {}", body.len());
    let own = [HOST, "Content-Type: application/json", &length];
    let headers = [&own, headers].concat();
    ask_with(
        broker.admin_address(),
        "POST /api/v1/session",
        &headers,
        body,
    )
}

pub fn password_of(user: &str) -> String {
    json!({"user": user, "password": format!("pw-{user}")}).to_string()
}

fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let head = answer.split("\r\n\r\n").next()?;
    head.lines().find_map(|line| {
        let (found, value) = line.split_once(": ")?;
        found.eq_ignore_ascii_case(name).then_some(value)
    })
}

fn body(answer: &str) -> Value {
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
    serde_json::from_str(body.unwrap_or_default()).unwrap_or_else(|_| panic!("no JSON: {answer}"))
}

/// Signs in and returns the header with which a browser shows the cookie.
pub fn sign_in(broker: &Broker, wanted: &str) -> String {
    let answer = post(broker, wanted, &[]);
    assert_eq!(status(&answer), 200, "{answer}");
    cookie(&answer)
}

fn cookie(answer: &str) -> String {
    let set = header(answer, "Set-Cookie").unwrap_or_else(|| panic!("no cookie: {answer}"));
    format!("Cookie: {}", set.split(';').next().unwrap())
}

fn get(broker: &Broker, path: &str, headers: &[&str]) -> u16 {
    call(broker, &format!("GET {path}"), headers)
}

pub fn call(broker: &Broker, line: &str, headers: &[&str]) -> u16 {
    let headers = [&[HOST], headers].concat();
    status(&ask(broker.admin_address(), line, &headers))
}

#[test]
fn a_password_becomes_a_cookie_with_the_rights_of_its_user_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_for_all(dir.path(), |_| {});
    let answer = post(&broker, &password_of("root"), &[]);
    assert_eq!(status(&answer), 200, "{answer}");
    let set = header(&answer, "Set-Cookie").unwrap();
    let (pair, flags) = set.split_once(';').unwrap();
    let value = pair.strip_prefix("headwater-session=").unwrap();
    assert_eq!(value.len(), 43, "256 bits");
    assert_eq!(flags, " HttpOnly; SameSite=Strict; Path=/; Max-Age=43200");
    assert_eq!(header(&answer, "Cache-Control"), Some("no-store"));
    assert_eq!(body(&answer)["user"], "root");
    for (user, looks, acts) in [
        ("root", 200, 200),
        ("reader", 200, 403),
        ("writer", 403, 403),
    ] {
        let cookie = sign_in(&broker, &password_of(user));
        let shown = ["Content-Length: 0", &*cookie];
        assert_eq!(get(&broker, "/api/v1/status", &shown), looks, "{user}");
        assert_eq!(call(&broker, "POST /api/v1/reload", &shown), acts, "{user}");
        assert_eq!(get(&broker, "/api/v1/whoami", &shown), 200);
        assert_eq!(get(&broker, "/metrics", &shown), 200);
        let foreign = [&shown[..], &["Origin: http://evil.example"]].concat();
        assert_eq!(call(&broker, "POST /api/v1/reload", &foreign), 403);
    }
    assert_eq!(get(&broker, "/api/v1/session", &[]), 401);
    broker.shutdown();
}

#[test]
fn a_wrong_password_gets_no_cookie_and_counts_as_everywhere() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_for_all(dir.path(), |_| {});
    let wrong = json!({"user": "root", "password": "guess"}).to_string();
    let unknown = json!({"user": "eve", "password": "pw-eve"}).to_string();
    for body in [&wrong, &unknown] {
        let answer = post(&broker, body, &[]);
        assert_eq!(status(&answer), 401, "{answer}");
        assert!(header(&answer, "Set-Cookie").is_none(), "{answer}");
    }
    let root = sign_in(&broker, &password_of("root"));
    let shown = [HOST, &root];
    let metrics = ask(broker.admin_address(), "GET /metrics", &shown);
    let name = "headwater_auth_denied_total{reason=\"bad_credentials\"}";
    assert_eq!(wires::value_in(&metrics, name), 2.0);
    let refusals = body(&ask(broker.admin_address(), "GET /api/v1/refusals", &shown));
    let row = &refusals["users"][0];
    let counted = &row["refused"][0];
    let expected = json!({
        "door": "admin",
        "act": "call",
        "reason": "bad_credentials",
        "count": 2,
        "last_us": row["last_us"],
        "topic": null,
        "is_topic_cut": false,
        "client_id": null,
        "is_client_id_cut": false,
    });
    assert_eq!(*counted, expected, "{refusals}");
    broker.shutdown();
}

#[test]
fn a_token_becomes_a_session_that_ends_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_for_all(dir.path(), |_| {});
    let with = |token: String| json!({"token": token}).to_string();
    let long = sign_in(&broker, &with(token("reader", 3600)));
    assert_eq!(get(&broker, "/api/v1/status", &[&long]), 200);
    for bad in [token("reader", -10), "nonsense".to_owned(), String::new()] {
        assert_eq!(status(&post(&broker, &with(bad), &[])), 401);
    }
    let short = sign_in(&broker, &with(token("reader", 2)));
    let deadline = Instant::now() + DEADLINE;
    while get(&broker, "/api/v1/status", &[&short]) == 200 {
        assert!(Instant::now() < deadline, "the session does not end");
    }
    assert_eq!(get(&broker, "/api/v1/status", &[&short]), 401);
    assert_eq!(get(&broker, "/api/v1/status", &[&long]), 200);
    broker.shutdown();
}

#[test]
fn a_page_of_another_origin_signs_nobody_in_or_out() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_for_all(dir.path(), |_| {});
    let cookie = sign_in(&broker, &password_of("reader"));
    for foreign in ["Origin: http://evil.example", "Sec-Fetch-Site: same-site"] {
        let answer = post(&broker, &password_of("root"), &[foreign]);
        assert_eq!(status(&answer), 403, "{answer}");
        assert!(header(&answer, "Set-Cookie").is_none(), "{answer}");
        let headers = [foreign, &cookie];
        assert_eq!(call(&broker, "DELETE /api/v1/session", &headers), 403);
    }
    assert_eq!(get(&broker, "/api/v1/status", &[&cookie]), 200);
    broker.shutdown();
}

#[test]
fn a_reload_with_another_password_or_without_the_user_ends_the_session() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_for_all(dir.path(), |_| {});
    let [root, reader, writer] =
        ["root", "reader", "writer"].map(|user| sign_in(&broker, &password_of(user)));
    let changed = line("writer").replace("writer:", "reader:");
    write(dir.path(), "users", &(line("root") + &changed));
    broker.reload().unwrap();
    let whoami = |cookie: &str| get(&broker, "/api/v1/whoami", &[cookie]);
    assert_eq!(
        [&root, &reader, &writer].map(|one| whoami(one)),
        [200, 401, 401]
    );
    // Those sessions were dropped, so the old files do not bring them back.
    let users = ["root", "reader", "writer"].map(line).concat();
    write(dir.path(), "users", &users);
    broker.reload().unwrap();
    assert_eq!(
        [&root, &reader, &writer].map(|one| whoami(one)),
        [200, 401, 401]
    );
    broker.shutdown();
}

#[test]
fn signing_out_ends_the_session_and_only_this_one() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_for_all(dir.path(), |_| {});
    let [one, other] = [(); 2].map(|()| sign_in(&broker, &password_of("reader")));
    let leave = |headers: &[&str]| {
        let headers = [&[HOST], headers].concat();
        ask(broker.admin_address(), "DELETE /api/v1/session", &headers)
    };
    // Whoever has no cookie, or whose session has ended, is told the same.
    for headers in [&[&*one][..], &[&one], &[]] {
        let answer = leave(headers);
        assert_eq!(status(&answer), 204, "{answer}");
        let set = header(&answer, "Set-Cookie").unwrap();
        assert!(set.starts_with("headwater-session=; ") && set.contains("Max-Age=0"));
    }
    assert_eq!(get(&broker, "/api/v1/status", &[&one]), 401);
    assert_eq!(get(&broker, "/api/v1/status", &[&other]), 200);
    // Signing in again replaces the cookie in the browser, so the old session ends.
    let answer = post(&broker, &password_of("root"), &[&other]);
    assert_eq!(status(&answer), 200);
    assert_eq!(get(&broker, "/api/v1/status", &[&other]), 401);
    assert_eq!(get(&broker, "/api/v1/status", &[&cookie(&answer)]), 200);
    broker.shutdown();
}

/// Browsers send the cookies of a host to all of its ports.
#[test]
fn brokers_on_two_ports_of_one_host_leave_the_cookies_of_each_other_alone() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_for_all(dir.path(), |_| {});
    let body = password_of("reader");
    let length = format!("Content-Length: {}", body.len());
    let call = |host: &str, line: &str, cookie: &str| {
        let kind = "Content-Type: application/json";
        let headers = [host, kind, &length, cookie];
        ask_with(broker.admin_address(), line, &headers, &body)
    };
    let none = "Cookie: a=b";
    let jar = [
        ("Host: localhost", "headwater-session="),
        ("Host: localhost:8080", "headwater-session-8080="),
        ("Host: [::1]:8081", "headwater-session-8081="),
    ]
    .map(|(host, name)| {
        let answer = call(host, "POST /api/v1/session", none);
        let set = header(&answer, "Set-Cookie").unwrap_or_else(|| panic!("{answer}"));
        assert!(set.starts_with(name), "{host}: {set}");
        (host, name, cookie(&answer))
    });
    let pairs = jar.each_ref().map(|(_, _, one)| one.split_at(8).1);
    let all = format!("Cookie: {}", pairs.join("; "));
    let look = |host: &str, cookie: &str| status(&call(host, "GET /api/v1/status", cookie));
    for (host, _, own) in &jar {
        assert_eq!((look(host, own), look(host, &all)), (200, 200), "{host}");
    }
    assert_eq!(look("Host: localhost:8080", &jar[0].2), 401);
    // Signing out at one port, with the cookies of all, ends the session there.
    let answer = call(jar[1].0, "DELETE /api/v1/session", &all);
    let set = header(&answer, "Set-Cookie").unwrap();
    assert!(set.starts_with("headwater-session-8080=; "), "{set}");
    let found = jar.each_ref().map(|(host, _, _)| look(host, &all));
    assert_eq!(found, [200, 401, 200]);
    broker.shutdown();
}

#[test]
fn two_cookies_or_a_malformed_one_let_nobody_in_and_authorization_counts_more() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_for_all(dir.path(), |config| config.auth.allow_anonymous = true);
    let root = sign_in(&broker, &password_of("root"));
    let reader = sign_in(&broker, &password_of("reader"));
    let status_with = |headers: &[&str]| get(&broker, "/api/v1/status", headers);
    let pair = root.strip_prefix("Cookie: ").unwrap();
    assert_eq!(status_with(&[&format!("Cookie: a=b; {pair}; c=d")]), 200);
    for bad in [
        &[&*root, &*reader][..],
        &[&*root, &*root],
        &[&format!("{root}; headwater-session=x")],
        &[&format!("{root}x")],
        &["Cookie: headwater-session="],
        &["Cookie: headwater-session=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"],
    ] {
        assert_eq!(status_with(bad), 401, "{bad:?}");
    }
    // A request without the cookie is anonymous, and anonymous callers may not view.
    assert_eq!(status_with(&["Cookie: a=b"]), 403);
    let writer = format!("Authorization: {}", basic("writer"));
    assert_eq!(status_with(&[&root, &writer]), 403, "it is the writer");
    let wrong = format!("Authorization: {}", basic("eve"));
    assert_eq!(status_with(&[&root, &wrong]), 401);
    let good = format!("Authorization: {}", basic("reader"));
    assert_eq!(status_with(&["Cookie: headwater-session=x", &good]), 200);
    broker.shutdown();
}

#[tokio::test(flavor = "multi_thread")]
async fn flight_takes_no_cookies() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_for_all(dir.path(), |_| {});
    let cookie = tokio::task::block_in_place(|| sign_in(&broker, &password_of("root")));
    let value = cookie.strip_prefix("Cookie: ").unwrap();
    let mut flight = Flight::open(&broker, None).await;
    let mut request = Request::new(arrow_flight::Action::new("version", "{}"));
    let value: MetadataValue<_> = value.parse().unwrap();
    request.metadata_mut().insert("cookie", value);
    let refused = flight.service.do_action(request).await.err().unwrap();
    assert_eq!(refused.code(), Code::Unauthenticated);
}

#[test]
fn a_page_that_asks_itself_makes_no_browser_ask() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_for_all(dir.path(), |_| {});
    let wrong = json!({"user": "root", "password": "guess"}).to_string();
    let admin = broker.admin_address();
    for (of_page, asks) in [(&[][..], true), (&["X-Headwater: 1"][..], false)] {
        let headers = [&[HOST], of_page].concat();
        for answer in [
            ask(admin, "GET /api/v1/status", &headers),
            post(&broker, &wrong, of_page),
        ] {
            assert_eq!(status(&answer), 401, "{answer}");
            assert_eq!(header(&answer, "WWW-Authenticate").is_some(), asks);
        }
    }
    broker.shutdown();
}

#[test]
fn with_tls_the_cookie_is_for_this_host_and_for_tls_only() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("server");
    let settings = tls_settings(dir.path(), &authority.sign("broker", None), None);
    let broker = start_for_all(dir.path(), |config| config.listeners.admin.tls = settings);
    let config = client_config(&authority, None);
    let ask = |request: String| {
        let mut wire = tls(tcp(broker.admin_address()), &config);
        wire.write_all(request.as_bytes()).unwrap();
        String::from_utf8(wires::answer(&mut wire)).unwrap()
    };
    let body = password_of("root");
    let head = format!("{HOST}\r\nConnection: close\r\n");
    let answer = ask(format!(
        "POST /api/v1/session HTTP/1.1\r\n{head}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    let set = header(&answer, "Set-Cookie").unwrap_or_else(|| panic!("{answer}"));
    assert!(set.starts_with("__Host-headwater-session="), "{set}");
    assert!(
        set.contains("; Secure") && set.contains("; Path=/"),
        "{set}"
    );
    let cookie = cookie(&answer);
    let look = |cookie: &str| {
        let request = format!("GET /api/v1/status HTTP/1.1\r\n{head}{cookie}\r\n\r\n");
        status(&ask(request))
    };
    assert_eq!(look(&cookie), 200);
    assert_eq!(look(&cookie.replace("__Host-", "")), 401);
    broker.shutdown();
}

#[test]
fn a_body_without_exactly_one_proof_is_refused_and_not_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_for_all(dir.path(), |_| {});
    for bad in [
        "",
        "{}",
        "4711",
        "[]",
        "{\"user\": \"root\"}",
        "{\"password\": \"4711\"}",
        "{\"user\": \"root\", \"password\": 4711}",
        "{\"user\": \"root\", \"password\": \"4711",
        "{\"user\": \"root\", \"password\": \"pw-root\", \"token\": \"4711\"}",
        "{\"user\": \"root\", \"token\": \"4711\"}",
        "{\"user\": \"root\", \"password\": \"pw-root\", \"4711\": 1}",
    ] {
        let answer = post(&broker, bad, &[]);
        assert_eq!(status(&answer), 400, "{bad}: {answer}");
        assert_eq!(body(&answer)["error"], "invalid_argument", "{answer}");
        assert!(!answer.contains("4711"), "{answer}");
    }
    // The content type of a form, which any page may send.
    let headers = [HOST, "Content-Type: text/plain", "Content-Length: 2"];
    let admin = broker.admin_address();
    let answer = ask_with(admin, "POST /api/v1/session", &headers, "{}");
    assert_eq!(status(&answer), 415, "{answer}");
    broker.shutdown();
}

#[test]
fn where_nobody_has_a_name_there_is_nobody_to_sign_in() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start(dir.path());
    let answer = post(&broker, &password_of("root"), &[]);
    assert_eq!(status(&answer), 400, "{answer}");
    assert!(answer.contains("this broker has no users"), "{answer}");
    assert!(header(&answer, "Set-Cookie").is_none());
    assert_eq!(call(&broker, "DELETE /api/v1/session", &[]), 204);
    // A cookie of another broker on the same host does not matter here.
    let stale = "Cookie: headwater-session=x";
    assert_eq!(get(&broker, "/api/v1/status", &[stale]), 200);
    broker.shutdown();
}

#[test]
fn whoever_signs_in_takes_one_of_its_connections_and_others_wait_on_none() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_for_all(dir.path(), |config| {
        config.admin.max_connections_per_user = Some(1);
    });
    let begin = |wanted: &str| {
        let mut stream = tcp(broker.admin_address());
        let length = wanted.len();
        let head = format!("{HOST}\r\nContent-Type: application/json\r\nContent-Length: {length}");
        let request = format!("POST /api/v1/session HTTP/1.1\r\n{head}\r\n\r\n{wanted}");
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    // A connection whose user stays unknown ends with the answer, and not at its deadline.
    let mut refused = begin("{\"user\": \"root\", \"password\": \"guess\"}");
    let mut answer = String::new();
    refused.read_to_string(&mut answer).unwrap();
    assert_eq!(status(&answer), 401, "{answer}");
    let mut root = begin(&password_of("root"));
    let mut first = [0; 12];
    root.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    let answer = post(&broker, &password_of("root"), &[]);
    assert_eq!(status(&answer), 503, "{answer}");
    assert!(answer.contains("admin.max_connections_per_user"));
    assert_eq!(status(&post(&broker, &password_of("reader"), &[])), 200);
    drop(root);
    broker.shutdown();
}
