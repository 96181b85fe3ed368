//! Connections of Flight and admin HTTP, with or without TLS, each ready to be served.
//!
//! Handshakes run beside each other, so many at a time and for a bounded time, so that a client which begins one and
//! says no more holds up nobody. Who speaks the wrong protocol is closed.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::transport::certificates::TlsContext;

const HANDSHAKES_MAX: usize = 32;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections that wait to be served; more wait in the backlog.
const WAITING_MAX: usize = 16;
/// Between attempts when the system has no descriptors.
const REST: Duration = Duration::from_millis(500);

/// A connection whose handshake, if any, is over.
pub enum Conn {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Connections of one listener. Dropping it closes the listener.
pub struct Incoming {
    ready: mpsc::Receiver<Conn>,
}

impl Incoming {
    /// Has to be called within the runtime.
    ///
    /// # Errors
    /// The system refuses the listener.
    pub fn new(listener: std::net::TcpListener, tls: Option<Arc<TlsContext>>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let (sender, ready) = mpsc::channel(WAITING_MAX);
        tokio::spawn(accept(listener, tls, sender));
        Ok(Self { ready })
    }

    /// The next connection; None when the runtime ends.
    pub async fn next(&mut self) -> Option<Conn> {
        self.ready.recv().await
    }
}

async fn accept(listener: TcpListener, tls: Option<Arc<TlsContext>>, ready: mpsc::Sender<Conn>) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    loop {
        let accepted = tokio::select! {
            () = ready.closed() => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection could not be accepted");
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection ended before it began");
            continue;
        }
        let Some(tls) = &tls else {
            // An error means that nobody serves any more.
            let _ = ready.send(Conn::Plain(stream)).await;
            continue;
        };
        let acceptor = TlsAcceptor::from(tls.current());
        let Ok(permit) = Arc::clone(&handshakes).acquire_owned().await else {
            return;
        };
        let ready = ready.clone();
        tokio::spawn(async move {
            match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    drop(permit);
                    let _ = ready.send(Conn::Tls(Box::new(stream))).await;
                }
                Ok(Err(error)) => tracing::debug!(%address, %error, "a TLS handshake failed"),
                Err(_) => tracing::debug!(%address, "a TLS handshake took too long"),
            }
        });
    }
}

impl Stream for Incoming {
    type Item = io::Result<Conn>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.ready.poll_recv(context).map(|conn| conn.map(Ok))
    }
}

impl Connected for Conn {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        match self {
            Conn::Plain(stream) => stream.connect_info(),
            Conn::Tls(stream) => stream.get_ref().0.connect_info(),
        }
    }
}

impl AsyncRead for Conn {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Conn::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Conn::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Conn {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Conn::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Conn::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Conn::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Conn::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Conn::Plain(stream) => stream.is_write_vectored(),
            Conn::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Conn::Plain(stream) => Pin::new(stream).poll_flush(context),
            Conn::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Conn::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Conn::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
