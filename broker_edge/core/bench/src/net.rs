//! A socket without waiting: connecting, and what it takes and gives.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use socket2::SockRef;

/// Begins to connect. Sockets are closed with a reset, so that many short connections do not use up the ports.
pub fn begin(address: SocketAddr, registry: &Registry, token: usize) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    let both = Interest::READABLE | Interest::WRITABLE;
    registry.register(&mut stream, Token(token), both)?;
    Ok(stream)
}

/// Whether the connection stands; an error when it cannot be made.
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

/// Nothing when the socket has none at present, zero at its end.
pub fn receive(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    retried(|| stream.read(buffer))
}

/// Nothing when the socket takes none at present.
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
