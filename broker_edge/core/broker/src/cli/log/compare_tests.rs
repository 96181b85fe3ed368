//! Copies of a log that are equal, that end early, and that differ.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use headwater_cluster::marks::{
    DiskId, Epoch, Offset as Place, PartitionId, ShardId, Starts, Trust,
};
use headwater_log::{Class, ClassConfig, Log, LogConfig, Seams};

use super::*;
use crate::state::StateStore;

struct Site(tempfile::TempDir);

impl Site {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Appends records to the log in this folder, which is made if it does not exist.
    fn append(&self, name: &str, values: &[&[u8]]) {
        let config = LogConfig {
            classes: vec![ClassConfig::new(Class::Internal)],
            ..LogConfig::new(self.at(name))
        };
        let (log, _) = Log::open(config, Seams::system()).unwrap();
        let store = Arc::new(StateStore::open(&log, u64::MAX).unwrap());
        for value in values {
            store.put("session/a", value).unwrap();
        }
        drop(store);
        log.shutdown();
    }

    fn copy(&self, from: &str, to: &str) {
        copy_folder(&self.at(from), &self.at(to));
    }

    fn commit_all(&self, names: &[&str], below: u64) {
        names.iter().for_each(|name| self.commit(name, below));
    }

    /// Writes down what is committed, as a node does.
    fn commit(&self, name: &str, below: u64) {
        let file = ReplicaFile {
            log_id: [1; 16],
            disk: DiskId(1),
            shard: ShardId(0),
            epoch: Epoch(1),
            trust: Trust::Sound,
            starts: Starts(1),
            stopped_cleanly: true,
            hints: vec![(PartitionId(0), Place(below))],
        };
        std::fs::write(self.at(name).join(FILE_NAME), file.encode()).unwrap();
    }

    fn compare(&self, names: &[&str]) -> Result<Comparison, ToolError> {
        let dirs: Vec<_> = names.iter().map(|name| self.at(name)).collect();
        let dirs: Vec<_> = dirs.iter().map(PathBuf::as_path).collect();
        let (seams, stop) = (Seams::system(), AtomicBool::new(false));
        let work = Work {
            seams: &seams,
            progress: &|_, _| {},
            stop: &stop,
        };
        compare(&dirs, work)
    }

    fn refusal(&self, names: &[&str]) -> String {
        self.compare(names).expect_err("it is refused").to_string()
    }
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Two copies that part at offset 3, and a third that ends there.
fn parted() -> Site {
    let site = Site::new();
    site.append("a", &[b"0", b"1", b"2"]);
    site.copy("a", "b");
    site.copy("a", "c");
    site.append("a", &[b"x"]);
    site.append("b", &[b"y"]);
    site
}

#[test]
fn what_is_not_committed_may_differ() {
    let site = parted();
    site.commit_all(&["a", "b", "c"], 3);
    let found = site.compare(&["a", "b", "c"]).unwrap();
    assert!(found.is_equal(), "{}", text(&found));
    assert_eq!((found.partitions[0].start, found.partitions[0].end), (0, 3));
    assert_eq!(text(&found), "internal-0: offsets [0, 3) are equal\n");
}

#[test]
fn a_committed_record_that_differs_is_found_and_a_copy_that_ends_early_is_named() {
    let site = parted();
    site.commit("a", 4);
    site.commit_all(&["b", "c"], 3);
    let found = site.compare(&["a", "b"]).unwrap();
    assert!(!found.is_equal());
    let said = text(&found);
    assert!(
        said.contains("offsets [0, 4) are DIFFERENT") && said.contains("b first differs in [0, 4)"),
        "{said}"
    );
    let found = site.compare(&["a", "c"]).unwrap();
    assert!(found.is_equal(), "one that lags is no other log");
    assert!(text(&found).contains("c ends at 3, and 4 is committed"));
}

#[test]
fn the_first_block_that_differs_is_named() {
    let site = Site::new();
    let many: Vec<&[u8]> = vec![b"v"; 2500];
    site.append("a", &many);
    site.copy("a", "b");
    site.append("a", &[b"x"]);
    site.append("b", &[b"y"]);
    site.commit_all(&["a", "b"], 2501);
    let found = site.compare(&["a", "b"]).unwrap();
    let (from, until) = (2048, 2501);
    let dir = site.at("b").display().to_string();
    assert_eq!(
        found.partitions[0].different,
        [Different { dir, from, until }]
    );
}

#[test]
fn damage_is_not_called_equal() {
    let site = Site::new();
    // Two batches: damage at the end of a log is an unfinished write.
    site.append("a", &[b"0"]);
    site.append("a", &[b"1", b"2"]);
    site.copy("a", "c");
    site.commit_all(&["a", "c"], 3);
    let mut stack = vec![site.at("c")];
    while let Some(dir) = stack.pop() {
        for entry in std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            if entry.is_dir() {
                stack.push(entry);
            } else if entry.extension().is_some_and(|end| end == "seg") {
                let mut bytes = std::fs::read(&entry).unwrap();
                let at = bytes
                    .windows(9)
                    .position(|nine| nine == b"session/a")
                    .unwrap();
                bytes[at] ^= 1;
                std::fs::write(&entry, bytes).unwrap();
            }
        }
    }
    let found = site.compare(&["a", "c"]).unwrap();
    assert!(!found.is_equal());
    assert!(
        text(&found).contains("headwater log verify"),
        "{}",
        text(&found)
    );
}

#[test]
fn folders_that_are_no_copies_are_refused() {
    let site = parted();
    site.commit("a", 3);
    let alone = site.refusal(&["a", "b"]);
    assert!(
        alone.contains("shard-0.replica: ") && alone.contains("name the data folder of a node"),
        "{alone}"
    );
    site.append("other", &[b"0"]);
    site.commit("other", 1);
    assert!(
        site.refusal(&["a", "other"])
            .contains("name copies of one log")
    );
    std::fs::write(site.at("b").join(FILE_NAME), "x").unwrap();
    assert!(site.refusal(&["a", "b"]).contains("it has 1 bytes"));
}
