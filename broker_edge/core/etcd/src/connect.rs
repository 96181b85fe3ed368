//! One connection to one member: TCP, TLS, what the member says about itself, a token.
//!
//! A connection is made once. tonic would dial again by itself; here that fails with [`Gone`], so that it is known that
//! a request was not sent, and so that every connection has been greeted.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::client::Grpc;
use tonic::codegen::http::Uri;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint as Target};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::error::{Error, Fault};
use crate::options::{Endpoint, Options, Tls, User};
use crate::proto::{self, Answer};
use crate::status::{Failure, Gone, deepest, failure, is_refusal, said, shortened};

/// Of one answer: a page of keys that are as large as they may be. A watch's changes may be more, of such keys.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;

#[derive(Debug)]
pub struct Connection {
    pub endpoint: Endpoint,
    /// From the first header that the member sent. 0: it has sent none.
    pub cluster_id: u64,
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
}

impl Connection {
    /// Connects to a member that is an etcd, knows a leader and accepts the user.
    pub async fn open(endpoint: &Endpoint, options: &Options) -> Result<Self, Error> {
        let patience = options.patience;
        let greeted = timeout(
            patience.connect,
            Self::greet(endpoint, options.tls.as_ref()),
        )
        .await;
        let silent = Fault::Silent(patience.connect.as_millis());
        let mut connection = greeted
            .unwrap_or(Err(silent))
            .map_err(|fault| fault.at(endpoint))?;
        if let Some(user) = &options.user {
            let authenticated = connection.authenticate(user, patience.request).await;
            authenticated.map_err(|fault| fault.at(endpoint))?;
        }
        Ok(connection)
    }

    async fn greet(endpoint: &Endpoint, tls: Option<&Tls>) -> Result<Self, Fault> {
        let unreachable = |error: io::Error| Fault::Unreachable(said(&error));
        let address = (endpoint.host.as_str(), endpoint.port);
        let tcp = TcpStream::connect(address).await.map_err(unreachable)?;
        tcp.set_nodelay(true).map_err(unreachable)?;
        let channel = match tls {
            None => channel(tcp).await,
            Some(tls) => {
                let name = endpoint
                    .server_name()
                    .map_err(|error| Fault::Tls(said(&error)))?;
                let connector = TlsConnector::from(Arc::clone(&tls.0));
                let stream = connector.connect(name, tcp).await;
                channel(stream.map_err(|error| Fault::Tls(said(&error)))?).await
            }
        };
        let mut connection = Self {
            endpoint: endpoint.clone(),
            cluster_id: 0,
            channel: channel.map_err(|error| Fault::NotEtcd(deepest(&error)))?,
            token: None,
        };
        connection.ask_status().await?;
        Ok(connection)
    }

    /// Newer releases show their status to administrators only. That is no fault: a release that does is new enough.
    async fn ask_status(&mut self) -> Result<(), Fault> {
        let asked = self.send(proto::STATUS, proto::StatusAsk {}).await;
        let status: proto::StatusAnswer = match asked {
            Ok(status) => status,
            Err(status) if is_refusal(&status) => return Ok(()),
            Err(status) => return Err(self.not_greeted(failure(&status).fault)),
        };
        let header = status.header.unwrap_or_default();
        if status.version.is_empty() || header.cluster_id == 0 {
            return Err(Fault::NotEtcd("its status names no version".to_owned()));
        }
        if !is_supported(&status.version) {
            return Err(Fault::OldVersion(shortened(&status.version)));
        }
        if status.leader == 0 {
            return Err(Fault::NoLeader);
        }
        self.cluster_id = header.cluster_id;
        Ok(())
    }

    /// What it means that a new connection ends before the first answer.
    fn not_greeted(&self, fault: Fault) -> Fault {
        match fault {
            // In TLS 1.3 a server refuses a certificate after the handshake, and what it says may be lost.
            Fault::Lost(why) | Fault::Unreachable(why) if self.endpoint.is_tls => {
                Fault::CertificateRefused(why)
            }
            Fault::Lost(why) | Fault::Unreachable(why) => Fault::NotEtcd(why),
            fault => fault,
        }
    }

    async fn authenticate(&mut self, user: &User, patience: Duration) -> Result<(), Fault> {
        let ask = proto::AuthenticateAsk {
            name: user.name.clone(),
            password: user.password.clone(),
        };
        let asked: Result<proto::AuthenticateAnswer, _> =
            self.ask(proto::AUTHENTICATE, ask, patience).await;
        let answer = match asked {
            Ok(answer) => answer,
            Err(failure) => {
                return match failure.fault {
                    // Users are made before authentication is switched on.
                    Fault::Refused(why) if why.contains("authentication is not enabled") => Ok(()),
                    Fault::Refused(why) if why.contains("authentication failed") => {
                        Err(Fault::WrongPassword(user.name.clone()))
                    }
                    fault => Err(fault),
                };
            }
        };
        self.token = Some(hidden(&answer.token)?);
        self.cluster_id = answer.header.unwrap_or_default().cluster_id;
        Ok(())
    }

    /// Sends a request and waits for its answer.
    pub async fn ask<Q, A>(
        &self,
        path: &'static str,
        ask: Q,
        patience: Duration,
    ) -> Result<A, Failure>
    where
        Q: Message + 'static,
        A: Answer + 'static,
    {
        answered(patience, self.send(path, ask)).await
    }

    async fn send<Q, A>(&self, path: &'static str, ask: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Answer + 'static,
    {
        let mut grpc = self.grpc().await?;
        let codec = ProstCodec::<Q, A>::default();
        let answer = grpc
            .unary(self.request(ask), PathAndQuery::from_static(path), codec)
            .await?;
        Ok(answer.into_inner())
    }

    /// Opens a stream in both directions.
    pub async fn stream<S, A>(
        &self,
        path: &'static str,
        asks: S,
        patience: Duration,
    ) -> Result<Streaming<A>, Failure>
    where
        S: futures::Stream + Send + 'static,
        S::Item: Message + 'static,
        A: Answer + 'static,
    {
        answered(patience, async {
            let mut grpc = self.grpc().await?;
            let codec = ProstCodec::<S::Item, A>::default();
            let path = PathAndQuery::from_static(path);
            Ok(grpc
                .streaming(self.request(asks), path, codec)
                .await?
                .into_inner())
        })
        .await
    }

    async fn grpc(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX);
        grpc.ready()
            .await
            .map_err(|error| Status::from_error(error.into()))?;
        Ok(grpc)
    }

    fn request<T>(&self, body: T) -> Request<T> {
        let mut request = Request::new(body);
        let fields = request.metadata_mut();
        // A member that is cut off from the others says so at once, and ends its watches.
        fields.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            fields.insert("token", token.clone());
        }
        request
    }
}

/// The token as a field of requests that does not show it when it is printed.
fn hidden(token: &str) -> Result<MetadataValue<Ascii>, Fault> {
    let parsed = token.parse::<MetadataValue<Ascii>>();
    let mut field = parsed.map_err(|_| Fault::NotEtcd("its token is no text".to_owned()))?;
    field.set_sensitive(true);
    Ok(field)
}

/// Waits for an answer that takes at most `patience`.
pub async fn answered<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, Status>>,
) -> Result<T, Failure> {
    match timeout(patience, answer).await {
        Ok(answer) => answer.map_err(|status| failure(&status)),
        Err(_) => Err(Failure {
            fault: Fault::Silent(patience.as_millis()),
            may_be_done: true,
            is_token_refused: false,
        }),
    }
}

async fn channel<S>(stream: S) -> Result<Channel, tonic::transport::Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let once = Arc::new(Mutex::new(Some(TokioIo::new(stream))));
    let connector = tower::service_fn(move |_: Uri| {
        let stream = once.lock().take();
        async move { stream.ok_or(Gone) }
    });
    // The name is that of the stream; a scheme with TLS would ask tonic for TLS of its own.
    Target::from_static("http://etcd")
        .connect_with_connector(connector)
        .await
}

fn is_supported(version: &str) -> bool {
    let mut numbers = version
        .split('.')
        .map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(3), Some(4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_shown() {
        let field = hidden("secret").expect("a field");
        assert_eq!(field, "secret");
        assert!(!format!("{field:?}").contains("secret"), "{field:?}");
        assert!(hidden("a\nb").is_err());
    }

    #[test]
    fn versions_from_3_4_on_are_supported() {
        for version in ["3.4.0", "3.4.23", "3.6.1", "3.10.0", "4.0.0", "3.5.0-rc.1"] {
            assert!(is_supported(version), "{version}");
        }
        for version in ["3.3.27", "2.3.7", "3", "", "three"] {
            assert!(!is_supported(version), "{version}");
        }
    }
}
