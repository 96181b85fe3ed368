//! The sockets of the loop, in a table beside the engine's connections and under the same keys.

use std::io::{self, Read, Write};

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use crate::engine::ConnKey;

struct Socket {
    stream: TcpStream,
    key: ConnKey,
    /// In the loop's list of connections to read.
    readable: bool,
}

#[derive(Default)]
pub struct Sockets {
    slots: Vec<Option<Socket>>,
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
        });
        Ok(())
    }

    pub fn remove(&mut self, key: ConnKey, registry: &Registry) {
        let Some(slot) = self.slots.get_mut(key.index()) else {
            return;
        };
        if let Some(mut socket) = slot.take_if(|socket| socket.key == key) {
            // Closing takes the socket out of the poll anyway.
            let _ = registry.deregister(&mut socket.stream);
        }
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
                Ok(0) => Received::Closed,
                Ok(count) => Received::Bytes(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Received::Nothing,
                Err(_) => Received::Closed,
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
