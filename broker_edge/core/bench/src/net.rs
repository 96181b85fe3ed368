//! Non-blocking sockets: connect, receive and send.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use socket2::SockRef;

/// Starts a connection. Sockets are closed with a reset, so that many short connections do not use up the ports.
pub fn begin(address: SocketAddr, registry: &Registry, token: usize) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    let both = Interest::READABLE | Interest::WRITABLE;
    registry.register(&mut stream, Token(token), both)?;
    Ok(stream)
}

/// Whether the connection is established; an error when it failed.
pub fn is_up(stream: &TcpStream) -> io::Result<bool> {
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    match stream.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

/// `None` when no bytes are available now, zero at the end of the stream.
pub fn receive(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    retried(|| stream.read(buffer))
}

/// `None` when the socket accepts no bytes now.
pub fn send(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<Option<usize>> {
    retried(|| stream.write(bytes))
}

fn retried(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        return match call() {
            Ok(count) => Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        };
    }
}
