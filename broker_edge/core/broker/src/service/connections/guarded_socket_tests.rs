//! Tests how much a connection may send before a call on it is authenticated.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use std::time::Duration;

use tokio::net::TcpListener;

use super::super::gate::{Gate, Limits};
use super::*;
use crate::auth::{Identity, ListenerKind};
use crate::descriptors::Share;

#[tokio::test]
async fn nobody_sends_much_before_a_call_was_let_in_and_nothing_is_lost_by_waiting() {
    const SENT: usize = 1 << 20;
    let share = Share {
        connections: 9,
        below: u64::MAX,
    };
    let limits = Limits::new(share, 9, 9, None, None, Duration::from_secs(60));
    let gate = Gate::new(ListenerKind::Flight, limits, Arc::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let (socket, address) = listener.accept().await.unwrap();
    let (pass, _) = gate.enter(address, 0).expect("a place");
    let mut watched = GuardedSocket::new(socket, Arc::clone(&pass));
    let sending = tokio::spawn(async move {
        client.write_all(&vec![7; SENT]).await.unwrap();
        client
    });
    let mut buffer = vec![0; 16 << 10];
    let mut received = 0;
    while received < PENDING_BYTES_MAX {
        received += watched.read(&mut buffer).await.unwrap();
    }
    assert!(received < PENDING_BYTES_MAX + buffer.len());
    let more = std::future::poll_fn(|context| {
        let mut more = ReadBuf::new(&mut buffer);
        let polled = Pin::new(&mut watched).poll_read(context, &mut more);
        Poll::Ready(polled.is_ready())
    });
    assert!(!more.await, "the rest stays in the socket");
    pass.let_in(&Arc::new(Identity::default()), None, false)
        .expect("a place");
    while received < SENT {
        received += watched.read(&mut buffer).await.unwrap();
    }
    assert_eq!(received, SENT);
    drop(sending.await.unwrap());
}
