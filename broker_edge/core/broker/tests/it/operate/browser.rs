//! What a web page can make a browser do to the admin listener.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use headwater_broker::Broker;

use crate::common::http::{self, ask};
use crate::common::{start, start_with};

fn status(broker: &Broker, line: &str, headers: &[&str]) -> u16 {
    http::status(&ask(broker.admin_address(), line, headers))
}

#[test]
fn a_page_whose_name_was_made_to_resolve_here_gets_nothing_and_drains_nothing() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start_with(dir.path(), |config| {
        config.admin.hosts = vec!["broker.example.com".to_owned()];
    });
    let evil = &["Host: evil.example:8080"][..];
    for line in [
        "GET /",
        "GET /api/v1/status",
        "GET /api/v1/clients",
        "GET /artifacts/a/1",
        "PUT /api/v1/drain",
        "POST /api/v1/reload",
    ] {
        assert_eq!(status(&broker, line, evil), 421, "{line}");
    }
    let answer = ask(broker.admin_address(), "GET /api/v1/status", evil);
    assert!(answer.contains("admin.hosts"), "{answer}");
    for line in ["GET /healthz", "GET /readyz", "GET /metrics"] {
        assert_eq!(status(&broker, line, evil), 200, "{line}");
    }
    for host in [
        "localhost",
        "127.0.0.1:8080",
        "[::1]",
        "Broker.Example.Com:80",
    ] {
        let host = format!("Host: {host}");
        assert_eq!(
            status(&broker, "GET /api/v1/status", &[&host]),
            200,
            "{host}"
        );
    }
    // Neither a host in the target nor a second header bypasses the check.
    let line = "GET http://evil.example/api/v1/status";
    assert_eq!(status(&broker, line, &["Host: localhost"]), 421);
    let two = ["Host: localhost", "Host: evil.example"];
    assert_eq!(status(&broker, "GET /api/v1/status", &two), 400);
    assert_eq!(status(&broker, "GET /api/v1/status", &[]), 400);
    broker.shutdown();
}

#[test]
fn a_page_of_another_origin_changes_nothing() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path());
    let host = format!("Host: {}", broker.admin_address());
    let own = format!("Origin: http://{}", broker.admin_address());
    for line in [
        "POST /api/v1/reload",
        "PUT /api/v1/drain",
        "DELETE /api/v1/drain",
    ] {
        for foreign in [
            "Origin: http://evil.example",
            "Origin: null",
            "Origin: http://127.0.0.1:1",
            "Sec-Fetch-Site: cross-site",
            "Sec-Fetch-Site: same-site",
        ] {
            let headers = [&*host, foreign, "Content-Length: 0"];
            assert_eq!(status(&broker, line, &headers), 403, "{line} {foreign}");
        }
    }
    assert_eq!(status(&broker, "GET /readyz", &[&host]), 200, "not drained");
    let own = [
        &*host,
        &*own,
        "Sec-Fetch-Site: same-origin",
        "Content-Length: 0",
    ];
    assert_eq!(status(&broker, "POST /api/v1/reload", &own), 200);
    let program = [&*host, "Content-Length: 0"];
    assert_eq!(status(&broker, "POST /api/v1/reload", &program), 200);
    broker.shutdown();
}

#[test]
fn every_answer_forbids_frames_and_whatever_comes_from_elsewhere() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let users = dir.path().join("users");
    let digest = |text: &[u8]| STANDARD.encode(ring::digest::digest(&ring::digest::SHA512, text));
    let stored = format!("ann:$6${}${}\n", STANDARD.encode("salt"), digest(b"pwsalt"));
    std::fs::write(&users, stored).expect("a file");
    let broker = start_with(&dir.path().join("log"), |config| {
        config.auth.password_file = Some(users);
        config.auth.operators = vec!["ann".to_owned()];
    });
    let ann = format!("Authorization: Basic {}", STANDARD.encode("ann:pw"));
    for (line, headers, code) in [
        ("GET /healthz", &["Host: localhost"][..], 200),
        ("GET /", &["Host: localhost"][..], 200),
        ("GET /api/v1/status", &["Host: localhost"][..], 401),
        ("GET /api/v1/status", &["Host: localhost", &*ann][..], 200),
        ("GET /nowhere", &["Host: localhost", &*ann][..], 404),
        ("GET /", &["Host: evil.example"][..], 421),
        (
            "POST /api/v1/reload",
            &["Host: localhost", "Content-Length: 999999999"][..],
            413,
        ),
    ] {
        let answer = ask(broker.admin_address(), line, headers);
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{answer}");
        let head = answer
            .split("\r\n\r\n")
            .next()
            .unwrap_or_default()
            .to_lowercase();
        for needed in [
            "content-security-policy: default-src 'none'",
            "frame-ancestors 'none'",
            "x-frame-options: deny",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
        ] {
            assert!(head.contains(needed), "{line}: {needed} is not in {head}");
        }
        assert!(!head.contains("unsafe-inline"), "{head}");
    }
    broker.shutdown();
}

#[test]
fn the_page_works_under_the_policy_that_is_sent_with_it() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path());
    let page = ask(broker.admin_address(), "GET /", &["Host: localhost"]);
    // With script-src and style-src 'self', only the listener's own files apply.
    assert!(
        page.contains("src=\"ui/") && page.contains("href=\"ui/"),
        "{page}"
    );
    for inline in [
        "<style",
        " style=",
        "<script>",
        " onload=",
        " onclick=",
        "javascript:",
        "://",
    ] {
        assert!(!page.contains(inline), "{inline}");
    }
    broker.shutdown();
}
