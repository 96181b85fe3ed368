//! Clients that never finish their requests to the admin listener do not make the broker look dead.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::http::text;
use crate::common::{start, tcp};

const SLOW: usize = 80;
const PROBES: usize = 20;

#[test]
fn health_probes_are_answered_while_unfinished_requests_hold_every_slot() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path());
    let (admin, is_over) = (broker.admin_address(), AtomicBool::new(false));
    let opened = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut slow = std::collections::VecDeque::new();
            let heads = ["GET /healthz HTTP/1.1\r\nHost: a\r\n", "GET /api/v1/sta"];
            for head in heads.iter().cycle() {
                // Each takes the slot of an older one as long as the test lasts.
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let mut stream = tcp(admin);
                // The broker may close it at once.
                let _ = stream.write_all(head.as_bytes());
                slow.push_back(stream);
                opened.fetch_add(1, Ordering::Relaxed);
                // A thousand a second: no test of how fast the broker accepts.
                std::thread::sleep(Duration::from_millis(1));
                if slow.len() > SLOW {
                    slow.pop_front();
                }
            }
        });
        while opened.load(Ordering::Relaxed) < SLOW {
            std::thread::yield_now();
        }
        let probe = |number: usize| {
            let path = ["/healthz", "/readyz"][number % 2];
            std::panic::catch_unwind(|| text(admin, "GET", path).0).unwrap_or(0)
        };
        let answers: Vec<u16> = (0..PROBES).map(probe).collect();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(answers, [200; PROBES]);
    });
    broker.shutdown();
}
