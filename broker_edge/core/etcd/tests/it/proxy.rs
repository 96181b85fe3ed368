//! A connection that loses what one side says, and what the client makes of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use headwater_etcd::{CasOutcome, Fault, MetaStore, Patience, Update, Watch};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Etcd, PATIENT, client, run, update};

const PASSES: u8 = 0;
const LOSES_REQUESTS: u8 = 1;
const LOSES_ANSWERS: u8 = 2;
const HOLDS_ANSWERS: u8 = 3;

/// Forwards to a member; a connection that has lost something closes.
struct Proxy {
    url: String,
    mode: Arc<AtomicU8>,
}

impl Proxy {
    async fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let mode = Arc::new(AtomicU8::new(PASSES));
        let all = Arc::clone(&mode);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(("127.0.0.1", port))
                    .await
                    .expect("etcd listens");
                let ((near_in, near_out), (far_in, far_out)) =
                    (near.into_split(), far.into_split());
                let mode = Arc::clone(&all);
                tokio::spawn(async move {
                    tokio::select! {
                        () = forward(near_in, far_out, &mode, LOSES_REQUESTS) => {}
                        () = forward(far_in, near_out, &mode, LOSES_ANSWERS) => {}
                    }
                });
            }
        });
        Self { url, mode }
    }

    fn set(&self, mode: u8) {
        self.mode.store(mode, Ordering::SeqCst);
    }
}

async fn forward(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mode: &AtomicU8,
    losing: u8,
) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let now = mode.load(Ordering::SeqCst);
        if now == HOLDS_ANSWERS && losing == LOSES_ANSWERS {
            continue;
        }
        if now == losing || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

/// The outcome, and the value that etcd has then.
async fn outcome_of(etcd: &Etcd, mode: u8) -> (CasOutcome, Option<Vec<u8>>) {
    let direct = etcd.client();
    let key = format!("/lost/{mode}");
    let proxy = Proxy::start(etcd.members[0].port).await;
    let through = client(&[&proxy.url], None, None, PATIENT);
    through.get(&key).await.expect("it passes");
    proxy.set(mode);
    let outcome = through.put_if_absent(&key, "v".into(), None).await;
    proxy.set(PASSES);
    let found = direct.get(&key).await.expect("read").found;
    assert!(through.get(&key).await.is_ok(), "it connects again");
    (outcome, found.map(|found| found.value))
}

#[test]
fn a_write_without_an_answer_is_unknown_whether_or_not_it_arrived() {
    let etcd = Etcd::start(1);
    run(async {
        let (outcome, value) = outcome_of(&etcd, LOSES_REQUESTS).await;
        assert!(
            matches!(&outcome, CasOutcome::Unknown(error) if matches!(error.fault, Fault::Lost(_))),
            "{outcome:?}"
        );
        assert_eq!(value, None);
        // Which answer the proxy loses first, that of the write or one of HTTP/2 alone, makes no difference to it.
        let (outcome, _) = outcome_of(&etcd, LOSES_ANSWERS).await;
        assert!(matches!(outcome, CasOutcome::Unknown(_)), "{outcome:?}");
    });
}

#[test]
fn a_write_that_is_carried_out_in_silence_is_unknown() {
    let etcd = Etcd::start(1);
    run(async {
        let proxy = Proxy::start(etcd.members[0].port).await;
        let patience = Patience {
            request: Duration::from_millis(500),
            ..PATIENT
        };
        let through = client(&[&proxy.url], None, None, patience);
        let mut watch = etcd.client().watch("/silent");
        assert!(matches!(watch.next().await, Update::All { .. }));
        while through.get("/silent").await.is_err() {}
        proxy.set(HOLDS_ANSWERS);
        let outcome = through.put_if_absent("/silent", "v".into(), None).await;
        let silent = Fault::Silent(500);
        assert!(
            matches!(&outcome, CasOutcome::Unknown(error) if error.fault == silent),
            "{outcome:?}"
        );
        assert!(matches!(update(&mut watch).await, Update::Changes(_)));
    });
}

#[test]
fn a_write_on_a_connection_that_was_closed_before_is_carried_out() {
    let etcd = Etcd::start(1);
    run(async {
        let client = etcd.client();
        client.get("/a").await.expect("read");
        let restart = |mut etcd: Etcd| {
            etcd.members[0].kill();
            etcd.members[0].start_again();
            etcd
        };
        // Meanwhile the connection notices that it is closed.
        let etcd = tokio::task::spawn_blocking(move || restart(etcd)).await;
        let outcome = client.put_if_absent("/a", "v".into(), None).await;
        assert!(matches!(outcome, CasOutcome::Done(_)), "{outcome:?}");
        drop(etcd);
    });
}
