//! Accepts connections of Flight and admin HTTP, with or without TLS, each with a slot of its gate.
//!
//! Until a call on it is authenticated, a connection has one deadline for everything and a limit of bytes to send, and
//! it is closed when its [`Pass`] is. A connection that sends nothing, does not finish its handshake or never
//! authenticates therefore only takes a slot for a while. A connection that speaks the wrong protocol is closed.

use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::expiry::ExpiryWatch;
use super::gate::{Gate, Refused};
use super::guarded_socket::GuardedSocket;
use super::pass::{Pass, ROOM};
use crate::metrics::Closed;
use crate::transport::certificates::{self, TlsContext};

/// Accepted connections that wait to be served; further ones wait in the kernel's backlog.
const WAITING_MAX: usize = 16;
/// Pause between attempts when no descriptors are left.
const REST: Duration = Duration::from_millis(500);
/// A lack of descriptors is logged at most this often.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// A connection after its TLS handshake, if any.
pub struct Conn {
    stream: Pin<Box<dyn ByteStream>>,
    pass: Arc<Pass>,
    /// Of the client's certificate, if it presented one.
    _expiry: Option<ExpiryWatch>,
}

/// Plain or TLS.
pub(in crate::service) trait ByteStream: AsyncRead + AsyncWrite + Send {}

impl ByteStream for GuardedSocket {}
impl ByteStream for TlsStream<GuardedSocket> {}

/// Connections of one listener. Dropping it closes the listener.
pub struct Incoming {
    ready: mpsc::Receiver<Conn>,
}

impl Incoming {
    /// Must be called within the runtime.
    ///
    /// # Errors
    /// The system rejected the listener.
    pub fn new(
        listener: std::net::TcpListener,
        tls: Option<Arc<TlsContext>>,
        gate: Arc<Gate>,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let (sender, ready) = mpsc::channel(WAITING_MAX);
        let acceptor = Acceptor {
            listener,
            tls,
            gate,
            ready: sender,
            told_at: None,
        };
        tokio::spawn(acceptor.accept());
        Ok(Self { ready })
    }

    /// The next connection; `None` when the runtime ends.
    pub async fn next(&mut self) -> Option<Conn> {
        self.ready.recv().await
    }
}

struct Acceptor {
    listener: TcpListener,
    tls: Option<Arc<TlsContext>>,
    gate: Arc<Gate>,
    ready: mpsc::Sender<Conn>,
    told_at: Option<Instant>,
}

impl Acceptor {
    /// Accepts connections until the receiver is dropped.
    async fn accept(mut self) {
        loop {
            let accepted = tokio::select! {
                () = self.ready.closed() => return,
                accepted = async {
                    self.gate.place().await;
                    self.listener.accept().await
                } => accepted,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    self.tell(&error.to_string());
                    tokio::time::sleep(REST).await;
                    continue;
                }
            };
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "a connection closed before it was set up");
                continue;
            }
            let Some(pass) = self.place_for(&stream, address).await else {
                continue;
            };
            self.open(GuardedSocket::new(stream, pass)).await;
        }
    }

    /// Waits for a slot; `None` if the connection is refused.
    async fn place_for(
        &mut self,
        stream: &TcpStream,
        address: std::net::SocketAddr,
    ) -> Option<Arc<Pass>> {
        let number = descriptor_of(stream);
        loop {
            match self.gate.enter(address, number) {
                Ok((pass, has_closed)) => {
                    if has_closed {
                        let_others_run().await;
                    }
                    return Some(pass);
                }
                Err(Refused::For(why)) => {
                    if why == Closed::Descriptors {
                        self.tell("closed a new connection");
                    }
                    let_others_run().await;
                    return None;
                }
                Err(Refused::Later) => tokio::select! {
                    () = self.ready.closed() => return None,
                    () = tokio::time::sleep(ROOM) => {}
                },
            }
        }
    }

    async fn open(&self, stream: GuardedSocket) {
        let (ready, pass) = (self.ready.clone(), Arc::clone(&stream.pass));
        let Some(tls) = &self.tls else {
            // An error means that the receiver is gone.
            let _ = ready.send(Conn::new(pass, stream, None)).await;
            return;
        };
        let (acceptor, lists) = (TlsAcceptor::from(tls.current()), tls.revocations());
        let (gate, address) = (Arc::clone(&self.gate), pass.address);
        tokio::spawn(async move {
            // The connection's deadline applies to the handshake.
            match acceptor.accept(stream).await {
                Ok(stream) => {
                    let chain = stream.get_ref().1.peer_certificates();
                    let names = chain.and_then(|chain| certificates::names_of(chain, lists));
                    let expires_us = names.as_ref().and_then(|names| names.expires_us);
                    if let Some(names) = names {
                        pass.set_certificate(Arc::new(names));
                    }
                    let expiry = expires_us.map(|at| ExpiryWatch::new(Arc::clone(&pass), at));
                    let _ = ready.send(Conn::new(pass, stream, expiry)).await;
                }
                Err(error) => {
                    gate.count_failed_handshake();
                    tracing::debug!(%address, %error, "a TLS handshake failed");
                }
            }
        });
    }

    fn tell(&mut self, what: &str) {
        if self.told_at.is_none_or(|at| at.elapsed() > TELL_EVERY) {
            self.told_at = Some(Instant::now());
            let listener = self.gate.kind().name();
            tracing::warn!(
                listener,
                "{what}: out of file descriptors; raise the limit of open files"
            );
        }
    }
}

/// In a flood, lets closed connections end and others be served. A pause would let the backlog fill, in which the next
/// honest client waits behind thousands of the flood.
async fn let_others_run() {
    tokio::task::yield_now().await;
}

fn descriptor_of(stream: &TcpStream) -> u64 {
    u64::try_from(stream.as_raw_fd()).unwrap_or(u64::MAX)
}

impl Stream for Incoming {
    type Item = io::Result<Conn>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.ready.poll_recv(context).map(|conn| conn.map(Ok))
    }
}

impl Conn {
    pub(in crate::service) fn new(
        pass: Arc<Pass>,
        stream: impl ByteStream + 'static,
        expiry: Option<ExpiryWatch>,
    ) -> Conn {
        let stream = Box::pin(stream);
        Conn {
            stream,
            pass,
            _expiry: expiry,
        }
    }

    pub fn pass(&self) -> &Arc<Pass> {
        &self.pass
    }
}

impl Connected for Conn {
    type ConnectInfo = Arc<Pass>;

    fn connect_info(&self) -> Arc<Pass> {
        Arc::clone(&self.pass)
    }
}

impl AsyncRead for Conn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_read(context, buffer)
    }
}

impl AsyncWrite for Conn {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(context)
    }
}

#[cfg(test)]
#[path = "incoming_tests.rs"]
mod tests;
