use proptest::prelude::*;

use super::*;
use crate::batch::record_batch::tests::identity;
use crate::ids::{LogId, PartitionId};
use crate::index::keys::KeyEntry;

pub(crate) fn block(number: u64) -> Block {
    Block {
        offset: Offset(10 + number),
        position: 4096 + number * 65_536,
        max_time_us: number as i64,
    }
}

/// So many topics in the order of an index.
pub(crate) fn topics(count: usize) -> Vec<IndexTopic> {
    let topic = |number: usize| IndexTopic {
        topic: format!("devices/{number}/telemetry").into(),
        extent: TopicExtent {
            range: Offset(10 + number as u64)..Offset(11 + number as u64),
            retained: number.is_multiple_of(3).then_some(RetainedOffset {
                offset: Offset(10 + number as u64),
                is_cleared: number.is_multiple_of(2),
            }),
        },
        blocks: vec![(number % 40) as u8],
    };
    let mut topics: Vec<_> = (0..count).map(topic).collect();
    topics.sort_by_key(|topic| (topic_hash(&topic.topic), topic.topic.clone()));
    topics
}

/// So many keys in the order of an index.
fn keys(count: u64) -> Vec<KeyEntry> {
    let key = |number: u64| KeyEntry {
        hash: number.wrapping_mul(0x9E37_79B9_7F4A_7C15),
        offset: Offset(11 + number % 5_000),
    };
    let mut keys: Vec<_> = (1..=count).map(key).collect();
    keys.sort_unstable();
    keys
}

fn index(topic_count: usize, key_count: u64) -> Index {
    Index {
        base: Offset(10),
        next: Offset(10_000),
        data_end: 900_000,
        last_position: 890_000,
        last_checksum: 77,
        first_time_us: -5,
        max_time_us: 123,
        blocks: (0..40).map(block).collect(),
        epochs: vec![(Offset(10), Epoch(1)), (Offset(500), Epoch(4))],
        holes: vec![Hole {
            first: Offset(300),
            next: Offset(310),
            resume: 5_000,
        }],
        key_hashing: KeyHashing::TopicAndKey,
        key_count: key_count as usize,
        keys: keys(key_count),
        topics: topics(topic_count),
    }
}

#[test]
fn an_index_reads_back_whole() {
    for (topics, keys) in [(0, 0), (1, 1), (5_000, 256), (1, 257), (1, 5_000)] {
        let index = index(topics, keys);
        let bytes = index.to_bytes(&identity());
        assert_eq!(Index::from_bytes(&bytes, &identity()), Some(index));
    }
}

#[test]
fn every_flipped_bit_of_an_index_is_noticed() {
    let bytes = index(200, 600).to_bytes(&identity());
    for at in (0..bytes.len()).step_by(3).chain(0..FIXED_BYTES) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        assert_eq!(Index::from_bytes(&flipped, &identity()), None, "byte {at}");
    }
    for length in (0..bytes.len()).step_by(7) {
        assert_eq!(Index::from_bytes(&bytes[..length], &identity()), None);
    }
}

#[test]
fn an_index_of_another_log_or_partition_is_none() {
    let bytes = index(3, 1).to_bytes(&identity());
    let mut other = identity();
    other.partition = PartitionId(8);
    assert_eq!(Index::from_bytes(&bytes, &other), None);
    other = identity();
    other.log_id = LogId::from_bytes([4; 16]);
    assert_eq!(Index::from_bytes(&bytes, &other), None);
}

/// An index of the format before, made from the present one: keys in the order of their records, without a filter.
fn of_format_before(index: &Index) -> Vec<u8> {
    let mut keys = index.keys.clone();
    keys.sort_unstable_by_key(|key| key.offset);
    let mut rows = Vec::new();
    for key in &keys {
        push_numbers(&mut rows, [key.hash, key.offset.0]);
    }
    let mut bytes = index.to_bytes(&identity());
    let head_bytes = Head::bytes(&bytes).expect("a head");
    let head = Head::parse(&bytes[..head_bytes], &identity()).expect("whole");
    let start = head.blocks.end() as usize;
    bytes.splice(start..head.keys.end() as usize, rows.iter().copied());
    bytes[8..12].copy_from_slice(&INDEX_FORMAT_BEFORE.to_le_bytes());
    bytes[120..124].copy_from_slice(&crc32c::crc32c(&rows).to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[16..head_bytes]);
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// A log from before has gigabytes of them: none is built again from its segment.
#[test]
fn an_index_of_the_format_before_reads_with_its_keys_sorted_and_hashed_as_they_were() {
    let mut expected = index(20, 600);
    let bytes = of_format_before(&expected);
    expected.key_hashing = KeyHashing::Key;
    let read = Index::from_bytes(&bytes, &identity());
    assert_eq!(read.as_ref(), Some(&expected));
    let again = Index::from_bytes(&expected.to_bytes(&identity()), &identity());
    assert_eq!(again.as_ref(), Some(&expected), "as it is written now");
    for at in (0..bytes.len()).step_by(7) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        let read = Index::from_bytes(&flipped, &identity());
        assert_eq!(read, None, "byte {at}");
    }
}

#[test]
fn unsorted_keys_and_another_kind_of_hash_are_no_index() {
    let whole = index(1, 600);
    let head_of = |bytes: &[u8]| {
        let head_bytes = Head::bytes(bytes).expect("a head");
        Head::parse(&bytes[..head_bytes], &identity())
    };
    let mut bytes = whole.to_bytes(&identity());
    let Some(StoredKeys::Pages(table)) = head_of(&bytes).map(|head| head.keys) else {
        panic!("the keys are in pages");
    };
    let mut other = whole.keys.clone();
    other[0].hash += 1;
    let range = table.position as usize..table.end() as usize;
    let with = |keys: &[KeyEntry]| {
        let mut bytes = bytes.clone();
        bytes[range.clone()].copy_from_slice(&table.write(keys));
        Index::from_bytes(&bytes, &identity()).map(|index| index.keys)
    };
    assert_eq!(with(&other), Some(other.clone()));
    // The filter must be that of the keys.
    let filter_at = range.end - 40;
    bytes[filter_at] ^= 1;
    assert_eq!(Index::from_bytes(&bytes, &identity()), None);
    bytes[120] = 2;
    let head_bytes = Head::bytes(&bytes).expect("a head");
    let checksum = crc32c::crc32c(&bytes[16..head_bytes]);
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(head_of(&bytes), None, "an unknown kind of hash");
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_no_index_and_no_page(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
        prop_assert_eq!(Index::from_bytes(&bytes, &identity()), None);
        let mut topics = 0;
        let _ = for_each_topic(&bytes, &mut |_, _, _| topics += 1);
        prop_assert!(topics * 30 <= bytes.len());
        let mut claimed = index(1, 1).to_bytes(&identity());
        let at = 12.min(claimed.len());
        claimed.truncate(at);
        claimed.extend_from_slice(&bytes);
        prop_assert_eq!(Index::from_bytes(&claimed, &identity()), None);
    }
}
