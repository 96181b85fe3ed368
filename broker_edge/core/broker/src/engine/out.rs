//! What a connection has to send: encoded bytes, and between them large payloads that stay in their batches.
//!
//! Shares last no longer than a turn. What a socket does not take at once is copied into the connection's own buffer, so
//! that a slow reader holds no batch in memory and the bound of its buffer stays the bound of what it costs.

use std::io::IoSlice;

use headwater_log::Batch;

use super::traffic::Traffic;
use super::{ConnKey, Engine, POOL_BUFFER_MAX, POOL_MAX};

/// From here on a payload is sent from its batch: below, copying costs less than another slice for the kernel.
pub const SHARED_BYTES_MIN: usize = 8 << 10;
/// Slices that one send takes.
pub const SLICES_MAX: usize = 64;

/// A payload that follows the first `at` bytes of the connection's buffer.
#[derive(Debug)]
struct Share {
    at: usize,
    batch: Batch,
    index: usize,
}

impl Share {
    fn payload(&self) -> &[u8] {
        self.batch.payload(self.index)
    }
}

/// The payloads that go between the bytes of a connection's buffer, in the order of their places.
#[derive(Debug, Default)]
pub struct Shares(Option<Box<List>>);

#[derive(Debug, Default)]
struct List {
    shares: Vec<Share>,
    bytes: usize,
}

impl Shares {
    /// Puts record `index` of the batch behind the first `at` bytes of the buffer, which has nothing shared after them.
    pub fn push(&mut self, at: usize, batch: &Batch, index: usize) {
        let list = self.0.get_or_insert_default();
        let share = Share {
            at,
            batch: batch.clone(),
            index,
        };
        list.bytes += share.payload().len();
        list.shares.push(share);
    }

    #[inline]
    pub fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |list| list.bytes)
    }

    fn list(&self) -> &[Share] {
        self.0.as_ref().map_or(&[], |list| &list.shares)
    }
}

/// What waits for a socket, in pieces.
#[derive(Debug, Clone, Copy)]
pub struct Out<'a> {
    own: &'a [u8],
    /// Bytes of the buffer before `own`, which the places of the shares count too.
    skipped: usize,
    shares: &'a [Share],
}

impl<'a> Out<'a> {
    const EMPTY: Self = Self {
        own: &[],
        skipped: 0,
        shares: &[],
    };

    pub fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    pub fn len(&self) -> usize {
        let shared = self.shares.iter().map(|share| share.payload().len());
        self.own.len() + shared.sum::<usize>()
    }

    /// All of it, when it lies in one piece.
    #[inline]
    pub fn whole(&self) -> Option<&'a [u8]> {
        self.shares.is_empty().then_some(self.own)
    }

    /// The pieces in order; none is empty.
    pub fn pieces(self) -> impl Iterator<Item = &'a [u8]> {
        let mut done = self.skipped;
        let (own, skipped) = (self.own, self.skipped);
        let shared = self.shares.iter().flat_map(move |share| {
            let before = &own[done - skipped..share.at - skipped];
            done = share.at;
            [before, share.payload()]
        });
        let last = self.shares.last().map_or(0, |share| share.at - skipped);
        shared
            .chain(std::iter::once(&own[last..]))
            .filter(|piece| !piece.is_empty())
    }

    /// The first pieces, for one send; says how many.
    pub fn fill(self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(self.pieces()) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        count
    }

    /// A copy in one piece.
    #[cfg(test)]
    pub fn to_vec(self) -> Vec<u8> {
        self.without(0)
    }

    /// A copy without the first `count` bytes.
    fn without(self, mut count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len() - count);
        for piece in self.pieces() {
            let gone = count.min(piece.len());
            count -= gone;
            bytes.extend_from_slice(&piece[gone..]);
        }
        bytes
    }
}

impl Engine {
    /// What a connection has to send.
    pub fn out(&mut self, key: ConnKey) -> Out<'_> {
        match self.conns.get_mut(key) {
            Some(conn) => {
                conn.touched = false;
                Out {
                    own: &conn.out[conn.out_sent..],
                    skipped: conn.out_sent,
                    shares: conn.shares.list(),
                }
            }
            None => Out::EMPTY,
        }
    }

    /// Tells how much of [`Engine::out`] the socket took. Whatever is left is asked for again when it is writable.
    pub fn written(&mut self, key: ConnKey, count: usize) {
        self.tally.bytes_sent += count as u64;
        let moved = Traffic {
            sent_bytes: count as u64,
            ..Traffic::default()
        };
        self.count_moved(key, moved);
        let Some(conn) = self.conns.get_mut(key) else {
            return;
        };
        if count < conn.out_len() && conn.shares.bytes() > 0 {
            let out = Out {
                own: &conn.out[conn.out_sent..],
                skipped: conn.out_sent,
                shares: conn.shares.list(),
            };
            let rest = out.without(count);
            conn.out = rest;
            conn.out_sent = 0;
        } else {
            conn.out_sent += count - conn.shares.bytes();
        }
        conn.shares = Shares::default();
        let left = conn.out_len();
        if left > 0 {
            conn.out_blocked = true;
            // A client that takes what it is sent but never all of it must not make the buffer grow.
            if conn.out_sent >= left {
                conn.out.drain(..conn.out_sent);
                conn.out_sent = 0;
            }
        } else {
            let mut buffer = std::mem::take(&mut conn.out);
            conn.out_sent = 0;
            if buffer.capacity() <= POOL_BUFFER_MAX && self.pool.len() < POOL_MAX {
                buffer.clear();
                self.pool.push(buffer);
            }
            conn.wake_when_drained |= std::mem::take(&mut conn.out_blocked);
        }
        if conn.paused_on_out && count > 0 {
            conn.last_read_ms = self.now.mono_ms;
        }
        if left > self.settings.out_buffer_bytes / 2 {
            return;
        }
        if std::mem::take(&mut conn.paused_on_out) {
            self.resumed.push(key);
        }
        if std::mem::take(&mut conn.wake_when_drained)
            && let Some(session) = conn.session
        {
            self.wake_session(session);
        }
    }
}
