//! What was stored of sessions since the last checkpoint: a session is stored as a whole whenever its subscriptions
//! change, so a client with many changes could make the broker write a thousand times as much as it sends.

use headwater_log::Offset;
use rustc_hash::FxHashMap;

use crate::engine::SessionKey;
use crate::engine::quotas::FREE_STORED_BYTES;

#[derive(Debug, Default)]
struct Stored {
    bytes: usize,
    /// Where its last value ends.
    until: Offset,
}

/// The sessions that were stored since the last checkpoint, so there are no more than a second can bring.
#[derive(Debug, Default)]
pub struct StoredLately(FxHashMap<SessionKey, Stored>);

impl StoredLately {
    /// Notes a stored value. Returns how many of its bytes are counted.
    pub fn note(&mut self, key: SessionKey, bytes: usize, until: Offset) -> usize {
        let stored = self.0.entry(key).or_default();
        let free = FREE_STORED_BYTES.saturating_sub(stored.bytes);
        stored.bytes += bytes;
        stored.until = until;
        bytes.saturating_sub(free)
    }

    /// Whether bytes of another value of this size would be counted.
    pub fn counts(&self, key: SessionKey, bytes: usize) -> bool {
        let stored = self.0.get(&key).map_or(0, |stored| stored.bytes);
        stored + bytes > FREE_STORED_BYTES
    }

    /// Where the last value of a session ends.
    pub fn last(&self, key: SessionKey) -> Option<Offset> {
        self.0.get(&key).map(|stored| stored.until)
    }

    pub fn forget(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_once_more_than_a_little_was_stored_since_the_last_checkpoint() {
        let key = SessionKey::from_bits(1);
        let mut lately = StoredLately::default();
        assert!(
            !lately.counts(key, FREE_STORED_BYTES) && lately.counts(key, FREE_STORED_BYTES + 1)
        );
        assert_eq!(lately.last(key), None);
        let part = FREE_STORED_BYTES - 1;
        assert_eq!(lately.note(key, part, Offset(2)), 0);
        assert!(!lately.counts(key, 1) && lately.counts(key, 2));
        assert_eq!(lately.note(key, part, Offset(4)), part - 1);
        assert_eq!(lately.note(key, part, Offset(6)), part);
        assert_eq!(lately.last(key), Some(Offset(6)));
        lately.forget();
        assert_eq!(lately.note(key, part, Offset(8)), 0);
    }
}
