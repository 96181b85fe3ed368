//! Idempotency keys as an index has them: hashes, the keys that are looked for, and the filter of a segment.

use std::cell::OnceCell;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::batch::layout::u32_at;
use crate::ids::Offset;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeyEntry {
    pub hash: u64,
    pub offset: Offset,
}

/// What the hash of a key is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyHashing {
    /// The key alone: in indexes whose keys come from a file of format 2.
    Key,
    TopicAndKey,
}

impl KeyHashing {
    pub fn hash(self, topic: &str, key: &str) -> u64 {
        match self {
            Self::Key => xxh3_64(key.as_bytes()),
            Self::TopicAndKey => xxh3_64_with_seed(key.as_bytes(), xxh3_64(topic.as_bytes())),
        }
    }
}

/// A hash that is looked for, and the number of the record that has it.
pub(crate) type WantedKey = (u64, u32);

/// The keys of an append, hashed as the indexes that are asked have them.
pub(crate) struct WantedKeys<'a> {
    /// Numbers, topics and keys.
    keys: Vec<(u32, &'a str, &'a str)>,
    by_key: OnceCell<HashedKeys>,
    by_topic_and_key: OnceCell<HashedKeys>,
}

struct HashedKeys {
    /// Ascending.
    keys: Vec<WantedKey>,
    /// What a filter has of each of them, once for all filters.
    bits: OnceCell<Vec<FilterBlock>>,
}

impl<'a> WantedKeys<'a> {
    /// Of numbered topics with their keys.
    pub fn new(keys: impl Iterator<Item = (u32, &'a str, &'a str)>) -> Self {
        Self {
            keys: keys.collect(),
            by_key: OnceCell::new(),
            by_topic_and_key: OnceCell::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The numbers of the keys, in the order in which they were given.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.keys.iter().map(|(number, _, _)| *number)
    }

    /// Ascending.
    pub fn hashed(&self, hashing: KeyHashing) -> &[WantedKey] {
        &self.of(hashing).keys
    }

    fn of(&self, hashing: KeyHashing) -> &HashedKeys {
        let hashed = match hashing {
            KeyHashing::Key => &self.by_key,
            KeyHashing::TopicAndKey => &self.by_topic_and_key,
        };
        hashed.get_or_init(|| {
            let keys = self.keys.iter();
            let keys = keys.map(|(number, topic, key)| (hashing.hash(topic, key), *number));
            let mut keys: Vec<WantedKey> = keys.collect();
            keys.sort_unstable();
            let bits = OnceCell::new();
            HashedKeys { keys, bits }
        })
    }

    /// Gives the entries that are wanted, with the numbers of the records that want them.
    pub fn find_in(
        &self,
        hashing: KeyHashing,
        entries: &[KeyEntry],
        found: &mut dyn FnMut(u32, Offset),
    ) {
        let wanted = self.hashed(hashing);
        for entry in entries {
            let first = wanted.partition_point(|(hash, _)| *hash < entry.hash);
            let equal = wanted[first..].iter();
            for (_, number) in equal.take_while(|(hash, _)| *hash == entry.hash) {
                found(*number, entry.offset);
            }
        }
    }
}

/// Those of the wanted keys that a filter has passed: the segment may have them.
pub(crate) struct PassedKeys {
    pub hashing: KeyHashing,
    pub keys: Vec<WantedKey>,
}

/// Eight words; each key sets one bit in each of them.
pub(crate) type FilterBlock = [u32; 8];
pub(crate) const FILTER_BLOCK_BYTES: usize = 32;
/// About one of 220 other keys passes then.
const FILTER_BITS_PER_KEY: usize = 12;
/// Odd numbers that choose the bit of each word: those of the same filter in Apache Parquet.
const SALTS: FilterBlock = [
    0x47b6_137b,
    0x4497_4d91,
    0x8824_ad5b,
    0xa2b7_289d,
    0x7054_95c7,
    0x2df1_424b,
    0x9efc_4947,
    0x5c6b_fb31,
];

/// A split block Bloom filter: says of a key that the segment certainly does not have it, or may have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyFilter {
    hashing: KeyHashing,
    blocks: Box<[FilterBlock]>,
}

impl KeyFilter {
    pub fn new(hashing: KeyHashing, keys: &[KeyEntry]) -> Self {
        let mut blocks = vec![FilterBlock::default(); filter_blocks(keys.len())];
        for key in keys {
            let block = filter_block_of(key.hash, blocks.len());
            for (word, bit) in blocks[block].iter_mut().zip(filter_bits(key.hash)) {
                *word |= bit;
            }
        }
        Self {
            hashing,
            blocks: blocks.into(),
        }
    }

    /// From the bytes of a file, whose number of blocks is right.
    pub fn from_bytes(hashing: KeyHashing, bytes: &[u8]) -> Self {
        let blocks = bytes.chunks_exact(FILTER_BLOCK_BYTES);
        Self {
            hashing,
            blocks: blocks.map(|block| filter_block_at(block, 0)).collect(),
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let words = self.blocks.iter().flatten();
        words.flat_map(|word| word.to_le_bytes()).collect()
    }

    pub fn pass(&self, wanted: &WantedKeys<'_>) -> PassedKeys {
        let hashed = wanted.of(self.hashing);
        let bits = hashed.bits.get_or_init(|| {
            let keys = hashed.keys.iter();
            keys.map(|(hash, _)| filter_bits(*hash)).collect()
        });
        let mut keys = Vec::new();
        // A plain loop here: each new key runs through it once for every segment.
        for (key, bits) in hashed.keys.iter().zip(bits) {
            let block = filter_block_of(key.0, self.blocks.len());
            if self
                .blocks
                .get(block)
                .is_some_and(|block| block_has(block, bits))
            {
                keys.push(*key);
            }
        }
        let hashing = self.hashing;
        PassedKeys { hashing, keys }
    }
}

/// Blocks of the filter of so many keys.
pub(crate) const fn filter_blocks(keys: usize) -> usize {
    (keys * FILTER_BITS_PER_KEY).div_ceil(FILTER_BLOCK_BYTES * 8)
}

/// Memory that the filter of so many keys takes.
pub(crate) const fn filter_memory(keys: usize) -> usize {
    filter_blocks(keys) * FILTER_BLOCK_BYTES
}

/// The block of a hash. Ascending in the hash, so that sorted hashes read the blocks of a file in their order.
pub(crate) fn filter_block_of(hash: u64, blocks: usize) -> usize {
    (((hash >> 32) * blocks as u64) >> 32) as usize
}

pub(crate) fn filter_block_at(bytes: &[u8], at: usize) -> FilterBlock {
    std::array::from_fn(|word| u32_at(bytes, at + word * 4))
}

/// Whether a block has all bits of a key.
pub(crate) fn block_has(block: &FilterBlock, bits: &FilterBlock) -> bool {
    // No early exit: half of the bits of a block are set, so that a processor could not guess where one is taken.
    let missing = block.iter().zip(bits).map(|(word, bit)| bit & !word);
    missing.fold(0, |all, one| all | one) == 0
}

/// The bit of a key in each word.
pub(crate) fn filter_bits(hash: u64) -> FilterBlock {
    SALTS.map(|salt| 1 << ((hash as u32).wrapping_mul(salt) >> 27))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(numbers: std::ops::Range<u64>) -> Vec<KeyEntry> {
        let entry = |number: u64| KeyEntry {
            hash: KeyHashing::TopicAndKey.hash("topic", &number.to_string()),
            offset: Offset(number),
        };
        numbers.map(entry).collect()
    }

    fn may_have(filter: &KeyFilter, hash: u64) -> bool {
        let block = filter_block_of(hash, filter.blocks.len());
        let block = filter.blocks.get(block);
        block.is_some_and(|block| block_has(block, &filter_bits(hash)))
    }

    #[test]
    fn a_filter_passes_every_key_that_it_has_and_few_others() {
        for count in [1, 2, 21, 22, 10_000] {
            let has = entries(0..count);
            let filter = KeyFilter::new(KeyHashing::TopicAndKey, &has);
            assert!(has.iter().all(|key| may_have(&filter, key.hash)), "{count}");
            let others = entries(1_000_000..1_100_000);
            let passed = others.iter().filter(|key| may_have(&filter, key.hash));
            let passed = passed.count();
            assert!(passed < 1_000, "{passed} of 100,000 pass, of {count} keys");
            let bytes = filter.to_bytes();
            assert_eq!(bytes.len(), filter_memory(has.len()));
            let read = KeyFilter::from_bytes(KeyHashing::TopicAndKey, &bytes);
            assert_eq!(read, filter);
        }
        let none = KeyFilter::new(KeyHashing::TopicAndKey, &[]);
        assert!(!may_have(&none, 7));
    }

    /// The memory of a filter is what bounds the keys of a log in memory.
    #[test]
    fn a_key_takes_a_byte_and_a_half_of_a_filter() {
        assert_eq!(filter_memory(1_000_000), 1_500_000);
        assert_eq!(filter_memory(0), 0);
    }

    #[test]
    fn a_hash_is_of_topic_and_key_or_of_the_key_alone() {
        let hash = |hashing: KeyHashing, topic, key| hashing.hash(topic, key);
        let both = KeyHashing::TopicAndKey;
        assert_ne!(hash(both, "a", "key"), hash(both, "b", "key"));
        assert_ne!(hash(both, "a", "key"), hash(both, "a", "other"));
        // As indexes of format 2 have it.
        let of_key = hash(KeyHashing::Key, "a", "key");
        assert_eq!(of_key, xxh3_64(b"key"));
        assert_eq!(of_key, hash(KeyHashing::Key, "b", "key"));
    }

    #[test]
    fn entries_are_found_for_each_record_that_wants_them() {
        let keys = [(0, "t", "a"), (1, "t", "b"), (2, "t", "a"), (3, "u", "a")];
        let wanted = WantedKeys::new(keys.into_iter());
        let found_in = |hashing: KeyHashing, topic, key| {
            let entry = KeyEntry {
                hash: hashing.hash(topic, key),
                offset: Offset(9),
            };
            let mut found = Vec::new();
            wanted.find_in(hashing, &[entry], &mut |number, _| found.push(number));
            found
        };
        assert_eq!(found_in(KeyHashing::TopicAndKey, "t", "a"), [0, 2]);
        assert_eq!(found_in(KeyHashing::TopicAndKey, "u", "a"), [3]);
        assert_eq!(found_in(KeyHashing::TopicAndKey, "u", "b"), [0_u32; 0]);
        assert_eq!(found_in(KeyHashing::Key, "u", "a"), [0, 2, 3]);
    }
}
