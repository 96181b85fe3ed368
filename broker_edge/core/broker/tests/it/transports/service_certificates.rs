//! Connections of Flight and admin HTTP end with the certificate of their client.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{FlightData, Ticket};
use futures::future::BoxFuture;
use headwater_broker::Broker;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::json;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::Streaming;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

use super::wires::{Authority, Identity, TlsWire, client_config, tls, tls_settings, value_in};
use crate::common::{DEADLINE, start_with, tcp};

/// A broker whose Flight and admin listeners ask for certificates of `clients`.
struct House {
    server: Authority,
    clients: Authority,
    dir: tempfile::TempDir,
}

impl House {
    fn new() -> House {
        House {
            server: Authority::new("server"),
            clients: Authority::new("clients"),
            dir: tempfile::tempdir().expect("a temporary folder"),
        }
    }

    fn revoke(&self, serials: &[u64]) {
        let list = self.clients.revoke(serials, 2100);
        std::fs::write(self.dir.path().join("crl.pem"), list).expect("the folder takes files");
    }

    fn start(&self) -> Broker {
        self.revoke(&[]);
        let identity = self.server.sign("broker", None);
        let mut settings = tls_settings(self.dir.path(), &identity, Some(&self.clients));
        settings.crl = Some(self.dir.path().join("crl.pem"));
        let log = Path::new(self.dir.path()).join("log");
        start_with(&log, |config| {
            config.listeners.flight.tls = settings.clone();
            config.listeners.admin.tls = settings;
        })
    }

    fn config(&self, who: &Identity) -> Arc<ClientConfig> {
        client_config(&self.server, Some(who))
    }

    /// An admin connection on which a request was answered.
    fn admin(&self, broker: &Broker, who: &Identity) -> TlsWire {
        let mut wire = tls(tcp(broker.admin_address()), &self.config(who));
        assert!(is_answered(&mut wire));
        wire
    }

    /// A read that follows the log, with what it has sent first.
    async fn follow(&self, broker: &Broker, who: &Identity) -> Streaming<FlightData> {
        let mut config = (*self.config(who)).clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let dial = Dial {
            address: broker.flight_address(),
            connector: TlsConnector::from(Arc::new(config)),
        };
        let endpoint = Endpoint::from_static("http://localhost");
        let channel: Channel = endpoint.connect_with_connector(dial).await.expect("TLS");
        let ticket = json!({"partition": 0, "start": 0, "follow": true}).to_string();
        let mut service = FlightServiceClient::new(channel);
        let answer = service.do_get(Ticket::new(ticket)).await;
        let mut stream = answer.expect("it is admitted").into_inner();
        let first = stream.message().await.expect("no error");
        assert!(first.is_some(), "the schema");
        stream
    }
}

/// Whether a request is answered; the connection stays open.
fn is_answered(wire: &mut TlsWire) -> bool {
    let request = b"HEAD /api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut head = Vec::new();
    let mut byte = [0];
    if wire.write_all(request).is_err() {
        return false;
    }
    while !head.ends_with(b"\r\n\r\n") {
        match wire.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return false,
        }
    }
    head.starts_with(b"HTTP/1.1 200")
}

/// Whether the broker closes the connection, although the client asks for nothing.
fn is_closed(wire: &mut TlsWire) -> bool {
    match wire.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

async fn ends(stream: &mut Streaming<FlightData>) -> bool {
    let end = async { while let Ok(Some(_)) = stream.message().await {} };
    tokio::time::timeout(DEADLINE, end).await.is_ok()
}

async fn is_open(stream: &mut Streaming<FlightData>) -> bool {
    let next = tokio::time::timeout(Duration::ZERO, stream.message()).await;
    matches!(next, Err(_) | Ok(Ok(Some(_))))
}

/// Opens a TLS connection for a channel.
#[derive(Clone)]
struct Dial {
    address: SocketAddr,
    connector: TlsConnector,
}

impl Service<Uri> for Dial {
    type Response = TokioIo<TlsStream<tokio::net::TcpStream>>;
    type Error = std::io::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Dial { address, connector } = self.clone();
        Box::pin(async move {
            let stream = tokio::net::TcpStream::connect(address).await?;
            let name = ServerName::try_from("localhost").expect("a name");
            Ok(TokioIo::new(connector.connect(name, stream).await?))
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_ends_the_reads_and_requests_of_clients_whose_certificates_were_revoked() {
    let house = House::new();
    let broker = house.start();
    let (good, bad) = (
        house.clients.sign_numbered("a", 7),
        house.clients.sign_numbered("b", 8),
    );
    let mut stays = house.follow(&broker, &good).await;
    let mut goes = house.follow(&broker, &bad).await;
    let admin = |who| tokio::task::block_in_place(|| house.admin(&broker, who));
    let (mut admin_stays, mut admin_goes) = (admin(&good), admin(&bad));
    house.revoke(&[8]);
    broker.reload().expect("the files are right");
    assert!(ends(&mut goes).await, "the read ends");
    tokio::task::block_in_place(|| {
        assert!(is_closed(&mut admin_goes));
        assert!(is_answered(&mut admin_stays));
        let ended = "headwater_auth_connections_ended_total{reason=\"revoked\"}";
        assert_eq!(metric_over(&house, &broker, &good, ended), 2.0);
    });
    assert!(is_open(&mut stays).await, "it waits for records");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_and_a_request_end_when_the_certificate_of_their_client_expires() {
    let house = House::new();
    let broker = house.start();
    let short = house.clients.sign_for("a", Duration::from_secs(6));
    let long = house.clients.sign("b", None);
    let mut stays = house.follow(&broker, &long).await;
    let mut goes = house.follow(&broker, &short).await;
    let mut admin_goes = tokio::task::block_in_place(|| house.admin(&broker, &short));
    assert!(ends(&mut goes).await, "the read ends");
    tokio::task::block_in_place(|| {
        assert!(is_closed(&mut admin_goes));
        let ended = "headwater_auth_connections_ended_total{reason=\"expired\"}";
        assert_eq!(metric_over(&house, &broker, &long, ended), 2.0);
    });
    assert!(is_open(&mut stays).await, "it waits for records");
}

/// The value of a metric by its full name with labels, asked for over TLS.
fn metric_over(house: &House, broker: &Broker, who: &Identity, name: &str) -> f64 {
    let mut wire = tls(tcp(broker.admin_address()), &house.config(who));
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    wire.write_all(request).expect("it is taken");
    let mut text = String::new();
    wire.read_to_string(&mut text).expect("it answers");
    value_in(&text, name)
}
