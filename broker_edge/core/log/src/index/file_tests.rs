use super::*;
use crate::batch::record_batch::tests::identity;
use crate::ids::Epoch;
use crate::index::format;
use crate::index::model::{Hole, Index};
use crate::vfs::files::Files;
use crate::vfs::system::SystemFiles;

/// An index with this number of entries in each table, as a lookup keeps it.
fn kept(blocks: u64, epochs: u64, holes: u64, topics: usize) -> IndexFile {
    let hole = |number| Hole {
        first: Offset(number),
        next: Offset(number + 1),
        resume: 4096,
    };
    let index = Index {
        blocks: (0..blocks).map(format::tests::block).collect(),
        epochs: (0..epochs)
            .map(|number| (Offset(number), Epoch(number)))
            .collect(),
        holes: (0..holes).map(hole).collect(),
        topics: format::tests::topics(topics),
        ..Index::empty(Offset(0))
    };
    let bytes = index.to_bytes(&identity());
    let dir = tempfile::tempdir().expect("a folder");
    let file = SystemFiles
        .open(&dir.path().join("idx"), OpenMode::Create)
        .expect("a file");
    file.write_all_at(&bytes, 0).expect("written");
    let head_bytes = Head::bytes(&bytes).expect("a head");
    let head = Head::parse(&bytes[..head_bytes], &identity()).expect("whole");
    let pages = None;
    let opened = IndexFile { file, head, pages };
    opened.load().expect("whole")
}

/// The indexes that stay in memory are bounded by what they say.
#[test]
fn every_table_of_an_index_in_memory_counts_as_what_it_takes() {
    let least = kept(1, 1, 0, 0).memory();
    assert!(least >= size_of::<IndexFile>());
    let more = |index: IndexFile| index.memory() - least;
    let epoch_bytes = size_of::<(Offset, Epoch)>();
    assert_eq!(more(kept(1001, 1, 0, 0)), 1000 * size_of::<Block>());
    assert_eq!(more(kept(1, 1001, 0, 0)), 1000 * epoch_bytes);
    assert_eq!(more(kept(1, 1, 1000, 0)), 1000 * size_of::<Hole>());
    let large = kept(1, 1, 0, 20_000);
    let pages = large.pages.as_ref().map_or(0, Vec::len);
    assert!(pages > 100, "{pages}");
    assert_eq!(more(large), pages * size_of::<Page>());
}
