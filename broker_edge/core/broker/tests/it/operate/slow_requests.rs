//! Clients that never finish their handshakes or requests on the admin listener do not make the broker look dead.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustls::ClientConfig;

use crate::common::http::text;
use crate::common::{start, start_with, tcp};
use crate::transports::wires::{Authority, client_config, tls, tls_settings};

/// More than the admin listener has slots.
const SLOW: usize = 100;
const PROBES: usize = 200;
const PATHS: [&str; 2] = ["/healthz", "/readyz"];
const HALVES: [&str; 3] = [
    "",
    "GET /healthz HTTP/1.1\r\nHost: a\r\n",
    "GET /api/v1/sta",
];

/// Opens connections until the test is over; each one takes the place of an older one.
struct Flood<'a> {
    is_over: &'a AtomicBool,
    opened: &'a AtomicUsize,
}

impl Flood<'_> {
    fn keep_open<T>(&self, most: usize, mut open: impl FnMut(usize) -> T) {
        let mut slow = VecDeque::new();
        for number in 0.. {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            slow.push_back(open(number));
            self.opened.fetch_add(1, Ordering::Relaxed);
            // A thousand a second: no test of how fast the broker accepts.
            std::thread::sleep(Duration::from_millis(1));
            if slow.len() > most {
                slow.pop_front();
            }
        }
    }
}

/// The answers to probes while `floods` run, each in its own thread.
fn probe_during(
    floods: &[&(dyn Fn(&Flood<'_>) + Sync)],
    probe: impl Fn(&str) -> u16,
    paths: &[&str],
) -> Vec<u16> {
    let (is_over, opened) = (AtomicBool::new(false), AtomicUsize::new(0));
    let flood = Flood {
        is_over: &is_over,
        opened: &opened,
    };
    std::thread::scope(|scope| {
        for run in floods {
            scope.spawn(|| run(&flood));
        }
        while opened.load(Ordering::Relaxed) < SLOW {
            std::thread::yield_now();
        }
        let probe = |number: usize| {
            let path = paths[number % paths.len()];
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| probe(path))).unwrap_or(0)
        };
        let answers = (0..PROBES).map(probe).collect();
        is_over.store(true, Ordering::Relaxed);
        answers
    })
}

fn half_request(admin: SocketAddr, number: usize) -> TcpStream {
    let mut stream = tcp(admin);
    // The broker may close it at once.
    let _ = stream.write_all(HALVES[number % HALVES.len()].as_bytes());
    stream
}

/// A connection on which a request was answered, so that it keeps its slot.
fn hold<W: Read + Write>(mut wire: W) -> W {
    let request = b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n";
    wire.write_all(request).expect("it is taken");
    let mut first = [0; 12];
    wire.read_exact(&mut first).expect("it answers");
    assert_eq!(&first, b"HTTP/1.1 200");
    wire
}

fn unanswered(answers: &[u16]) -> usize {
    answers.iter().filter(|answer| **answer != 200).count()
}

#[test]
fn health_probes_and_requests_are_answered_while_unfinished_requests_hold_every_slot() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path());
    let admin = broker.admin_address();
    let half = |flood: &Flood<'_>| flood.keep_open(SLOW, |number| half_request(admin, number));
    let probe = |path: &str| text(admin, "GET", path).0;
    let paths = [PATHS[0], PATHS[1], "/api/v1/status"];
    assert_eq!(unanswered(&probe_during(&[&half], probe, &paths)), 0);
    broker.shutdown();
}

#[test]
fn health_probes_are_answered_while_users_and_unfinished_requests_hold_every_slot() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start_with(dir.path(), |config| {
        config.admin.max_connections = 4;
        config.admin.max_connections_per_ip = Some(4);
    });
    let admin = broker.admin_address();
    let users = [(); 4].map(|()| hold(tcp(admin)));
    let half = |flood: &Flood<'_>| flood.keep_open(SLOW, |number| half_request(admin, number));
    let probe = |path: &str| text(admin, "GET", path).0;
    assert_eq!(unanswered(&probe_during(&[&half], probe, &PATHS)), 0);
    drop(users);
    broker.shutdown();
}

/// The status of the answer to a probe over TLS.
fn probe_over_tls(admin: SocketAddr, config: &Arc<ClientConfig>, path: &str) -> u16 {
    let mut wire = tls(tcp(admin), config);
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    wire.write_all(request.as_bytes()).expect("it is taken");
    let mut first = [0; 12];
    wire.read_exact(&mut first).expect("it answers");
    String::from_utf8_lossy(&first[9..]).parse().unwrap_or(0)
}

/// The first bytes of a client in TLS.
fn client_hello(config: &Arc<ClientConfig>) -> Vec<u8> {
    let name = "localhost".try_into().expect("a name");
    let mut client =
        rustls::ClientConnection::new(Arc::clone(config), name).expect("valid settings");
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).expect("memory takes them");
    bytes
}

#[test]
fn health_probes_over_tls_are_answered_while_half_handshakes_and_half_requests_hold_every_slot() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let authority = Authority::new("ca");
    let settings = tls_settings(dir.path(), &authority.sign("broker", None), None);
    let broker = start_with(&dir.path().join("log"), |config| {
        config.listeners.admin.tls = settings;
        config.admin.max_connections = 6;
    });
    let (admin, config) = (broker.admin_address(), client_config(&authority, None));
    let mut users: Vec<_> = (0..4).map(|_| hold(tls(tcp(admin), &config))).collect();
    let hello = client_hello(&config);
    let pieces = [&hello[..0], &hello[..60], &hello];
    let handshakes = |flood: &Flood<'_>| {
        flood.keep_open(SLOW, |number| {
            let mut stream = tcp(admin);
            let _ = stream.write_all(pieces[number % pieces.len()]);
            stream
        });
    };
    let requests = |flood: &Flood<'_>| {
        flood.keep_open(SLOW, |number| {
            let mut wire = tls(tcp(admin), &config);
            // Behind a whole handshake, unless the broker closes it before.
            let _ = wire.write_all(HALVES[number % HALVES.len()].as_bytes());
            wire
        });
    };
    let probe = |path: &str| probe_over_tls(admin, &config, path);
    let floods: [&(dyn Fn(&Flood<'_>) + Sync); 2] = [&handshakes, &requests];
    assert_eq!(unanswered(&probe_during(&floods, probe, &PATHS)), 0);
    // Users hold every slot, so no connection can be closed to free one.
    users.extend((0..2).map(|_| hold(tls(tcp(admin), &config))));
    assert_eq!(unanswered(&probe_during(&floods, probe, &PATHS)), 0);
    broker.shutdown();
}
