//! The sockets of the loop, in a table beside the engine's connections and under the same keys.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use crate::engine::ConnKey;

struct Socket {
    stream: TcpStream,
    key: ConnKey,
    /// In the loop's list of connections to read.
    readable: bool,
    /// The peer has closed it, or it failed.
    ended: bool,
}

/// A socket that was shut down for writing. What its peer still sends is read and dropped for a while: closing it with
/// bytes unread would make the kernel send a reset, which can overtake the last packet.
struct Lingering {
    stream: TcpStream,
    until: Instant,
    bytes_left: usize,
}

/// How long and for how many bytes a peer may go on sending, and how many sockets wait for that at a time; of more, the
/// oldest is closed at once.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 4 << 20;
const LINGERING_MAX: usize = 256;

#[derive(Default)]
pub struct Sockets {
    slots: Vec<Option<Socket>>,
    /// In order of time.
    lingering: VecDeque<Lingering>,
}

/// What one receive gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    Bytes(usize),
    Nothing,
    Closed,
}

impl Sockets {
    pub fn insert(
        &mut self,
        key: ConnKey,
        mut stream: TcpStream,
        registry: &Registry,
    ) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let token = usize::try_from(key.to_bits()).map_err(io::Error::other)?;
        registry.register(
            &mut stream,
            Token(token),
            Interest::READABLE | Interest::WRITABLE,
        )?;
        if self.slots.len() <= key.index() {
            self.slots.resize_with(key.index() + 1, || None);
        }
        self.slots[key.index()] = Some(Socket {
            stream,
            key,
            readable: false,
            ended: false,
        });
        Ok(())
    }

    pub fn remove(&mut self, key: ConnKey, registry: &Registry) {
        let Some(slot) = self.slots.get_mut(key.index()) else {
            return;
        };
        let Some(mut socket) = slot.take_if(|socket| socket.key == key) else {
            return;
        };
        if !socket.ended && socket.stream.shutdown(Shutdown::Write).is_ok() {
            if self.lingering.len() >= LINGERING_MAX {
                self.lingering.pop_front();
            }
            // It stays in the poll, so that the loop is woken for what comes; nobody knows its key any more.
            self.lingering.push_back(Lingering {
                stream: socket.stream,
                until: Instant::now() + LINGER,
                bytes_left: LINGER_BYTES,
            });
            return;
        }
        // Closing takes the socket out of the poll anyway.
        let _ = registry.deregister(&mut socket.stream);
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
    fn get(&mut self, key: ConnKey) -> Option<&mut Socket> {
        self.slots
            .get_mut(key.index())?
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

    pub fn receive(&mut self, key: ConnKey, buffer: &mut [u8]) -> Received {
        let Some(socket) = self.get(key) else {
            return Received::Nothing;
        };
        loop {
            return match socket.stream.read(buffer) {
                Ok(0) => {
                    socket.ended = true;
                    Received::Closed
                }
                Ok(count) => Received::Bytes(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Received::Nothing,
                Err(_) => {
                    socket.ended = true;
                    Received::Closed
                }
            };
        }
    }

    /// Sends what the socket takes; zero bytes when it is full.
    pub fn send(&mut self, key: ConnKey, bytes: &[u8]) -> io::Result<usize> {
        let Some(socket) = self.get(key) else {
            return Ok(0);
        };
        loop {
            return match socket.stream.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                result => result,
            };
        }
    }
}

impl Lingering {
    /// False when the peer is done, or has sent too much.
    fn drain(&mut self, buffer: &mut [u8]) -> bool {
        loop {
            match self.stream.read(buffer) {
                Ok(0) => return false,
                Ok(count) if count >= self.bytes_left => return false,
                Ok(count) => self.bytes_left -= count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }
}
