//! The sockets of the loop, in a table with the same keys as the engine's connections.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use mio::{Interest, Registry, Token};

use crate::engine::{ConnKey, Generation, Out, SLICES_MAX};
use crate::transport::{ReceiveResult, Stream};

struct Socket {
    stream: Stream,
    /// The generation of its key; the index is its place.
    generation: Generation,
    /// Whether it is in the queue of connections to read.
    readable: bool,
    /// The poll has reported that the peer is done: it is read to its end, because no further event will come.
    is_ending: bool,
    /// The peer has closed the connection, or it failed.
    ended: bool,
}

/// A socket that was shut down for writing. Further input is read and dropped for a while: closing a socket with unread
/// bytes makes the kernel send a reset, which can overtake the last packet.
struct Lingering {
    stream: Stream,
    until: Instant,
    bytes_left: usize,
}

/// How long and how many bytes a peer may continue to send, and how many such sockets may wait; beyond that the oldest
/// is closed at once.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 4 << 20;
const LINGERING_MAX: usize = 256;

/// Slots are allocated in blocks, because a table that grows as a whole leaves its old copies in the heap.
const BLOCK: usize = 128;

#[derive(Default)]
pub struct Sockets {
    blocks: Vec<Box<[Option<Socket>]>>,
    /// In order of their deadlines.
    lingering: VecDeque<Lingering>,
}

/// The result of one send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    pub count: usize,
    /// The socket accepted less than it was given; an event follows when it accepts more.
    pub is_full: bool,
}

impl Sockets {
    /// Inserts a stream whose socket is already registered with the poll under another token.
    pub fn insert(
        &mut self,
        key: ConnKey,
        mut stream: Stream,
        registry: &Registry,
    ) -> io::Result<()> {
        registry.reregister(
            stream.socket_mut(),
            token(key)?,
            Interest::READABLE | Interest::WRITABLE,
        )?;
        while self.blocks.len() <= key.index() / BLOCK {
            let block = std::iter::repeat_with(|| None).take(BLOCK);
            self.blocks.push(block.collect());
        }
        self.blocks[key.index() / BLOCK][key.index() % BLOCK] = Some(Socket {
            stream,
            generation: key.generation(),
            readable: false,
            is_ending: false,
            ended: false,
        });
        Ok(())
    }

    pub fn remove(&mut self, key: ConnKey, registry: &Registry) {
        let Some(slot) = self.slot_mut(key) else {
            return;
        };
        let Some(mut socket) = slot.take_if(|socket| socket.generation == key.generation()) else {
            return;
        };
        if !socket.ended {
            return self.let_go(socket.stream);
        }
        // Closing the socket removes it from the poll anyway.
        let _ = registry.deregister(socket.stream.socket_mut());
    }

    /// Shuts down our side of a stream, and closes it when the peer is done or after a while.
    pub fn let_go(&mut self, mut stream: Stream) {
        if stream.shut_down().is_err() {
            return;
        }
        if self.lingering.len() >= LINGERING_MAX {
            self.lingering.pop_front();
        }
        // It stays in the poll, so that input wakes the loop; its key is no longer in use.
        self.lingering.push_back(Lingering {
            stream,
            until: Instant::now() + LINGER,
            bytes_left: LINGER_BYTES,
        });
    }

    /// Drops the input of sockets that were shut down, and closes those whose peer is done or whose deadline has
    /// passed.
    pub fn drain(&mut self, buffer: &mut [u8]) {
        if self.lingering.is_empty() {
            return;
        }
        let now = Instant::now();
        self.lingering
            .retain_mut(|lingering| lingering.until > now && lingering.drain(buffer));
    }

    /// The time until the first lingering socket is closed.
    pub fn linger(&self) -> Option<Duration> {
        let until = self.lingering.front()?.until;
        Some(until.saturating_duration_since(Instant::now()))
    }

    #[inline]
    fn slot_mut(&mut self, key: ConnKey) -> Option<&mut Option<Socket>> {
        let block = self.blocks.get_mut(key.index() / BLOCK)?;
        block.get_mut(key.index() % BLOCK)
    }

    #[inline]
    fn get(&mut self, key: ConnKey) -> Option<&mut Socket> {
        self.slot_mut(key)?
            .as_mut()
            .filter(|socket| socket.generation == key.generation())
    }

    /// Returns true when the connection was not marked before.
    #[inline]
    pub fn mark_readable(&mut self, key: ConnKey) -> bool {
        self.get(key)
            .is_some_and(|socket| !std::mem::replace(&mut socket.readable, true))
    }

    #[inline]
    pub fn unmark_readable(&mut self, key: ConnKey) {
        if let Some(socket) = self.get(key) {
            socket.readable = false;
        }
    }

    /// Notes that the poll has reported that the peer is done.
    pub fn mark_ending(&mut self, key: ConnKey) {
        if let Some(socket) = self.get(key) {
            socket.is_ending = true;
        }
    }

    /// Receives into `buffer`, and adds to `cost` what that cost, in bytes of MQTT without layers.
    pub fn receive(&mut self, key: ConnKey, buffer: &mut [u8], cost: &mut usize) -> ReceiveResult {
        let Some(socket) = self.get(key) else {
            return ReceiveResult::Nothing;
        };
        let received = socket.stream.receive(buffer);
        let count = received.as_ref().map_or(0, |received| received.count());
        *cost += socket.stream.cost_of_receive(count);
        match received {
            Ok(ReceiveResult::Bytes { count, more }) => ReceiveResult::Bytes {
                count,
                more: more || socket.is_ending,
            },
            Ok(ReceiveResult::Nothing) => ReceiveResult::Nothing,
            Ok(ReceiveResult::Ended) => {
                socket.ended = socket.stream.is_over();
                ReceiveResult::Ended
            }
            Err(error) => {
                tracing::debug!(%error, "a receive failed");
                socket.ended = error.kind() != io::ErrorKind::InvalidData;
                ReceiveResult::Ended
            }
        }
    }

    /// Sends as much as the socket accepts; zero bytes when it is full. The next send must begin with the rest.
    pub fn send(&mut self, key: ConnKey, out: Out<'_>) -> io::Result<Sent> {
        let Some(socket) = self.get(key) else {
            let (count, is_full) = (0, true);
            return Ok(Sent { count, is_full });
        };
        let (count, offered) = match out.whole() {
            Some(bytes) => (socket.stream.send(bytes)?, bytes.len()),
            None => {
                let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                let (pieces, offered) = out.fill(&mut slices);
                (socket.stream.send_vectored(&slices[..pieces])?, offered)
            }
        };
        let is_full = count < offered;
        Ok(Sent { count, is_full })
    }

    /// Sends the output buffered in the layers between MQTT and the socket.
    #[inline]
    pub fn flush(&mut self, key: ConnKey) -> io::Result<()> {
        match self.get(key) {
            Some(socket) => socket.stream.flush(),
            None => Ok(()),
        }
    }
}

fn token(key: ConnKey) -> io::Result<Token> {
    usize::try_from(key.to_bits())
        .map(Token)
        .map_err(io::Error::other)
}

impl Lingering {
    /// Returns false when the peer is done, or has sent too much.
    fn drain(&mut self, buffer: &mut [u8]) -> bool {
        loop {
            match self.stream.receive_raw(buffer) {
                Ok(Some(0)) | Err(_) => return false,
                Ok(Some(count)) if count >= self.bytes_left => return false,
                Ok(Some(count)) => self.bytes_left -= count,
                Ok(None) => return true,
            }
        }
    }
}
