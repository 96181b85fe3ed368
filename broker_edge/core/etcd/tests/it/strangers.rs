//! Servers that do not answer, are no etcd, or are one that is not used.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::Duration;

use headwater_etcd::{CasOutcome, Fault, MetaStore, Patience};
use prost::Message;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::service::Routes;
use tonic_prost::ProstCodec;

use crate::support::{Etcd, PATIENT, client, run, sentence};

/// A port whose server says this to whoever speaks first.
fn server_that_says(bytes: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(bytes);
        }
    });
    url
}

#[test]
fn a_server_that_is_no_etcd_is_named() {
    run(async {
        for bytes in [
            b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".as_slice(),
            b"\x20\x02\x00\x05",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            // A frame of settings, then one that is too large for anything.
            b"\x00\x00\x00\x04\x00\x00\x00\x00\x00\xff\xff\xff\x00\x00\x00\x00\x00\x01",
            b"",
        ] {
            let url = server_that_says(bytes);
            let client = client(&[&url], None, None, PATIENT);
            let text = sentence(client.get("/a").await);
            assert!(
                text.contains("does not answer as etcd does"),
                "{bytes:?}: {text}"
            );
            let outcome = client.put_if_absent("/a", "v".into(), None).await;
            assert!(matches!(outcome, CasOutcome::NotDone(_)), "{outcome:?}");
        }
    });
}

#[test]
fn an_endpoint_that_accepts_and_never_answers_is_left_for_the_next() {
    let etcd = Etcd::start(1);
    run(async {
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", silent.local_addr().expect("bound"));
        let patience = Patience {
            connect: Duration::from_millis(500),
            ..PATIENT
        };
        let text = sentence(client(&[&url], None, None, patience).get("/a").await);
        assert!(text.contains("has not answered within 500 ms"), "{text}");
        let both = client(&[&url, &etcd.members[0].url], None, None, patience);
        while both.get("/a").await.is_err() {}
    });
}

#[test]
fn an_endpoint_where_nobody_listens_is_left_for_the_next() {
    let etcd = Etcd::start(1);
    run(async {
        let closed = {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            format!("http://{}", listener.local_addr().expect("bound"))
        };
        let text = sentence(client(&[&closed], None, None, PATIENT).get("/a").await);
        assert!(
            text.contains("cannot be reached: Connection refused"),
            "{text}"
        );
        let both = client(&[&closed, &etcd.members[0].url], None, None, PATIENT);
        assert!(both.get("/a").await.is_ok());
        let named = client(&["http://no-such-host.invalid:2379"], None, None, PATIENT);
        let text = sentence(named.get("/a").await);
        assert!(text.contains("cannot be reached"), "{text}");
    });
}

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(uint64, tag = "1")]
    cluster_id: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(string, tag = "2")]
    version: String,
    #[prost(uint64, tag = "4")]
    leader: u64,
}

/// A gRPC server with this status and nothing else.
async fn server_with(status: Status) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let app = axum::Router::new().fallback(move |request: axum::extract::Request| {
        let status = status.clone();
        async move {
            let service = tower::service_fn(move |_: tonic::Request<()>| {
                let answer = Ok::<_, tonic::Status>(tonic::Response::new(status.clone()));
                std::future::ready(answer)
            });
            let codec = ProstCodec::<Status, ()>::default();
            tonic::server::Grpc::new(codec)
                .unary(service, request)
                .await
        }
    });
    let server = tonic::transport::Server::builder().add_routes(Routes::from(app));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    url
}

#[test]
fn an_old_etcd_one_without_a_leader_and_one_that_says_nothing_are_named() {
    run(async {
        let header = Some(Header { cluster_id: 7 });
        for (version, leader, part) in [
            ("3.3.27", 1, "has version 3.3.27; use 3.4 or newer"),
            ("3.5.0", 0, "has no leader"),
            (
                "",
                1,
                "does not answer as etcd does: its status names no version",
            ),
        ] {
            let (header, version) = (header.clone(), version.to_owned());
            let url = server_with(Status {
                header,
                version,
                leader,
            })
            .await;
            let client = client(&[&url], None, None, PATIENT);
            let text = sentence(client.get("/a").await);
            assert!(text.contains(part), "{text}");
            let outcome = client.put_if_absent("/a", "v".into(), None).await;
            assert!(matches!(outcome, CasOutcome::NotDone(_)), "{outcome:?}");
        }
    });
}

#[test]
fn a_server_that_answers_a_write_with_something_else_leaves_it_unknown() {
    run(async {
        let (header, version) = (Some(Header { cluster_id: 7 }), "3.5.0".to_owned());
        let url = server_with(Status {
            header,
            version,
            leader: 1,
        })
        .await;
        let outcome = client(&[&url], None, None, PATIENT)
            .put_if_absent("/a", "v".into(), None)
            .await;
        // The text of the version is not what an answer to a write has there.
        let CasOutcome::Unknown(error) = outcome else {
            panic!("it was sent: {outcome:?}");
        };
        assert!(matches!(error.fault, Fault::NotEtcd(_)), "{error}");
    });
}
