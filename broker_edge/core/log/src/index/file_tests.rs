use super::*;
use crate::batch::layout::Identity;
use crate::ids::{Epoch, LogId, PartitionId, Secret};
use crate::index::model::{Hole, Index, IndexTopic, TopicExtent};
use crate::vfs::files::Files;
use crate::vfs::system::SystemFiles;

/// An index with so many entries in each table, as a lookup keeps it.
fn kept(blocks: u64, epochs: u64, holes: u64, topics: usize) -> IndexFile {
    let identity = Identity {
        log_id: LogId::from_bytes([3; 16]),
        partition: PartitionId(7),
        secret: Secret::from_bytes([5; 8]),
    };
    let block = |number| Block {
        offset: Offset(number),
        position: 4096 + number * 65_536,
        max_time_us: 1,
    };
    let hole = |number| Hole {
        first: Offset(number),
        next: Offset(number + 1),
        resume: 4096,
    };
    let topic = |number: usize| IndexTopic {
        topic: format!("devices/{number}/telemetry").into(),
        extent: TopicExtent {
            range: Offset(0)..Offset(1),
            retained: None,
        },
        blocks: vec![0],
    };
    let mut topics: Vec<_> = (0..topics).map(topic).collect();
    topics.sort_by_key(|topic| topic_hash(&topic.topic));
    let index = Index {
        base: Offset(0),
        next: Offset(100_000),
        data_end: 900_000,
        last_position: 890_000,
        last_checksum: 77,
        first_time_us: 1,
        max_time_us: 1,
        blocks: (0..blocks).map(block).collect(),
        epochs: (0..epochs)
            .map(|number| (Offset(number), Epoch(number)))
            .collect(),
        holes: (0..holes).map(hole).collect(),
        keys: Vec::new(),
        topics,
    };
    let bytes = index.to_bytes(&identity);
    let dir = tempfile::tempdir().expect("a folder");
    let file = SystemFiles
        .open(&dir.path().join("idx"), OpenMode::Create)
        .expect("a file");
    file.write_all_at(&bytes, 0).expect("written");
    let head_bytes = Head::bytes(&bytes).expect("a head");
    let head = Head::parse(&bytes[..head_bytes], &identity).expect("whole");
    let (blocks, pages) = (Vec::new(), Vec::new());
    let opened = IndexFile {
        file,
        head,
        blocks,
        pages,
    };
    opened.load().expect("whole")
}

/// The indexes that stay in memory are bounded by what they say.
#[test]
fn every_table_of_an_index_in_memory_counts_as_what_it_takes() {
    let least = kept(1, 1, 0, 0).memory();
    assert!(least >= size_of::<IndexFile>());
    let more = |index: IndexFile| index.memory() - least;
    assert_eq!(more(kept(1001, 1, 0, 0)), 1000 * size_of::<Block>());
    assert_eq!(
        more(kept(1, 1001, 0, 0)),
        1000 * size_of::<(Offset, Epoch)>()
    );
    assert_eq!(more(kept(1, 1, 1000, 0)), 1000 * size_of::<Hole>());
    let large = kept(1, 1, 0, 20_000);
    let pages = large.pages.len();
    assert!(pages > 100, "{pages}");
    assert_eq!(more(large), pages * size_of::<Page>());
}
