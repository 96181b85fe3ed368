//! The sockets of the loop, in a table beside the engine's connections and under the same keys.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use mio::{Interest, Registry, Token};

use crate::engine::{ConnKey, Out, SLICES_MAX};
use crate::transport::{ReceiveResult, Stream};

struct Socket {
    stream: Stream,
    key: ConnKey,
    /// In the loop's list of connections to read.
    readable: bool,
    /// The poll has told that the peer is done: it is read to its end, because no other event will tell.
    is_ending: bool,
    /// The peer has closed it, or it failed.
    ended: bool,
}

/// A socket that was shut down for writing. What its peer still sends is read and dropped for a while: closing it with
/// bytes unread would make the kernel send a reset, which can overtake the last packet.
struct Lingering {
    stream: Stream,
    until: Instant,
    bytes_left: usize,
}

/// How long and for how many bytes a peer may go on sending, and how many sockets wait for that at a time; of more, the
/// oldest is closed at once.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 4 << 20;
const LINGERING_MAX: usize = 256;

/// Slots are allocated in blocks: a table that grows as a whole leaves its old copies behind.
const BLOCK: usize = 128;

#[derive(Default)]
pub struct Sockets {
    blocks: Vec<Box<[Option<Socket>]>>,
    /// In order of time.
    lingering: VecDeque<Lingering>,
}

/// What one receive gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// With `more`, there may be more without a new event.
    Bytes {
        count: usize,
        more: bool,
    },
    Nothing,
    Closed,
}

/// What one send did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    pub count: usize,
    /// The socket took less than it was given: there will be an event when it takes more.
    pub is_full: bool,
}

impl Received {
    pub fn count(self) -> usize {
        match self {
            Received::Bytes { count, .. } => count,
            Received::Nothing | Received::Closed => 0,
        }
    }
}

impl Sockets {
    /// Takes a stream in whose socket the poll watches already, under another token.
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
            key,
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
        let Some(mut socket) = slot.take_if(|socket| socket.key == key) else {
            return;
        };
        if !socket.ended {
            return self.let_go(socket.stream);
        }
        // Closing takes the socket out of the poll anyway.
        let _ = registry.deregister(socket.stream.socket_mut());
    }

    /// Ends this side of a stream, and closes it when the peer is done or after a while.
    pub fn let_go(&mut self, mut stream: Stream) {
        if stream.shut_down().is_err() {
            return;
        }
        if self.lingering.len() >= LINGERING_MAX {
            self.lingering.pop_front();
        }
        // It stays in the poll, so that the loop is woken for what comes; nobody knows its key any more.
        self.lingering.push_back(Lingering {
            stream,
            until: Instant::now() + LINGER,
            bytes_left: LINGER_BYTES,
        });
    }

    /// Drops what came for sockets that were shut down, and closes those whose peer is done or whose time is over.
    pub fn drain(&mut self, buffer: &mut [u8]) {
        if self.lingering.is_empty() {
            return;
        }
        let now = Instant::now();
        self.lingering
            .retain_mut(|lingering| lingering.until > now && lingering.drain(buffer));
    }

    /// How long until the first of the sockets that were shut down is closed.
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
            .filter(|socket| socket.key == key)
    }

    /// True when the connection was not marked before.
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

    /// The poll has told that the peer is done.
    pub fn mark_ending(&mut self, key: ConnKey) {
        if let Some(socket) = self.get(key) {
            socket.is_ending = true;
        }
    }

    pub fn receive(&mut self, key: ConnKey, buffer: &mut [u8]) -> Received {
        let Some(socket) = self.get(key) else {
            return Received::Nothing;
        };
        match socket.stream.receive(buffer) {
            Ok(ReceiveResult::Bytes { count, more }) => Received::Bytes {
                count,
                more: more || socket.is_ending,
            },
            Ok(ReceiveResult::Nothing) => Received::Nothing,
            Ok(ReceiveResult::Ended) => {
                socket.ended = socket.stream.is_over();
                Received::Closed
            }
            Err(error) => {
                tracing::debug!(%error, "a receive failed");
                socket.ended = error.kind() != io::ErrorKind::InvalidData;
                Received::Closed
            }
        }
    }

    /// Sends what the socket takes of what is due now; zero bytes when it is full. What it does not take has to be the
    /// beginning of what is sent next.
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

    /// Sends what lies between MQTT and the socket.
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
    /// False when the peer is done, or has sent too much.
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
