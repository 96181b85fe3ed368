//! A connection's socket with its layers, as one non-blocking stream of MQTT bytes.
//!
//! Two rules hold for any layers, because the poll is edge-triggered. A receive that returns less than requested
//! without `more` has emptied the socket. A send that accepts less than it was given has filled it.

use std::io::{self, IoSlice};
use std::net::Shutdown;

use mio::net::TcpStream;
use rustls::ServerConnection;

use super::tcp::{self, ReceiveResult, receive_some, send_some, send_some_vectored};
use super::tls_link;
use super::websocket::{CloseCode, WebSocket};

/// A socket and the layers below MQTT. Plain MQTT has no layers and costs a null check.
pub struct Stream {
    tcp: TcpStream,
    layers: Option<Box<Layers>>,
}

/// Each is boxed, so that WebSocket without TLS does not pay for TLS.
#[derive(Default)]
struct Layers {
    tls: Option<Box<ServerConnection>>,
    websocket: Option<Box<WebSocket>>,
    /// The peer has ended its side of TCP.
    is_over: bool,
    /// What the last receive took from the socket.
    taken_bytes: usize,
}

/// A byte that the layers take off costs as much as so many of MQTT: a frame or a record with little in it has few bytes
/// but takes a while.
const OVERHEAD_COST: usize = 16;
/// As much is received at first, and all that there is room for only if most of it is MQTT. TLS needs some room for
/// itself.
const FIRST_BYTES: usize = 16 << 10;
const FIRST_BYTES_OF_TLS: usize = 64 << 10;
/// Most of it: one in so many bytes may be of a layer.
const OVERHEAD_PART: usize = 8;

impl Stream {
    pub fn plain(tcp: TcpStream) -> Self {
        Self { tcp, layers: None }
    }

    /// The socket, for registering with the poll.
    pub fn socket_mut(&mut self) -> &mut TcpStream {
        &mut self.tcp
    }

    /// Adds TLS to the socket. There must be no other layer yet.
    pub fn set_tls(&mut self, mut tls: ServerConnection) {
        tls.set_buffer_limit(Some(tls_link::UNSENT_BYTES_MAX));
        self.layers.get_or_insert_default().tls = Some(Box::new(tls));
    }

    pub fn tls_mut(&mut self) -> Option<&mut ServerConnection> {
        self.layers.as_mut()?.tls.as_deref_mut()
    }

    /// Passes bytes to TLS that were received before TLS was set. They contain the start of its handshake.
    ///
    /// # Errors
    /// The handshake failed; the peer was told if possible.
    pub fn feed(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = self.layers.as_mut().and_then(|layers| layers.tls.as_mut()) else {
            return Ok(());
        };
        while !bytes.is_empty() {
            tls_link::feed(tls, &mut self.tcp, &mut bytes)?;
        }
        Ok(())
    }

    /// From now on, the bytes are the contents of WebSocket frames.
    pub fn set_websocket(&mut self) {
        self.layers.get_or_insert_default().websocket = Some(Box::default());
    }

    pub fn websocket_mut(&mut self) -> Option<&mut WebSocket> {
        self.layers.as_mut()?.websocket.as_deref_mut()
    }

    /// Whether the peer has already ended its side of the socket.
    pub fn is_over(&self) -> bool {
        self.layers.as_ref().is_none_or(|layers| layers.is_over)
    }

    /// Receives into `buffer`, which is not empty.
    ///
    /// # Errors
    /// The socket failed, or the peer broke the rules of a layer; the peer was told if possible.
    #[inline]
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<ReceiveResult> {
        match &mut self.layers {
            None => tcp::receive(&mut self.tcp, buffer),
            Some(layers) => layers.receive(&mut self.tcp, buffer),
        }
    }

    /// What the last receive cost, in bytes of MQTT without layers; it returned `count` bytes.
    #[inline]
    pub fn cost_of_receive(&self, count: usize) -> usize {
        let layers = self.layers.as_ref();
        layers.map_or(count, |layers| layers.cost(count))
    }

    /// Sends as much as the socket accepts; zero bytes when it is full.
    ///
    /// # Errors
    /// The socket failed.
    #[inline]
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.layers {
            None => send_some(&mut self.tcp, bytes),
            Some(layers) => layers.send(&mut self.tcp, &[IoSlice::new(bytes)]),
        }
    }

    /// Sends these bytes in order, as far as the socket accepts them. The next send must begin with the rest.
    ///
    /// # Errors
    /// The socket failed.
    pub fn send_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.layers {
            None => send_some_vectored(&mut self.tcp, slices),
            Some(layers) => layers.send(&mut self.tcp, slices),
        }
    }

    /// Sends output that a layer still buffers: a part of a TLS record, an answer to a ping.
    ///
    /// # Errors
    /// The socket failed.
    #[inline]
    pub fn flush(&mut self) -> io::Result<()> {
        match &mut self.layers {
            None => Ok(()),
            Some(layers) => layers.send(&mut self.tcp, &[]).map(|_| ()),
        }
    }

    /// Closes each layer, as far as the socket accepts the bytes, and shuts down our side of the socket.
    ///
    /// # Errors
    /// The socket is no longer connected.
    pub fn shut_down(&mut self) -> io::Result<()> {
        if let Some(layers) = &mut self.layers {
            layers.say_goodbye(&mut self.tcp);
        }
        self.tcp.shutdown(Shutdown::Write)
    }

    /// Receives from the socket below all layers, to drop the bytes.
    pub fn receive_raw(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        receive_some(&mut self.tcp, buffer)
    }
}

impl Layers {
    fn receive(&mut self, tcp: &mut TcpStream, buffer: &mut [u8]) -> io::Result<ReceiveResult> {
        let mut filled = 0;
        self.taken_bytes = 0;
        let mut room_max = match self.tls {
            Some(_) => FIRST_BYTES_OF_TLS,
            None => FIRST_BYTES,
        };
        loop {
            let end = buffer.len().min(filled + room_max);
            let room = &mut buffer[filled..end];
            let wanted = room.len();
            let (count, more) = match self.receive_lower(tcp, room) {
                Ok(ReceiveResult::Bytes { count, more }) => (count, more),
                Ok(ReceiveResult::Nothing) if filled > 0 => {
                    let (count, more) = (filled, self.is_over);
                    return Ok(ReceiveResult::Bytes { count, more });
                }
                // The next call reports the end.
                Ok(ReceiveResult::Ended) | Err(_) if filled > 0 => {
                    let (count, more) = (filled, true);
                    return Ok(ReceiveResult::Bytes { count, more });
                }
                other => return other,
            };
            filled += self.decode(tcp, &mut room[..count])?;
            if self.is_closed() {
                return Ok(if filled > 0 {
                    let (count, more) = (filled, true);
                    ReceiveResult::Bytes { count, more }
                } else {
                    ReceiveResult::Ended
                });
            }
            let is_emptied = count < wanted && !more;
            // Headers and control frames do not fill the buffer, so what they cost counts. Otherwise a flood of pings
            // would be read forever while all others wait.
            if is_emptied || self.cost(filled) >= buffer.len() {
                return Ok(match filled {
                    0 if is_emptied => ReceiveResult::Nothing,
                    count => ReceiveResult::Bytes {
                        count,
                        more: !is_emptied,
                    },
                });
            }
            if filled >= self.taken_bytes - self.taken_bytes / OVERHEAD_PART {
                room_max = buffer.len();
            }
        }
    }

    /// What the last receive cost, of which `count` bytes were MQTT.
    fn cost(&self, count: usize) -> usize {
        count + OVERHEAD_COST * self.taken_bytes.saturating_sub(count)
    }

    fn is_closed(&self) -> bool {
        self.websocket.as_ref().is_some_and(|ws| ws.is_closed())
    }

    /// Moves the MQTT in what was received to its front; returns how many bytes that is.
    fn decode(&mut self, tcp: &mut TcpStream, received: &mut [u8]) -> io::Result<usize> {
        let Some(websocket) = &mut self.websocket else {
            return Ok(received.len());
        };
        let decoded = websocket.decode(received);
        // Answers to pings and to a close frame.
        if websocket.has_unsent() {
            self.send(tcp, &[])?;
        }
        decoded.map_err(|code| {
            self.refuse(tcp, code);
            io::Error::new(io::ErrorKind::InvalidData, "malformed WebSocket framing")
        })
    }

    /// Receives the bytes below WebSocket, from TLS or from the socket.
    fn receive_lower(
        &mut self,
        tcp: &mut TcpStream,
        buffer: &mut [u8],
    ) -> io::Result<ReceiveResult> {
        if self.is_closed() {
            return Ok(ReceiveResult::Ended);
        }
        let Some(tls) = &mut self.tls else {
            let received = tcp::receive(tcp, buffer)?;
            self.is_over |= received == ReceiveResult::Ended;
            self.taken_bytes += received.count();
            return Ok(received);
        };
        let mut source = tls_link::Source::new(tcp, self.is_over);
        let received = tls_link::receive(tls, &mut source, buffer);
        self.is_over = source.is_over;
        self.taken_bytes += source.taken_bytes;
        received
    }

    fn send(&mut self, tcp: &mut TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(websocket) = &mut self.websocket else {
            return send_lower(self.tls.as_deref_mut(), tcp, slices);
        };
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut sent = 0;
        loop {
            let payload_max = websocket.begin_frame(total - sent);
            let mut pieces = Vec::with_capacity(slices.len() + 1);
            let head = websocket.unsent();
            let head_len = head.len();
            pieces.push(IoSlice::new(head));
            push_range(&mut pieces, slices, sent, payload_max);
            let wanted = head_len + payload_max;
            let taken = send_lower(self.tls.as_deref_mut(), tcp, &pieces)?;
            sent += websocket.advance(taken);
            if taken < wanted || sent == total {
                return Ok(sent);
            }
            if websocket.has_said_goodbye() {
                // Nothing may follow a close frame; the rest is dropped.
                return Ok(total);
            }
        }
    }

    /// Tells the peer why its frames are refused.
    fn refuse(&mut self, tcp: &mut TcpStream, code: CloseCode) {
        if let Some(websocket) = &mut self.websocket {
            websocket.close(code);
            // Sent if the socket accepts it; the connection ends in any case.
            let _ = self.send(tcp, &[]);
        }
    }

    fn say_goodbye(&mut self, tcp: &mut TcpStream) {
        self.refuse(tcp, CloseCode::Normal);
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            // Sent if the socket accepts it.
            let _ = tls_link::flush(tls, tcp);
        }
    }
}

/// Adds the part of `slices` from `from` on, at most `len` bytes.
fn push_range<'a>(
    pieces: &mut Vec<IoSlice<'a>>,
    slices: &'a [IoSlice<'_>],
    mut from: usize,
    mut len: usize,
) {
    for slice in slices {
        let start = from.min(slice.len());
        let end = (start + len).min(slice.len());
        if end > start {
            pieces.push(IoSlice::new(&slice[start..end]));
        }
        from -= start;
        len -= end - start;
    }
}

fn send_lower(
    tls: Option<&mut ServerConnection>,
    tcp: &mut TcpStream,
    slices: &[IoSlice<'_>],
) -> io::Result<usize> {
    match tls {
        Some(tls) => tls_link::send(tls, tcp, slices),
        None if slices.iter().all(|slice| slice.is_empty()) => Ok(0),
        None => send_some_vectored(tcp, slices),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream as Peer};

    use super::*;

    /// A masked frame with a mask of zeros, which changes nothing.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![first, 0x80 | payload.len() as u8, 0, 0, 0, 0];
        frame.extend_from_slice(payload);
        frame
    }

    fn websocket() -> (Peer, Stream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let peer = Peer::connect(listener.local_addr().expect("an address")).expect("a peer");
        let (accepted, _) = listener.accept().expect("the peer");
        accepted.set_nonblocking(true).expect("a socket");
        let mut stream = Stream::plain(TcpStream::from_std(accepted));
        stream.set_websocket();
        (peer, stream)
    }

    #[test]
    fn i8_frames_that_carry_little_cost_more_than_their_bytes_and_few_are_taken_at_a_time() {
        let begin_and_pings = [frame(0x82, b"x"), frame(0x89, &[]).repeat(200)].concat();
        let (mut peer, mut stream) = websocket();
        let flood = begin_and_pings.repeat(200);
        let total = flood.len();
        let writer = std::thread::spawn(move || {
            // The end of the test ends it.
            let _ = peer.write_all(&flood);
            peer
        });
        let (mut buffer, mut cost, mut found) = (vec![0; 256 << 10], 0, 0);
        while found < 200 {
            let received = stream.receive(&mut buffer).expect("good frames");
            let taken = stream.cost_of_receive(received.count());
            assert!(taken <= OVERHEAD_COST * 2 * FIRST_BYTES, "{taken}");
            found += received.count();
            cost += taken;
        }
        let last = begin_and_pings.len();
        assert!(
            cost >= (total - last - 200) * OVERHEAD_COST,
            "{cost} for {total}"
        );
        drop(stream);
        drop(writer.join());
    }

    #[test]
    fn i8_frames_that_carry_nothing_are_not_read_beyond_the_bound_of_a_turn() {
        const ROOM: usize = 4096;
        let ping = frame(0x89, &[b'p'; 100]);
        let begin = frame(0x02, &[]);
        let go_on = frame(0x00, &[]);
        for (first, again) in [(Vec::new(), ping), (begin, go_on)] {
            let (mut peer, mut stream) = websocket();
            let mut flood = first.clone();
            while flood.len() < 16 * ROOM {
                flood.extend_from_slice(&again);
            }
            flood.extend(frame(if first.is_empty() { 0x82 } else { 0x80 }, b"x"));
            let total = flood.len();
            let writer = std::thread::spawn(move || {
                peer.write_all(&flood).expect("the stream reads");
                peer
            });
            let (mut buffer, mut calls) = ([0; ROOM], 0);
            let found = loop {
                calls += 1;
                match stream.receive(&mut buffer).expect("good frames") {
                    ReceiveResult::Bytes { count: 0, more } => assert!(more, "it is asked again"),
                    ReceiveResult::Bytes { count, .. } => break buffer[..count].to_vec(),
                    ReceiveResult::Nothing => std::thread::yield_now(),
                    ReceiveResult::Ended => panic!("the peer is there"),
                }
            };
            assert_eq!(found, b"x");
            assert!(calls >= total / ROOM, "{calls} calls took {total} bytes");
            drop(writer.join());
        }
    }
}
