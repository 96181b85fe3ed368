//! A socket that is closed together with its pass.
//!
//! Until a call on it is authenticated, it has one deadline for everything and a limit of bytes.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::pass::{Pass, PassState};

/// Bytes that are read from a connection before a call on it is authenticated: handshakes, heads of requests, and the
/// beginning of a body. More stays in the socket.
const PENDING_BYTES_MAX: usize = 128 << 10;

pub struct GuardedSocket {
    socket: TcpStream,
    pub pass: Arc<Pass>,
    /// `Some` until a call is authenticated.
    deadline: Option<Pin<Box<Sleep>>>,
    received: usize,
}

impl GuardedSocket {
    pub fn new(socket: TcpStream, pass: Arc<Pass>) -> GuardedSocket {
        let deadline = Box::pin(tokio::time::sleep(pass.timeout()));
        GuardedSocket {
            socket,
            pass,
            deadline: Some(deadline),
            received: 0,
        }
    }

    /// Whether the connection may continue; its task is woken when that changes.
    fn look(&mut self, context: &mut Context<'_>) -> io::Result<PassState> {
        self.pass.watch(context.waker());
        let state = self.pass.state();
        match state {
            PassState::Closed => return Err(io::ErrorKind::ConnectionAborted.into()),
            PassState::In => self.deadline = None,
            // The connection was authenticated once and has to be again.
            PassState::Pending if self.deadline.is_none() => {
                self.deadline = Some(Box::pin(tokio::time::sleep(self.pass.timeout())));
                self.received = 0;
            }
            PassState::Pending => {}
        }
        while let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(context).is_ready()
        {
            if !self.pass.is_checking() {
                self.pass.expire();
                return Err(io::ErrorKind::TimedOut.into());
            }
            // The credential check is still running, so the client is not at fault. Its slot may still go to another
            // connection.
            self.deadline = Some(Box::pin(tokio::time::sleep(self.pass.timeout())));
        }
        Ok(state)
    }
}

impl Drop for GuardedSocket {
    fn drop(&mut self) {
        self.pass.leave();
    }
}

impl AsyncRead for GuardedSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let state = this.look(context)?;
        if state == PassState::In {
            return Pin::new(&mut this.socket).poll_read(context, buffer);
        }
        if this.received >= PENDING_BYTES_MAX {
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.socket).poll_read(context, buffer);
        let count = buffer.filled().len() - before;
        if count > 0 {
            this.received += count;
            this.pass.spoke();
        }
        polled
    }
}

impl AsyncWrite for GuardedSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.look(context)?;
        Pin::new(&mut this.socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.look(context)?;
        Pin::new(&mut this.socket).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
#[path = "guarded_socket_tests.rs"]
mod tests;
