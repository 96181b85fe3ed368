//! How many bytes of batches may be on the way to a peer: per stream, and for all streams of a link.
//!
//! A receiver that is stuck stops its own stream and no other. Control frames need no credit.

use std::collections::BTreeMap;

use crate::marks::ShardId;

/// Of one stream, and what a `Follow` asks for at most.
pub const STREAM_BYTES_MAX: u64 = 8 << 20;
/// Of all streams of a link together.
pub const LINK_BYTES_MAX: u64 = 64 << 20;

/// The sender's side of a link.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Credit {
    streams: BTreeMap<ShardId, Stream>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stream {
    /// What may still be sent.
    left: u64,
    /// What was sent and not given back yet.
    out: u64,
}

impl Credit {
    /// A stream begins, in place of an earlier one of the shard, whose bytes are forgotten.
    pub fn begin(&mut self, shard: ShardId, bytes: u32) {
        let left = u64::from(bytes).min(STREAM_BYTES_MAX);
        self.streams.insert(shard, Stream { left, out: 0 });
    }

    pub fn end(&mut self, shard: ShardId) {
        self.streams.remove(&shard);
    }

    /// The receiver has room for as many bytes more. More than was sent is not believed.
    pub fn give(&mut self, shard: ShardId, bytes: u32) {
        if let Some(stream) = self.streams.get_mut(&shard) {
            let bytes = u64::from(bytes).min(stream.out);
            stream.out -= bytes;
            stream.left += bytes;
        }
    }

    /// Takes credit for a frame of this size, if the stream and the link have it. A frame that is larger than what the
    /// stream began with goes alone, so that it goes at all.
    pub fn take(&mut self, shard: ShardId, bytes: u64) -> bool {
        let out: u64 = self.streams.values().map(|stream| stream.out).sum();
        let Some(stream) = self.streams.get_mut(&shard) else {
            return false;
        };
        let fits = bytes <= stream.left && out + bytes <= LINK_BYTES_MAX;
        let goes_alone = stream.out == 0
            && stream.left > 0
            && bytes > stream.left
            && out + bytes <= LINK_BYTES_MAX;
        if !fits && !goes_alone {
            return false;
        }
        let taken = bytes.min(stream.left);
        stream.left -= taken;
        stream.out += taken;
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: ShardId = ShardId(1);
    const B: ShardId = ShardId(2);

    #[test]
    fn a_stuck_receiver_stops_its_own_stream_only() {
        let mut credit = Credit::default();
        assert!(!credit.take(A, 1), "no stream yet");
        credit.begin(A, 10);
        credit.begin(B, 10);
        assert!(credit.take(A, 6) && !credit.take(A, 5) && credit.take(A, 4));
        assert!(credit.take(B, 10));
        credit.give(B, 10);
        assert!(credit.take(B, 10) && !credit.take(A, 1));
        credit.give(A, u32::MAX);
        assert!(
            credit.take(A, 10) && !credit.take(A, 1),
            "no more than it began with"
        );
    }

    #[test]
    fn a_frame_larger_than_the_credit_goes_alone() {
        let mut credit = Credit::default();
        credit.begin(A, 10);
        assert!(credit.take(A, 1) && !credit.take(A, 11));
        credit.give(A, 1);
        assert!(credit.take(A, 11) && !credit.take(A, 1));
        credit.give(A, 11);
        assert!(credit.take(A, 10));
    }

    #[test]
    fn all_streams_share_the_limit_of_the_link() {
        let mut credit = Credit::default();
        let streams = (LINK_BYTES_MAX / STREAM_BYTES_MAX) as u16;
        for shard in 0..=streams {
            credit.begin(ShardId(shard), u32::MAX);
        }
        for shard in 0..streams {
            assert!(credit.take(ShardId(shard), STREAM_BYTES_MAX));
        }
        assert!(!credit.take(ShardId(streams), 1));
        credit.end(ShardId(0));
        assert!(credit.take(ShardId(streams), STREAM_BYTES_MAX));
    }

    proptest! {
        #[test]
        fn no_more_is_out_than_was_granted(steps in proptest::collection::vec((any::<bool>(), 0..40u32), 1..60)) {
            let mut credit = Credit::default();
            credit.begin(A, 100);
            let mut out = 0u64;
            for (is_take, bytes) in steps {
                if is_take {
                    let taken = credit.take(A, bytes.into());
                    prop_assert_eq!(taken, out + u64::from(bytes) <= 100);
                    out += if taken { bytes.into() } else { 0 };
                } else {
                    credit.give(A, bytes);
                    out -= u64::from(bytes).min(out);
                }
            }
        }
    }
}
