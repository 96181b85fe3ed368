//! A pool of large buffers: a fresh buffer costs a page fault every 4 KiB, and zeros that nobody reads.
//!
//! A buffer returns to the pool when the last batch in it is dropped. The pool is bounded; small buffers come from the
//! allocator.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;

/// The allocator is as fast for smaller buffers.
const POOLED_BYTES_MIN: usize = 32 << 10;
/// Bound of the free buffers of one log.
const KEPT_BYTES_MAX: usize = 12 << 20;

#[derive(Default)]
pub(crate) struct Buffers(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

/// Bytes that batches share.
pub(crate) struct Chunk {
    bytes: Vec<u8>,
    home: Option<Arc<Buffers>>,
}

impl Buffers {
    /// An empty buffer with room for `bytes`, not much larger.
    pub fn take(&self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.find(bytes).unwrap_or_default();
        buffer.clear();
        buffer.reserve_exact(bytes);
        buffer
    }

    /// A buffer of exactly `bytes` with undefined content: the caller overwrites it.
    pub fn take_filled(&self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.find(bytes).unwrap_or_default();
        buffer.resize(bytes, 0);
        buffer
    }

    fn find(&self, bytes: usize) -> Option<Vec<u8>> {
        if bytes < POOLED_BYTES_MIN {
            return None;
        }
        let mut kept = self.0.lock();
        let fits = |buffer: &Vec<u8>| (bytes..=bytes + bytes / 2).contains(&buffer.capacity());
        let at = kept.buffers.iter().rposition(fits)?;
        let buffer = kept.buffers.swap_remove(at);
        kept.bytes -= buffer.capacity();
        Some(buffer)
    }

    fn give(&self, buffer: Vec<u8>) {
        if !(POOLED_BYTES_MIN..=KEPT_BYTES_MAX).contains(&buffer.capacity()) {
            return;
        }
        let mut kept = self.0.lock();
        kept.bytes += buffer.capacity();
        kept.buffers.push(buffer);
        // The oldest are dropped, so that sizes that nobody asks for any more do not stay.
        let mut gone = Vec::new();
        while kept.bytes > KEPT_BYTES_MAX {
            let oldest = kept.buffers.remove(0);
            kept.bytes -= oldest.capacity();
            gone.push(oldest);
        }
        drop(kept);
    }
}

impl Chunk {
    pub fn new(bytes: Vec<u8>, home: &Arc<Buffers>) -> Arc<Self> {
        let home = Some(Arc::clone(home));
        Arc::new(Self { bytes, home })
    }

    /// Memory that it keeps.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}

impl From<Vec<u8>> for Chunk {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, home: None }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.give(std::mem::take(&mut self.bytes));
        }
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk of {} bytes", self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_when_the_last_of_its_batches_is_gone() {
        let buffers = Arc::new(Buffers::default());
        let chunk = Chunk::new(buffers.take_filled(64 << 10), &buffers);
        let other = Arc::clone(&chunk);
        let at = chunk.as_ptr();
        drop(chunk);
        let fresh = buffers.take_filled(64 << 10);
        assert_ne!(fresh.as_ptr(), at);
        drop(other);
        let used = buffers.take(60 << 10);
        assert_eq!(used.as_ptr(), at);
    }

    #[test]
    fn what_is_kept_is_bounded_and_fits_what_is_asked_for() {
        let buffers = Arc::new(Buffers::default());
        let many: Vec<_> = (0..20)
            .map(|_| Chunk::new(buffers.take_filled(1 << 20), &buffers))
            .collect();
        drop(many);
        assert!(buffers.0.lock().bytes <= KEPT_BYTES_MAX);
        assert!(buffers.take(64 << 10).capacity() < 1 << 20);
        drop(Chunk::new(vec![0; 100], &buffers));
        let is_large = |kept: &Vec<u8>| kept.capacity() >= POOLED_BYTES_MIN;
        assert!(buffers.0.lock().buffers.iter().all(is_large));
    }
}
