//! Receives from and sends to a non-blocking socket.

use std::io::{self, IoSlice, Read, Write};

use mio::net::TcpStream;

/// The result of a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiveResult {
    /// Bytes of MQTT. With `more`, the socket or a layer may have more without a new event; the received bytes may then
    /// contain no MQTT at all.
    Bytes {
        count: usize,
        more: bool,
    },
    Nothing,
    /// The peer is done, or the connection failed; nothing more will come.
    Ended,
}

impl ReceiveResult {
    pub fn count(self) -> usize {
        match self {
            ReceiveResult::Bytes { count, .. } => count,
            ReceiveResult::Nothing | ReceiveResult::Ended => 0,
        }
    }
}

/// Calls `op` again while a signal interrupts it; `None` when the socket is not ready.
#[inline]
pub fn ready<T>(mut op: impl FnMut() -> io::Result<T>) -> io::Result<Option<T>> {
    loop {
        return match op() {
            Ok(done) => Ok(Some(done)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        };
    }
}

/// `None` when no bytes are available now; zero at the end of the stream.
#[inline]
pub fn receive_some(tcp: &mut TcpStream, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    ready(|| tcp.read(buffer))
}

/// Receives MQTT bytes without layers.
#[inline]
pub fn receive(tcp: &mut TcpStream, buffer: &mut [u8]) -> io::Result<ReceiveResult> {
    Ok(match receive_some(tcp, buffer)? {
        Some(0) => ReceiveResult::Ended,
        Some(count) => ReceiveResult::Bytes {
            count,
            more: count == buffer.len(),
        },
        None => ReceiveResult::Nothing,
    })
}

/// Zero bytes when the socket is full.
#[inline]
pub fn send_some(tcp: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
    Ok(ready(|| tcp.write(bytes))?.unwrap_or(0))
}

pub fn send_some_vectored(tcp: &mut TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    Ok(ready(|| tcp.write_vectored(slices))?.unwrap_or(0))
}
