//! TLS over a non-blocking socket: rustls keeps the state, this module moves the bytes.
//!
//! Received bytes are decrypted inside the caller's buffer, a large piece per system call. So an idle connection keeps
//! no buffer beyond what rustls needs for an incomplete record.

use std::io::{self, IoSlice, Read, Write};

use mio::net::TcpStream;
use rustls::ServerConnection;

use super::tcp::{ReceiveResult, ready, receive_some};

/// rustls holds less than this of an incomplete record. So decrypting to the front of a buffer never overtakes received
/// bytes that are placed this far behind the front.
const SLACK: usize = 20 << 10;
/// The most plaintext that rustls may buffer, encrypted, while the socket is full.
pub const UNSENT_BYTES_MAX: usize = 64 << 10;

/// A socket from which TLS is received.
pub struct Source<'a> {
    tcp: &'a mut TcpStream,
    /// The peer has ended its side of TCP.
    pub is_over: bool,
    pub taken_bytes: usize,
}

impl<'a> Source<'a> {
    pub fn new(tcp: &'a mut TcpStream, is_over: bool) -> Self {
        Self {
            tcp,
            is_over,
            taken_bytes: 0,
        }
    }
}

/// Receives plaintext. See [`ReceiveResult`] for the guarantees.
pub fn receive(
    tls: &mut ServerConnection,
    source: &mut Source<'_>,
    buffer: &mut [u8],
) -> io::Result<ReceiveResult> {
    let mut filled = 0;
    loop {
        let is_done = drain(tls, buffer, &mut filled)?;
        if is_done || source.is_over {
            // The next call reports the TLS close or the end of the socket.
            return Ok(taken(filled, true));
        }
        if filled == buffer.len() {
            return Ok(taken(filled, true));
        }
        let is_large = buffer.len() - filled > 2 * SLACK;
        let more = if is_large {
            receive_large(tls, source, buffer, &mut filled)?
        } else {
            receive_small(tls, source)?
        };
        if !more {
            let is_done = drain(tls, buffer, &mut filled)?;
            return Ok(taken(
                filled,
                is_done || source.is_over || filled == buffer.len(),
            ));
        }
        if is_large && !drain(tls, buffer, &mut filled)? {
            // A buffer full of records is enough for one turn, however little they contain; the next turn continues.
            let (count, more) = (filled, true);
            return Ok(ReceiveResult::Bytes { count, more });
        }
    }
}

fn taken(count: usize, more: bool) -> ReceiveResult {
    match (count, more) {
        (0, true) => ReceiveResult::Ended,
        (0, false) => ReceiveResult::Nothing,
        (count, more) => ReceiveResult::Bytes { count, more },
    }
}

/// Receives once into the back of the buffer and decrypts to its front. Returns false when the socket is empty.
fn receive_large(
    tls: &mut ServerConnection,
    source: &mut Source<'_>,
    buffer: &mut [u8],
    filled: &mut usize,
) -> io::Result<bool> {
    let base = *filled + SLACK;
    let wanted = buffer.len() - base;
    let count = match receive_some(source.tcp, &mut buffer[base..])? {
        Some(0) => {
            source.is_over = true;
            return Ok(false);
        }
        Some(count) => count,
        None => return Ok(false),
    };
    source.taken_bytes += count;
    let mut fed = 0;
    while fed < count {
        let mut rest = &buffer[base + fed..base + count];
        fed += feed(tls, source.tcp, &mut rest)?;
        if drain(tls, &mut buffer[..base + fed], filled)? {
            break;
        }
    }
    Ok(count == wanted)
}

/// Receives once, as much as rustls takes at a time. Returns false when the socket is empty.
fn receive_small(tls: &mut ServerConnection, source: &mut Source<'_>) -> io::Result<bool> {
    match ready(|| tls.read_tls(source.tcp))? {
        None => Ok(false),
        Some(0) => {
            source.is_over = true;
            Ok(false)
        }
        Some(count) => {
            source.taken_bytes += count;
            process(tls, source.tcp).map(|()| true)
        }
    }
}

/// Passes bytes that were received elsewhere to rustls and returns how many it took.
pub fn feed(
    tls: &mut ServerConnection,
    tcp: &mut TcpStream,
    source: &mut &[u8],
) -> io::Result<usize> {
    let count = tls.read_tls(source)?;
    process(tls, tcp)?;
    if count == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(count)
}

fn process(tls: &mut ServerConnection, tcp: &mut TcpStream) -> io::Result<()> {
    match tls.process_new_packets() {
        Ok(_) => {
            // Handshake answers and key updates.
            if tls.wants_write() {
                flush(tls, tcp)?;
            }
            Ok(())
        }
        Err(error) => {
            // The alert is sent if the socket accepts it; the connection ends in any case.
            let _ = flush(tls, tcp);
            Err(io::Error::new(io::ErrorKind::InvalidData, error))
        }
    }
}

/// Moves decrypted bytes after `filled`. Returns true when the peer has closed TLS.
fn drain(tls: &mut ServerConnection, buffer: &mut [u8], filled: &mut usize) -> io::Result<bool> {
    while *filled < buffer.len() {
        match tls.reader().read(&mut buffer[*filled..]) {
            Ok(0) => return Ok(true),
            Ok(count) => *filled += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            // The socket ended without a TLS close. MQTT has its own DISCONNECT, so the bytes before are still valid.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(true),
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Sends as much as the socket accepts, and buffers up to [`UNSENT_BYTES_MAX`] more.
pub fn send(
    tls: &mut ServerConnection,
    tcp: &mut TcpStream,
    slices: &[IoSlice<'_>],
) -> io::Result<usize> {
    let mut pieces = slices.to_vec();
    let mut rest = &mut pieces[..];
    let mut sent = 0;
    loop {
        if !flush(tls, tcp)? {
            return Ok(sent);
        }
        IoSlice::advance_slices(&mut rest, 0);
        if rest.is_empty() {
            return Ok(sent);
        }
        // Never zero, because the buffer is empty. All slices in one call, so that small ones share a record.
        let count = tls.writer().write_vectored(rest)?;
        sent += count;
        IoSlice::advance_slices(&mut rest, count);
    }
}

/// Returns false when the socket is full.
pub fn flush(tls: &mut ServerConnection, tcp: &mut TcpStream) -> io::Result<bool> {
    while tls.wants_write() {
        if ready(|| tls.write_tls(tcp))?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}
