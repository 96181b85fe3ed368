//! Tests how connections of a flood are accepted.

use std::net::{Ipv4Addr, TcpListener as StdListener, TcpStream as StdStream};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::gate::Limits;
use super::*;
use crate::auth::ListenerKind;
use crate::descriptors::Share;

const FLOOD: usize = 100;

fn gate() -> Arc<Gate> {
    let share = Share {
        connections: 1000,
        below: u64::MAX,
    };
    let mut limits = Limits::new(share, 2, 2, None, None, Duration::from_secs(600));
    limits.entry = 2;
    Gate::new(ListenerKind::Admin, limits, Arc::default())
}

/// A pause would let the flood fill the backlog, in which an honest client then waits behind thousands.
#[tokio::test]
async fn connections_that_replace_others_are_accepted_without_a_pause_and_let_other_tasks_run() {
    let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("bound");
    let _clients: Vec<StdStream> = (0..FLOOD)
        .map(|_| StdStream::connect(address).expect("the backlog has room"))
        .collect();
    let turns = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&turns);
    // On the one thread of this runtime it runs as often as the acceptor lets it, and all the time while that pauses.
    let other = tokio::spawn(async move {
        loop {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    let mut incoming = Incoming::new(listener, None, gate()).expect("a runtime");
    let mut accepted = Vec::new();
    accepted.extend(incoming.next().await);
    let before = turns.load(Ordering::Relaxed);
    while accepted.len() < FLOOD {
        accepted.extend(incoming.next().await);
    }
    let turns = turns.load(Ordering::Relaxed) - before;
    other.abort();
    assert!((FLOOD / 2..FLOOD * 10).contains(&turns), "{turns} turns");
}
