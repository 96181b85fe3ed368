//! The data a connection has to send: encoded bytes, and between them large payloads that stay in their batches.
//!
//! A payload that the socket does not take at once stays in its batch as long as the log would keep the batch in memory
//! anyway; then the rest of it is copied into the connection's own buffer. So a slow reader keeps no old batch in
//! memory, and the bound of its buffer bounds its memory. A batch stays where the copies would take more than it does:
//! many slow readers of one large payload take little more than one.

use std::collections::HashMap;
use std::io::IoSlice;

use headwater_log::Batch;

use super::connection::Connection;

/// From this size on a payload is sent from its batch. Copying a smaller one costs less than another slice for the
/// kernel.
pub const SHARED_BYTES_MIN: usize = 8 << 10;
/// A buffer keeps four times this, also when little waits in it.
const SPARE_BYTES: usize = 16 << 10;
/// Slices that one send takes.
pub const SLICES_MAX: usize = 64;

/// A payload that follows the first `at` bytes of the connection's buffer.
#[derive(Debug)]
struct SharedPayload {
    at: usize,
    batch: Batch,
    index: usize,
}

impl SharedPayload {
    fn payload(&self) -> &[u8] {
        self.batch.payload(self.index)
    }
}

/// Bytes of payloads that connections hold, by the place of their batch in memory.
#[derive(Debug, Default)]
pub struct HeldPayloads(HashMap<usize, usize>);

impl HeldPayloads {
    fn add(&mut self, share: &SharedPayload) {
        *self.0.entry(Self::place_of(&share.batch)).or_default() += share.payload().len();
    }

    /// Whether copies of what is held of a batch would take more than the batch.
    fn are_more_than(&self, batch: &Batch) -> bool {
        let held = self.0.get(&Self::place_of(batch));
        held.is_some_and(|held| *held > Batch::kept_bytes([batch]))
    }

    fn place_of(batch: &Batch) -> usize {
        batch.bytes().as_ptr().addr()
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

impl SharedPayloads {
    /// Adds record `index` of the batch after the first `at` bytes of the buffer. No shared payload may follow them
    /// yet.
    pub fn push(&mut self, at: usize, batch: &Batch, index: usize) {
        let list = self.0.get_or_insert_default();
        let share = SharedPayload {
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

    fn list(&self) -> &[SharedPayload] {
        self.0.as_ref().map_or(&[], |list| &list.shares)
    }

    fn first_sent(&self) -> usize {
        self.0.as_ref().map_or(0, |list| list.first_sent)
    }
}

impl PayloadList {
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
    pub const EMPTY: Self = Self {
        own: &[],
        skipped: 0,
        shares: &[],
        first_sent: 0,
    };

    pub fn of(conn: &'a Connection) -> Self {
        Self {
            own: &conn.out[conn.out_sent as usize..],
            skipped: conn.out_sent as usize,
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
    #[cfg(any(test, feature = "fuzzing"))]
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
    /// Takes off what the socket took. `hold` is called for payloads that stay until the socket is writable; it
    /// returns the bytes read from the log so far, unless the connection held payloads already.
    pub fn advance_out(&mut self, count: usize, is_full: bool, hold: impl FnOnce() -> Option<u64>) {
        match &mut self.shares.0 {
            Some(list) => {
                let mut own_sent = self.out_sent as usize;
                list.advance(&mut own_sent, count);
                self.out_sent = own_sent as u32;
                if list.shares.is_empty() {
                    self.shares = SharedPayloads::default();
                } else if !is_full {
                    // The sender continues in this turn.
                } else if let Some(read_bytes) = hold() {
                    list.held_since = read_bytes;
                }
            }
            None => self.out_sent += count as u32,
        }
        // The buffer must not grow for a client that reads, but never everything.
        let left = self.out_len();
        let sent = self.out_sent as usize;
        if left > 0 && sent >= left && self.shares.bytes() == 0 {
            self.out.drain(..sent);
            self.out_sent = 0;
            if self.out.capacity() / 4 > left.max(SPARE_BYTES) {
                self.out.shrink_to(2 * left);
            }
        }
    }

    /// Makes room for more bytes. A buffer that only doubles would in the end take twice the `room` of the connection.
    #[inline]
    pub fn reserve_out(&mut self, more: usize, room: usize) {
        let needed = self.out.len() + more;
        if needed > self.out.capacity() {
            self.grow_out(needed, room);
        }
    }

    #[cold]
    fn grow_out(&mut self, needed: usize, room: usize) {
        let doubled = (2 * self.out.capacity()).min(room);
        let more = needed.max(doubled) - self.out.len();
        self.out.reserve_exact(more);
    }

    /// Adds the payloads that the connection holds.
    pub fn add_held(&self, held: &mut HeldPayloads) {
        self.shares.list().iter().for_each(|share| held.add(share));
    }

    /// Copies the payloads if they are held since before then, and other connections do not hold as much of their
    /// batches. Returns whether the connection still holds some.
    pub fn copy_payloads_held_before(&mut self, before: u64, held: &HeldPayloads) -> bool {
        let is_due = |list: &PayloadList| {
            let mut shares = list.shares.iter();
            list.held_since < before && !shares.all(|share| held.are_more_than(&share.batch))
        };
        if self.shares.0.as_deref().is_some_and(is_due) {
            self.keep_copies();
        }
        self.shares.bytes() > 0
    }

    /// Copies the rest of the shared payloads.
    fn keep_copies(&mut self) {
        let rest = Out::of(self).without(0);
        self.out = rest.into();
        self.out_sent = 0;
        self.shares = SharedPayloads::default();
    }
}
