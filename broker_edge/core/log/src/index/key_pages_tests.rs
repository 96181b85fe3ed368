use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::index::keys::{WantedKeys, filter_memory};

/// A file that counts the reads of it.
struct Bytes {
    bytes: Vec<u8>,
    reads: AtomicUsize,
}

impl Bytes {
    fn new(bytes: Vec<u8>) -> Self {
        let reads = AtomicUsize::new(0);
        Self { bytes, reads }
    }

    /// Reads while `f` runs.
    fn reads_of<T>(&self, f: impl FnOnce(&Self) -> T) -> (T, usize) {
        let before = self.reads.load(Ordering::Relaxed);
        let answer = f(self);
        (answer, self.reads.load(Ordering::Relaxed) - before)
    }
}

impl File for Bytes {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let rest = self.bytes.get(position as usize..).unwrap_or_default();
        let read = rest.len().min(buffer.len());
        buffer[..read].copy_from_slice(&rest[..read]);
        Ok(read)
    }
    fn write_all_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }
    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

const POSITION: u64 = 100;

fn table(count: usize) -> KeyTable {
    KeyTable {
        position: POSITION,
        count,
        hashing: KeyHashing::TopicAndKey,
        head_checksum: 77,
    }
}

/// A file with these keys behind something else.
fn file_of(mut keys: Vec<KeyEntry>) -> (KeyTable, Bytes) {
    keys.sort_unstable();
    let table = table(keys.len());
    let mut bytes = vec![1; POSITION as usize];
    bytes.extend(table.write(&keys));
    assert_eq!(bytes.len() as u64, table.end());
    (table, Bytes::new(bytes))
}

fn numbered(numbers: Range<u64>) -> Vec<KeyEntry> {
    let entry = |number: u64| KeyEntry {
        hash: KeyHashing::TopicAndKey.hash("t", &number.to_string()),
        offset: Offset(number),
    };
    numbers.map(entry).collect()
}

fn found_in(table: KeyTable, file: &Bytes, hash: u64) -> Result<Vec<u64>, IndexDamaged> {
    let mut offsets = Vec::new();
    let wanted = table.filtered(file, &[(hash, 5)])?;
    table.find(file, &wanted, &mut |number, offset| {
        assert_eq!(number, 5);
        offsets.push(offset.0);
    })?;
    Ok(offsets)
}

#[test]
fn every_key_of_a_table_is_found_and_no_other() {
    for count in [1, 2, 255, 256, 257, 511, 512, 513, 5_000] {
        let (table, file) = file_of(numbered(0..count));
        for key in numbered(0..count) {
            let found = found_in(table, &file, key.hash).expect("whole");
            assert_eq!(found, [key.offset.0], "of {count}");
        }
        for key in numbered(10_000..12_000) {
            let found = found_in(table, &file, key.hash).expect("whole");
            assert_eq!(found, [0_u64; 0], "of {count}");
        }
        for edge in [0, u64::MAX] {
            let all = [(edge, 5)];
            let none = &mut |_, _| panic!("it is not there");
            table.find(&file, &all, none).expect("whole");
        }
    }
}

/// Hashes that somebody has chosen lie close together, also in one page.
#[test]
fn keys_with_hashes_that_are_not_spread_are_found_with_few_reads() {
    let close = |number: u64| KeyEntry {
        hash: (7 << 40) + number / 300,
        offset: Offset(number),
    };
    let (table, file) = file_of((0..100_000).map(close).collect());
    for number in [0, 1, 150, 299, 300, 301, 333] {
        let hash = (7 << 40) + number;
        let (found, reads) = file.reads_of(|file| found_in(table, file, hash).expect("whole"));
        let expected: Vec<u64> = (number * 300..).take(EQUAL_MAX).collect();
        let expected: Vec<u64> = expected.into_iter().filter(|at| *at < 100_000).collect();
        assert_eq!(found, expected, "of hash {number}");
        assert!(reads < 20, "{reads} reads");
    }
    assert_eq!(found_in(table, &file, 7 << 41).expect("whole"), [0_u64; 0]);
}

#[test]
fn a_look_up_reads_a_page_of_the_filter_and_about_two_of_the_keys() {
    let (table, file) = file_of(numbered(0..200_000));
    let mut worst = 0;
    let ((), all) = file.reads_of(|file| {
        for key in numbered(0..1_000) {
            let (found, reads) = file.reads_of(|file| found_in(table, file, key.hash));
            assert_eq!(found.expect("whole"), [key.offset.0]);
            worst = worst.max(reads);
        }
    });
    assert!(all < 3_500, "{all} reads of 1,000 keys");
    assert!(worst <= 6, "{worst} reads of one key");
    // Keys of one append share the pages.
    let keys: Vec<String> = (1_000_000..1_010_000).map(|n| n.to_string()).collect();
    let keys = keys.iter().enumerate();
    let wanted = WantedKeys::new(keys.map(|(number, key)| (number as u32, "t", &**key)));
    let wanted = wanted.hashed(KeyHashing::TopicAndKey);
    let (passed, reads) = file.reads_of(|file| table.filtered(file, wanted).expect("whole"));
    assert!(reads <= filter_memory(200_000).div_ceil(PAGE_BYTES));
    assert!(passed.len() < 100, "{} of 10,000 pass", passed.len());
}

#[test]
fn a_filter_in_memory_is_the_one_of_the_file() {
    let keys = numbered(0..5_000);
    let (table, file) = file_of(keys.clone());
    let filter = table.read_filter(&file).expect("whole");
    assert_eq!(filter, KeyFilter::new(KeyHashing::TopicAndKey, &keys));
}

/// Whichever byte is wrong, a key is found or the index is known to be damaged.
#[test]
fn no_damage_hides_a_key() {
    let keys = numbered(0..600);
    let (table, file) = file_of(keys.clone());
    for at in (POSITION as usize..file.bytes.len()).step_by(11) {
        let mut bytes = file.bytes.clone();
        bytes[at] ^= 1 << (at % 8);
        let damaged = Bytes::new(bytes);
        for key in keys.iter().step_by(37) {
            let found = found_in(table, &damaged, key.hash);
            assert!(found.is_err() || found.is_ok_and(|found| found == [key.offset.0]));
        }
    }
    let read = |length: usize| {
        let short = Bytes::new(file.bytes[..length].to_vec());
        let found = keys.iter().map(|key| found_in(table, &short, key.hash));
        (
            found.filter(Result::is_err).count(),
            table.read_filter(&short),
        )
    };
    let (damaged, filter) = read(file.bytes.len() - 1);
    assert!(damaged > 0 && filter.is_err());
    assert_eq!(read(POSITION as usize).0, keys.len());
}

/// The system may show the pages of an earlier file after a power cut.
#[test]
fn a_page_of_another_index_or_place_is_damage() {
    let (table, file) = file_of(numbered(0..600));
    let hash = numbered(0..1)[0].hash;
    let other = KeyTable {
        head_checksum: 78,
        ..table
    };
    assert!(found_in(other, &file, hash).is_err());
    let page = PAGE_BYTES + CHECKSUM_BYTES;
    let start = POSITION as usize;
    let mut bytes = file.bytes.clone();
    bytes.copy_within(start..start + page, start + page);
    let moved = Bytes::new(bytes);
    let keys = numbered(0..600);
    let is_found =
        |key: &KeyEntry| found_in(table, &moved, key.hash).is_ok_and(|of| !of.is_empty());
    let found = keys.iter().filter(|key| is_found(key)).count();
    assert!(found > 0 && found < 600, "{found}");
    assert!(
        keys.iter()
            .all(|key| found_in(table, &moved, key.hash).is_err() || is_found(key))
    );
}
