//! The payloads of one append, one after the other, with free space in front of them.
//!
//! The rest of a batch is written into that space, so that a large append becomes a batch without a copy of its
//! payloads.

use std::ops::Range;

#[derive(Debug, Clone, Default)]
pub(crate) struct Payloads {
    /// `front` free bytes, then the payloads.
    bytes: Vec<u8>,
    front: usize,
}

impl Payloads {
    /// No payloads yet, in the given buffer.
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

    /// Removes the payloads and keeps the buffer and its free space.
    pub fn clear(&mut self) {
        self.bytes.truncate(self.front);
    }

    pub fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }

    /// The buffer with `head` right before the payloads, and where `head` begins. The free space must hold `head`.
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
