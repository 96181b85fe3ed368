//! A TCP socket, plain or with TLS, that never blocks.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use headwater_cluster::marks::Node;
use mio::net::TcpStream;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use socket2::{SockRef, TcpKeepalive};
use x509_parser::extensions::GeneralName;

/// A connection without a sign of life of the peer's host ends after about this long. Between two followers nothing is
/// sent, so only the keep-alive of TCP notices that a host is gone.
const SILENT: Duration = Duration::from_secs(5);

/// Certificates of both directions. The peer's is required and checked against the authority of the cluster.
#[derive(Clone)]
pub struct Tls {
    pub server: Arc<ServerConfig>,
    pub client: Arc<ClientConfig>,
}

pub struct Socket {
    tcp: TcpStream,
    tls: Option<Box<Connection>>,
}

/// What a read gave.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    Bytes(usize),
    /// The same, and nothing more for now, unless the peer has closed the connection behind them.
    Last(usize),
    /// Nothing more for now.
    Nothing,
    Ended,
}

impl Socket {
    /// A socket that connects to this node.
    pub fn dialled(tcp: TcpStream, tls: Option<&Tls>, peer: &Node) -> io::Result<Self> {
        let tls = tls
            .map(|tls| {
                let name =
                    ServerName::try_from(peer.as_str().to_owned()).map_err(io::Error::other)?;
                let client = ClientConnection::new(Arc::clone(&tls.client), name);
                client
                    .map(|client| Box::new(Connection::Client(client)))
                    .map_err(io::Error::other)
            })
            .transpose()?;
        Ok(Self { tcp, tls })
    }

    pub fn accepted(tcp: TcpStream, tls: Option<&Tls>) -> io::Result<Self> {
        let tls = tls
            .map(|tls| {
                let server = ServerConnection::new(Arc::clone(&tls.server));
                server
                    .map(|server| Box::new(Connection::Server(server)))
                    .map_err(io::Error::other)
            })
            .transpose()?;
        let socket = Self { tcp, tls };
        socket.set_options()?;
        Ok(socket)
    }

    /// Sends small frames at once, and notices a host that is gone.
    pub fn set_options(&self) -> io::Result<()> {
        self.tcp.set_nodelay(true)?;
        let socket = SockRef::from(&self.tcp);
        let every = Duration::from_secs(1);
        let keepalive = TcpKeepalive::new()
            .with_time(every)
            .with_interval(every)
            .with_retries(4);
        socket.set_tcp_keepalive(&keepalive)?;
        socket.set_tcp_user_timeout(Some(SILENT))
    }

    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    pub fn tcp_mut(&mut self) -> &mut TcpStream {
        &mut self.tcp
    }

    /// The host names in the certificate of the peer.
    pub fn names(&self) -> Vec<String> {
        let chain = self.tls.as_ref().and_then(|tls| tls.peer_certificates());
        let own = chain.and_then(<[_]>::first);
        own.map(|own| dns_names(own)).unwrap_or_default()
    }

    /// Reads what is there, decrypted.
    ///
    /// # Errors
    /// The connection failed, or the peer broke the rules of TLS.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<Received> {
        let Some(tls) = &mut self.tls else {
            let received = told(self.tcp.read(buffer))?;
            return Ok(match received {
                // A read that does not fill the buffer has emptied the socket (epoll(7)).
                Received::Bytes(count) if count < buffer.len() => Received::Last(count),
                other => other,
            });
        };
        loop {
            match tls.reader().read(buffer) {
                Ok(0) => return Ok(Received::Ended),
                Ok(count) => return Ok(Received::Bytes(count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    return Ok(Received::Ended);
                }
                Err(error) => return Err(error),
            }
            match told(tls.read_tls(&mut self.tcp))? {
                Received::Bytes(_) | Received::Last(_) => {}
                other => return Ok(other),
            }
            tls.process_new_packets().map_err(io::Error::other)?;
        }
    }

    /// How much of these bytes was taken, of both parts together; 0 when the socket is full.
    ///
    /// # Errors
    /// The connection failed.
    pub fn write(&mut self, parts: [&[u8]; 2]) -> io::Result<usize> {
        let parts = parts.map(IoSlice::new);
        let Some(tls) = &mut self.tls else {
            return taken(self.tcp.write_vectored(&parts));
        };
        // Encrypted bytes that the socket has not taken yet go first, and bound what is buffered.
        if tls.wants_write() && !flushed(tls, &mut self.tcp)? {
            return Ok(0);
        }
        // The rest of the handshake comes with a read; the caller tries again after it.
        if tls.is_handshaking() {
            return Ok(0);
        }
        let count = tls.writer().write_vectored(&parts)?;
        flushed(tls, &mut self.tcp)?;
        Ok(count)
    }

    /// Whether a write takes nothing because the handshake is not over.
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Sends what TLS has to say by itself.
    ///
    /// # Errors
    /// The connection failed.
    pub fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            Some(tls) => flushed(tls, &mut self.tcp).map(|_| ()),
            None => Ok(()),
        }
    }
}

/// Without them a certificate names nobody.
fn dns_names(certificate: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(certificate) else {
        return Vec::new();
    };
    let Ok(Some(names)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let names = names.value.general_names.iter();
    let dns = names.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    });
    dns.collect()
}

fn flushed(tls: &mut Connection, tcp: &mut TcpStream) -> io::Result<bool> {
    while tls.wants_write() {
        if taken(tls.write_tls(tcp))? == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

fn told(read: io::Result<usize>) -> io::Result<Received> {
    match read {
        Ok(0) => Ok(Received::Ended),
        Ok(count) => Ok(Received::Bytes(count)),
        Err(error) if is_later(&error) => Ok(Received::Nothing),
        Err(error) => Err(error),
    }
}

fn taken(written: io::Result<usize>) -> io::Result<usize> {
    match written {
        Err(error) if is_later(&error) => Ok(0),
        other => other,
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
