//! Changes to a data folder: single bits and bytes, fields with critical values, moved batches, truncated, swapped and
//! lost files. Most changes recompute the checksums.

use std::ops::Range;

use crate::image::Image;
use crate::support::segment::{BATCH_HEADER, SEGMENT_HEADER, batches};
use crate::support::sim::Random;

const ENTRY: usize = 20;

/// Position and width of the fields of a batch header, a segment header, a mark and an index.
const BATCH_FIELDS: &[(usize, usize)] = &[
    (0, 4),
    (8, 8),
    (16, 8),
    (24, 8),
    (32, 4),
    (36, 2),
    (38, 2),
    (40, 1),
    (41, 1),
    (42, 2),
    (44, 4),
    (48, 4),
    (52, 4),
    (56, 4),
    (60, 4),
];
const ENTRY_FIELDS: &[(usize, usize)] =
    &[(0, 2), (2, 2), (4, 4), (8, 4), (12, 4), (16, 2), (18, 2)];
const SEGMENT_FIELDS: &[(usize, usize)] = &[
    (8, 4),
    (16, 8),
    (32, 4),
    (36, 1),
    (37, 1),
    (40, 8),
    (48, 8),
    (56, 8),
    (64, 8),
];
const MARK_FIELDS: &[(usize, usize)] = &[(8, 8), (16, 8), (24, 8), (32, 8), (40, 8), (52, 4)];
const INDEX_FIELDS: &[(usize, usize)] = &[
    (8, 4),
    (32, 4),
    (36, 4),
    (40, 8),
    (48, 8),
    (56, 8),
    (64, 8),
    (72, 8),
    (80, 8),
    (88, 4),
    (92, 4),
    (96, 4),
    (100, 4),
    (104, 4),
    (108, 4),
    (112, 4),
];
/// The list of the topics of all sealed segments.
const TOPICS_FIELDS: &[(usize, usize)] =
    &[(8, 4), (16, 8), (32, 4), (36, 4), (40, 4), (44, 8), (52, 4)];
const INDEX_FIXED: usize = 128;

pub struct Mutator<'a> {
    pub image: &'a mut Image,
    pub random: &'a mut Random,
    /// Log id and secret in the form that the checksums use.
    log_id: [u8; 16],
    secret: [u8; 8],
}

fn read(bytes: &[u8], at: usize, width: usize) -> u64 {
    let mut word = [0; 8];
    word[..width].copy_from_slice(&bytes[at..at + width]);
    u64::from_le_bytes(word)
}

fn write(bytes: &mut [u8], at: usize, width: usize, value: u64) {
    bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
}

impl<'a> Mutator<'a> {
    pub fn new(image: &'a mut Image, random: &'a mut Random) -> Self {
        let (mut log_id, mut secret) = ([0; 16], [0; 8]);
        if let Some(at) = image.with_suffix(".seg").first() {
            log_id.copy_from_slice(&image.files[*at].1[16..32]);
            secret.copy_from_slice(&image.files[*at].1[64..72]);
        }
        Self {
            image,
            random,
            log_id,
            secret,
        }
    }

    /// One to six changes.
    pub fn mutate(&mut self) {
        for _ in 0..=self.random.below(6) {
            match self.random.below(12) {
                0 | 1 => self.anywhere(),
                2..=5 => self.a_batch(),
                6 => self.move_batch(),
                7 => self.fields(".idx", INDEX_FIELDS),
                8 if self.random.chance(4) => self.fields("/topics", TOPICS_FIELDS),
                8 => self.fields(".idx", INDEX_FIELDS),
                9 => self.fields("mark", MARK_FIELDS),
                10 => self.a_header_or_meta(),
                _ => self.a_file(),
            }
        }
    }

    fn pick(&mut self, suffix: &str) -> Option<usize> {
        let of_kind = self.image.with_suffix(suffix);
        (!of_kind.is_empty()).then(|| of_kind[self.random.below(of_kind.len())])
    }

    /// A critical value: the end of a range, a neighbour of the old value, or a meaningless one.
    fn value(&mut self, old: u64, width: usize) -> u64 {
        let top = u64::MAX >> (64 - 8 * width);
        match self.random.below(10) {
            0 => 0,
            1 => 1,
            2 => top,
            3 => top - self.random.below(70) as u64,
            4 => top / 2 + self.random.below(3) as u64,
            5 => old.wrapping_add(1),
            6 => old.wrapping_sub(1),
            7 => old.wrapping_add(self.random.below(5000) as u64),
            8 => old ^ (1 << self.random.below(8 * width)),
            _ => self.random.next() & top,
        }
    }

    fn change(&mut self, file: usize, base: usize, (at, width): (usize, usize)) {
        if base + at + width <= self.image.files[file].1.len() {
            let old = read(&self.image.files[file].1, base + at, width);
            let value = self.value(old, width);
            write(&mut self.image.files[file].1, base + at, width, value);
        }
    }

    fn anywhere(&mut self) {
        let file = self.random.below(self.image.files.len());
        let length = self.image.files[file].1.len();
        if length > 0 {
            let at = self.random.below(length);
            let width = [1, 2, 4, 8][self.random.below(4)];
            self.change(file, at, (0, width));
            if self.random.chance(4) {
                self.seal(file);
            }
        }
    }

    /// Changes fields of a batch and of its entries and tables, then usually fixes its checksum, sometimes its length.
    fn a_batch(&mut self) {
        let Some(file) = self.pick(".seg") else {
            return;
        };
        let batches = batches(&self.image.files[file].1);
        if batches.is_empty() {
            return;
        }
        let batch = batches[self.random.below(batches.len())].clone();
        let bytes = &self.image.files[file].1;
        let records = read(bytes, batch.start + 32, 4) as usize;
        let tables = (read(bytes, batch.start + 44, 4) + read(bytes, batch.start + 48, 4)) as usize;
        match self.random.below(4) {
            0 | 1 => {
                let field = BATCH_FIELDS[self.random.below(BATCH_FIELDS.len())];
                self.change(file, batch.start, field);
            }
            2 => {
                let entry = BATCH_HEADER + tables + self.random.below(records.max(1)) * ENTRY;
                let field = ENTRY_FIELDS[self.random.below(ENTRY_FIELDS.len())];
                self.change(file, batch.start + entry, field);
            }
            _ => {
                let at = self.random.below(batch.len());
                self.change(file, batch.start + at, (0, 1));
            }
        }
        if self.random.chance(7) {
            let end = (batch.start + 4 + read(&self.image.files[file].1, batch.start, 4) as usize)
                .min(self.image.files[file].1.len());
            self.seal_batch(file, batch.start..end.max(batch.start + 8));
        }
    }

    /// Repeats, removes or moves a batch, perhaps with another offset or epoch.
    fn move_batch(&mut self) {
        let (Some(from), Some(to)) = (self.pick(".seg"), self.pick(".seg")) else {
            return;
        };
        let (sources, targets) = (
            batches(&self.image.files[from].1),
            batches(&self.image.files[to].1),
        );
        if sources.is_empty() {
            return;
        }
        let source = sources[self.random.below(sources.len())].clone();
        let batch = self.image.files[from].1[source].to_vec();
        let at = match targets.len() {
            0 => SEGMENT_HEADER,
            many => {
                let target = &targets[self.random.below(many)];
                if self.random.chance(4) {
                    target.start
                } else {
                    target.end
                }
            }
        };
        let end = at + batch.len();
        let bytes = &mut self.image.files[to].1;
        if self.random.chance(4) {
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[at..end].copy_from_slice(&batch);
        } else {
            bytes.resize(bytes.len().max(at), 0);
            bytes.splice(at..at, batch);
        }
        if self.random.chance(4) {
            self.change(to, at, (8, 8));
        }
        if self.random.chance(2) {
            self.change(to, at, (16, 8));
        }
        self.seal_batch(to, at..end);
    }

    fn fields(&mut self, suffix: &str, fields: &[(usize, usize)]) {
        let Some(file) = self.pick(suffix) else {
            return;
        };
        let field = fields[self.random.below(fields.len())];
        self.change(file, 0, field);
        let length = self.image.files[file].1.len();
        if length > 104 && self.random.chance(4) {
            let at = 104 + self.random.below(length - 104);
            self.change(file, at, (0, [1, 4, 8][at % 3]));
        }
        if self.random.chance(7) {
            self.seal(file);
        }
    }

    fn a_header_or_meta(&mut self) {
        if self.random.chance(4) {
            let Some(file) = self.pick(".seg") else {
                return;
            };
            let field = SEGMENT_FIELDS[self.random.below(SEGMENT_FIELDS.len())];
            self.change(file, 0, field);
            let bytes = &mut self.image.files[file].1;
            if bytes.len() >= 72 {
                let checksum = crc32c::crc32c(&bytes[16..72]);
                write(bytes, 12, 4, u64::from(checksum));
            }
        } else if let Some(file) = self.pick("log.meta") {
            let length = self.image.files[file].1.len();
            let at = self.random.below(length.max(1));
            let digits = [b'9', b'0', b'-', b'"', b'[', b'{', 0xff, b'\n'];
            let byte = digits[self.random.below(digits.len())];
            self.image.files[file]
                .1
                .get_mut(at)
                .into_iter()
                .for_each(|old| *old = byte);
            self.seal(file);
        }
    }

    /// Truncates, extends, empties, removes, swaps or copies files.
    fn a_file(&mut self) {
        let file = self.random.below(self.image.files.len());
        let other = self.random.below(self.image.files.len());
        let length = self.image.files[file].1.len();
        match self.random.below(7) {
            0 => {
                let keep = self.random.below(length + 1);
                self.image.files[file].1.truncate(keep);
            }
            1 => {
                let more = self.random.below(9000);
                let byte = if self.random.chance(4) { 0 } else { 0xa5 };
                self.image.files[file].1.resize(length + more, byte);
            }
            2 => self.image.files[file].1.clear(),
            3 => {
                self.image.files.remove(file);
                if self.image.files.is_empty() {
                    self.image.files.push(("/data/lock".into(), Vec::new()));
                }
            }
            4 => {
                let bytes = self.image.files[other].1.clone();
                self.image.files[file].1 = bytes;
            }
            5 => {
                let path = &self.image.files[file].0;
                let base = self.random.next() >> [0, 40, 56][other % 3];
                let name = format!(
                    "{base:020}.{}",
                    ["seg", "idx", "torn", "damaged", "tmp"][other % 5]
                );
                let copy = (path.with_file_name(name), self.image.files[file].1.clone());
                self.image.files.push(copy);
            }
            _ => {
                let bytes = &mut self.image.files[file].1;
                for byte in bytes.iter_mut().take(2000) {
                    *byte = self.random.next() as u8;
                }
            }
        }
    }

    fn partition_of(&self, file: usize) -> u32 {
        let bytes = &self.image.files[file].1;
        u32::from(
            bytes.len() >= SEGMENT_HEADER && bytes[32] == 1
                || self.image.files[file].0.starts_with("/data/telemetry-0"),
        )
    }

    fn seal_batch(&mut self, file: usize, batch: Range<usize>) {
        let partition = self.partition_of(file);
        let bytes = &mut self.image.files[file].1;
        if batch.end <= bytes.len() && batch.len() >= BATCH_HEADER {
            let checksum = crc32c::crc32c(&bytes[batch.start + 8..batch.end]);
            let checksum = crc32c::crc32c_append(checksum, &self.log_id);
            let checksum = crc32c::crc32c_append(checksum, &partition.to_le_bytes());
            let checksum = crc32c::crc32c_append(checksum, &self.secret);
            write(bytes, batch.start + 4, 4, u64::from(checksum));
        }
    }

    /// Recomputes the checksum of a small file.
    fn seal(&mut self, file: usize) {
        let partition = self.partition_of(file);
        let name = self.image.files[file].0.to_string_lossy().into_owned();
        let bytes = &mut self.image.files[file].1;
        if name.ends_with(".idx") && bytes.len() >= INDEX_FIXED {
            seal_index(bytes);
        } else if name.ends_with("/topics") && bytes.len() > 16 {
            let checksum = crc32c::crc32c(&bytes[16..]);
            write(bytes, 12, 4, u64::from(checksum));
        } else if name.ends_with("mark") && bytes.len() >= 56 {
            let checksum = crc32c::crc32c(&bytes[..48]);
            let checksum = crc32c::crc32c_append(checksum, &self.log_id);
            let checksum = crc32c::crc32c_append(checksum, &partition.to_le_bytes());
            let checksum = crc32c::crc32c_append(checksum, &self.secret);
            write(bytes, 48, 4, u64::from(checksum));
        } else if name.ends_with("log.meta") {
            let line = bytes
                .split(|byte| *byte == b'\n')
                .next()
                .unwrap_or_default()
                .to_vec();
            *bytes = line.clone();
            bytes.extend_from_slice(format!("\n{:08x}\n", crc32c::crc32c(&line)).as_bytes());
        }
    }
}

/// Recomputes the checksums of an index, for every section that its counts place within the file.
fn seal_index(bytes: &mut [u8]) {
    let count = |bytes: &[u8], at: usize| read(bytes, 88 + at * 4, 4) as usize;
    let head = INDEX_FIXED + count(bytes, 1) * 16 + count(bytes, 2) * 24;
    let blocks = head..head + count(bytes, 0) * 24;
    let is_paged = read(bytes, 8, 4) == 3;
    let keys = blocks.end..blocks.end + keys_bytes(count(bytes, 4), is_paged);
    let table = keys.end..keys.end + count(bytes, 6) * 20;
    if table.end <= bytes.len() {
        for row in table.clone().step_by(20) {
            let start = table.end + read(bytes, row + 8, 4) as usize;
            let end = start + read(bytes, row + 12, 4) as usize;
            if let Some(page) = bytes.get(start..end) {
                let checksum = crc32c::crc32c(page);
                write(bytes, row + 16, 4, u64::from(checksum));
            }
        }
    }
    for (section, at) in [(blocks, 116), (keys.clone(), 120), (table, 124)] {
        let section = bytes.get(section).filter(|_| at != 120 || !is_paged);
        if let Some(section) = section {
            let checksum = crc32c::crc32c(section);
            write(bytes, at, 4, u64::from(checksum));
        }
    }
    if let Some(section) = bytes.get(16..head) {
        let checksum = crc32c::crc32c(section);
        write(bytes, 12, 4, u64::from(checksum));
    }
    if is_paged && keys.end <= bytes.len() {
        seal_keys(bytes, keys.start);
    }
}

/// Bytes of so many keys, and of their filter: 12 bits a key, in blocks of 32 bytes.
fn key_runs(count: usize) -> [usize; 2] {
    [count * 16, (count * 12).div_ceil(256) * 32]
}

/// Length of the keys of an index, with their filter and the checksums where they are in pages.
fn keys_bytes(count: usize, is_paged: bool) -> usize {
    let paged = |bytes: usize| bytes + bytes.div_ceil(4096) * 4;
    match is_paged {
        true => key_runs(count).map(paged).iter().sum(),
        false => count * 16,
    }
}

/// Recomputes the checksums of the pages of keys and of their filter, which begin at `at`.
fn seal_keys(bytes: &mut [u8], mut at: usize) {
    let head = read(bytes, 12, 4) as u32;
    let mut number = 0_u32;
    for mut left in key_runs(read(bytes, 104, 4) as usize) {
        while left > 0 {
            let end = at + left.min(4096);
            let seed = crc32c::crc32c_append(head, &number.to_le_bytes());
            let checksum = crc32c::crc32c_append(seed, &bytes[at..end]);
            write(bytes, end, 4, u64::from(checksum));
            left -= end - at;
            (at, number) = (end + 4, number + 1);
        }
    }
}
