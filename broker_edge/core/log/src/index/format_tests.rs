use proptest::prelude::*;

use super::*;
use crate::batch::record_batch::tests::identity;
use crate::ids::{LogId, PartitionId};

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

fn index(topic_count: usize) -> Index {
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
        keys: vec![KeyEntry {
            hash: 9,
            offset: Offset(11),
        }],
        topics: topics(topic_count),
    }
}

#[test]
fn an_index_reads_back_whole() {
    for topics in [0, 1, 5_000] {
        let index = index(topics);
        let bytes = index.to_bytes(&identity());
        assert_eq!(Index::from_bytes(&bytes, &identity()), Some(index));
    }
}

#[test]
fn every_flipped_bit_of_an_index_is_noticed() {
    let bytes = index(200).to_bytes(&identity());
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
    let bytes = index(3).to_bytes(&identity());
    let mut other = identity();
    other.partition = PartitionId(8);
    assert_eq!(Index::from_bytes(&bytes, &other), None);
    other = identity();
    other.log_id = LogId::from_bytes([4; 16]);
    assert_eq!(Index::from_bytes(&bytes, &other), None);
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_no_index_and_no_page(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
        prop_assert_eq!(Index::from_bytes(&bytes, &identity()), None);
        let mut topics = 0;
        let _ = for_each_topic(&bytes, &mut |_, _, _| topics += 1);
        prop_assert!(topics * 30 <= bytes.len());
        let mut claimed = index(1).to_bytes(&identity());
        let at = 12.min(claimed.len());
        claimed.truncate(at);
        claimed.extend_from_slice(&bytes);
        prop_assert_eq!(Index::from_bytes(&claimed, &identity()), None);
    }
}
