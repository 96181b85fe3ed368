//! What all non-blocking sockets share, with or without layers.

use std::io;

use mio::net::TcpStream;

/// Larger packets from a broker are an error.
pub const PACKET_BYTES_MAX: usize = 32 << 20;

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

/// Calls again after an interrupt; `None` when the socket is not ready.
pub fn retried(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        return match call() {
            Ok(count) => Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        };
    }
}
