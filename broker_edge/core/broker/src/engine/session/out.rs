//! The data a connection has to send: encoded bytes, and between them large payloads that stay in their batches.
//!
//! A payload that the socket does not take at once stays in its batch as long as the log would keep the batch in memory
//! anyway; then the rest of it is copied into the connection's own buffer. So a slow reader keeps no old batch in
//! memory, and the bound of its buffer bounds its memory.

use std::io::IoSlice;

use headwater_log::Batch;

use crate::engine::observe::rates::Traffic;
use crate::engine::{ConnKey, Engine};

use super::connection::Connection;

/// Limits on the pool of out buffers: their number, and the size of one.
pub const POOL_MAX: usize = 1024;
pub const POOL_BUFFER_MAX: usize = 16 << 10;

/// From this size on a payload is sent from its batch. Copying a smaller one costs less than another slice for the
/// kernel.
pub const SHARED_BYTES_MIN: usize = 8 << 10;
/// Slices that one send takes.
pub const SLICES_MAX: usize = 64;

/// Bytes of batches read between two checks of the payloads that connections hold: the memory held beyond the log's own
/// is at most twice this.
const HELD_BYTES_MAX: u64 = 4 << 20;

/// A payload that follows the first `at` bytes of the connection's buffer.
#[derive(Debug)]
struct SharedPayload {
    at: usize,
    batch: Batch,
    index: usize,
    /// Other sessions read the batch as well, so it may be held for a while.
    may_stay: bool,
}

impl SharedPayload {
    fn payload(&self) -> &[u8] {
        self.batch.payload(self.index)
    }
}

/// The payloads to send between the bytes of a connection's buffer, in order of position.
#[derive(Debug, Default)]
pub struct SharedPayloads(Option<Box<PayloadList>>);

#[derive(Debug, Default)]
struct PayloadList {
    shares: Vec<SharedPayload>,
    /// Unsent bytes of the payloads.
    bytes: usize,
    /// Sent bytes of the first payload.
    first_sent: usize,
    /// The value of `read_bytes` when the oldest payload was left over.
    held_since: u64,
}

/// Connections that hold payloads from one turn to the next.
#[derive(Debug, Default)]
pub struct PayloadHolders {
    /// Each at most once; some may hold nothing any more.
    keys: Vec<ConnKey>,
    /// Bytes of batches that were read.
    read_bytes: u64,
    looked_at: u64,
}

impl PayloadHolders {
    /// Counts bytes read from the log.
    pub fn note_read(&mut self, bytes: usize) {
        self.read_bytes += bytes as u64;
    }
}

impl SharedPayloads {
    /// Adds record `index` of the batch after the first `at` bytes of the buffer. No shared payload may follow them
    /// yet.
    pub fn push(&mut self, at: usize, batch: &Batch, index: usize, may_stay: bool) {
        let list = self.0.get_or_insert_default();
        let share = SharedPayload {
            at,
            batch: batch.clone(),
            index,
            may_stay,
        };
        list.bytes += share.payload().len();
        list.shares.push(share);
    }

    #[inline]
    pub fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |list| list.bytes)
    }

    fn list(&self) -> &[SharedPayload] {
        self.0.as_ref().map_or(&[], |list| &list.shares)
    }

    fn first_sent(&self) -> usize {
        self.0.as_ref().map_or(0, |list| list.first_sent)
    }
}

impl PayloadList {
    fn may_stay(&self) -> bool {
        self.shares.iter().all(|share| share.may_stay)
    }

    /// Removes sent bytes from the front, including `own_sent` bytes of the buffer.
    fn advance(&mut self, own_sent: &mut usize, mut count: usize) {
        let mut done = 0;
        for share in &self.shares {
            let before = count.min(share.at - *own_sent);
            *own_sent += before;
            count -= before;
            let left = share.payload().len() - self.first_sent;
            if *own_sent < share.at || count < left {
                self.first_sent += count;
                self.bytes -= count;
                count = 0;
                break;
            }
            self.first_sent = 0;
            self.bytes -= left;
            count -= left;
            done += 1;
        }
        self.shares.drain(..done);
        *own_sent += count;
    }
}

/// The bytes that wait for a socket, in pieces.
#[derive(Debug, Clone, Copy)]
pub struct Out<'a> {
    own: &'a [u8],
    /// Bytes of the buffer before `own`; the positions of the payloads count them too.
    skipped: usize,
    shares: &'a [SharedPayload],
    first_sent: usize,
}

impl<'a> Out<'a> {
    const EMPTY: Self = Self {
        own: &[],
        skipped: 0,
        shares: &[],
        first_sent: 0,
    };

    fn of(conn: &'a Connection) -> Self {
        Self {
            own: &conn.out[conn.out_sent..],
            skipped: conn.out_sent,
            shares: conn.shares.list(),
            first_sent: conn.shares.first_sent(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.own.is_empty() && self.shares.is_empty()
    }

    pub fn len(&self) -> usize {
        let shared = self.shares.iter().map(|share| share.payload().len());
        self.own.len() + shared.sum::<usize>() - self.first_sent
    }

    /// All bytes, if they are in one piece.
    #[inline]
    pub fn whole(&self) -> Option<&'a [u8]> {
        self.shares.is_empty().then_some(self.own)
    }

    /// The pieces in order; none is empty.
    pub fn pieces(self) -> impl Iterator<Item = &'a [u8]> {
        let (own, skipped) = (self.own, self.skipped);
        let (mut done, mut sent) = (skipped, self.first_sent);
        let shared = self.shares.iter().flat_map(move |share| {
            let before = &own[done - skipped..share.at - skipped];
            done = share.at;
            [before, &share.payload()[std::mem::take(&mut sent)..]]
        });
        let last = self.shares.last().map_or(0, |share| share.at - skipped);
        shared
            .chain(std::iter::once(&own[last..]))
            .filter(|piece| !piece.is_empty())
    }

    /// The first pieces, for one send; returns their number and their bytes.
    pub fn fill(self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        for (slice, piece) in slices.iter_mut().zip(self.pieces()) {
            *slice = IoSlice::new(piece);
            count += 1;
            bytes += piece.len();
        }
        (count, bytes)
    }

    /// A contiguous copy.
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

impl Connection {
    /// Copies the rest of the shared payloads.
    fn keep_copies(&mut self) {
        let rest = Out::of(self).without(0);
        self.out = rest.into();
        self.out_sent = 0;
        self.shares = SharedPayloads::default();
    }
}

impl Engine {
    /// The bytes a connection has to send.
    pub fn out(&mut self, key: ConnKey) -> Out<'_> {
        match self.clients.conn_mut(key) {
            Some(conn) => {
                conn.touched = false;
                Out::of(conn)
            }
            None => Out::EMPTY,
        }
    }

    /// Reports how much of [`Engine::out`] the socket took. The rest is sent when the socket is writable.
    pub fn written(&mut self, key: ConnKey, count: usize) {
        self.note_sent(key, count, true);
    }

    /// The same, when the socket took all of the part it was given: the sender continues with the rest itself.
    pub fn written_part(&mut self, key: ConnKey, count: usize) {
        self.note_sent(key, count, false);
    }

    fn note_sent(&mut self, key: ConnKey, count: usize, is_full: bool) {
        self.observe.turn_metrics.bytes_sent += count as u64;
        let moved = Traffic {
            sent_bytes: count as u64,
            ..Traffic::default()
        };
        self.count_traffic(key, moved);
        let Some(conn) = self.clients.conns.get_mut(key) else {
            return;
        };
        match &mut conn.shares.0 {
            Some(list) => {
                list.advance(&mut conn.out_sent, count);
                if list.shares.is_empty() {
                    conn.shares = SharedPayloads::default();
                } else if !is_full {
                    // The sender continues in this turn.
                } else if !list.may_stay() {
                    conn.keep_copies();
                } else if !std::mem::replace(&mut conn.holds, true) {
                    list.held_since = self.clients.payload_holders.read_bytes;
                    self.clients.payload_holders.keys.push(key);
                }
            }
            None => conn.out_sent += count,
        }
        let left = conn.out_len();
        if left > 0 {
            conn.out_blocked = is_full;
            // The buffer must not grow for a client that reads, but never everything.
            if conn.out_sent >= left && conn.shares.bytes() == 0 {
                conn.out.drain(..conn.out_sent);
                conn.out_sent = 0;
            }
        } else {
            let mut buffer = std::mem::take(&mut conn.out);
            conn.out_sent = 0;
            if buffer.capacity() <= POOL_BUFFER_MAX && self.clients.pool.len() < POOL_MAX {
                buffer.clear();
                self.clients.pool.push(buffer);
            }
            conn.wake_when_drained |= std::mem::take(&mut conn.out_blocked);
        }
        if conn.paused_on_out && count > 0 {
            conn.last_read_ms = self.env.now.mono_ms;
        }
        if left > self.env.settings.mqtt.out_buffer_bytes.as_usize() / 2 {
            return;
        }
        if std::mem::take(&mut conn.paused_on_out) {
            self.clients.resumed.push(key);
        }
        if std::mem::take(&mut conn.wake_when_drained)
            && let Some(session) = conn.session
        {
            self.wake_session(session);
        }
    }

    /// Copies the payloads that connections hold for longer than the log would keep them in memory.
    pub(in crate::engine) fn copy_held_payloads(&mut self) {
        let payload_holders = &mut self.clients.payload_holders;
        if payload_holders.keys.is_empty()
            || payload_holders.read_bytes - payload_holders.looked_at < HELD_BYTES_MAX
        {
            return;
        }
        let before = std::mem::replace(&mut payload_holders.looked_at, payload_holders.read_bytes);
        let conns = &mut self.clients.conns;
        payload_holders.keys.retain(|key| {
            let Some(conn) = conns.get_mut(*key) else {
                return false;
            };
            let held_since = conn.shares.0.as_ref().map(|list| list.held_since);
            if held_since.is_some_and(|since| since < before) {
                conn.keep_copies();
            }
            conn.holds = conn.shares.bytes() > 0;
            conn.holds
        });
    }
}
