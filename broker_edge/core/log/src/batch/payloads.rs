//! The payloads of one append, one after the other, with room in front of them.
//!
//! The rest of a batch goes into that room, so that a large append becomes a batch without its payloads being copied.

use std::ops::Range;

#[derive(Debug, Clone, Default)]
pub(crate) struct Payloads {
    /// `front` bytes of no meaning, then the payloads.
    bytes: Vec<u8>,
    front: usize,
}

impl Payloads {
    /// No payloads yet, in a buffer that was used before or is large enough for what is expected.
    pub fn in_buffer(mut buffer: Vec<u8>, front: usize) -> Self {
        buffer.clear();
        buffer.resize(front, 0);
        Self {
            bytes: buffer,
            front,
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.front
    }

    pub fn front(&self) -> usize {
        self.front
    }

    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    #[inline]
    pub fn push(&mut self, payload: &[u8]) {
        self.bytes.extend_from_slice(payload);
    }

    #[inline]
    pub fn get(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[self.front..][range]
    }

    /// Empties it and keeps the buffer with its room.
    pub fn clear(&mut self) {
        self.bytes.truncate(self.front);
    }

    pub fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }

    /// The buffer, with `head` right before the payloads, and where it begins. The room is as large as `head` at least.
    pub fn behind(mut self, head: &[u8]) -> (Vec<u8>, usize) {
        let start = self.front - head.len();
        self.bytes[start..self.front].copy_from_slice(head);
        (self.bytes, start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_stands_right_before_the_payloads() {
        let mut payloads = Payloads::in_buffer(Vec::with_capacity(64), 10);
        payloads.push(b"one");
        payloads.push(b"two");
        assert_eq!((payloads.len(), payloads.get(3..6)), (6, &b"two"[..]));
        let mut again = payloads.clone();
        again.clear();
        assert_eq!((again.len(), again.front()), (0, 10));
        let (bytes, start) = payloads.behind(b"head ");
        assert_eq!(&bytes[start..], b"head onetwo");
    }
}
