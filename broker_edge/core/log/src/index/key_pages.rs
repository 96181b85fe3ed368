//! The keys of an index file, sorted by hash, and their filter: written in pages with a checksum each, and searched
//! with a few short reads.
//!
//! Hashes are evenly spread, so the place of a hash in the table follows from the hash itself; mostly one or two pages
//! are read.

use std::ops::Range;

use crate::batch::layout::{u32_at, u64_at};
use crate::ids::Offset;
use crate::index::keys::{
    FILTER_BLOCK_BYTES, KeyEntry, KeyFilter, KeyHashing, WantedKey, block_has, filter_bits,
    filter_block_at, filter_block_of, filter_blocks,
};
use crate::index::model::{IndexDamaged, read_bytes};
use crate::vfs::files::{File, read_full};

pub(crate) const KEY_BYTES: usize = 16;
/// Of keys or filter in a page; the checksum follows.
pub(crate) const PAGE_BYTES: usize = 4096;
pub(crate) const CHECKSUM_BYTES: usize = 4;
const PAGE_BLOCKS: usize = PAGE_BYTES / FILTER_BLOCK_BYTES;
/// So many guesses of where a hash is, before the rest is halved: hashes that are not evenly spread end there.
const GUESSES_MAX: usize = 4;
/// Keys of one hash that a search gives, oldest first.
const EQUAL_MAX: usize = 256;

/// Where the keys of an index file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyTable {
    pub position: u64,
    pub count: usize,
    pub hashing: KeyHashing,
    /// Checksum of the head. The checksum of a page covers it, so that no page of another index is taken for one.
    pub head_checksum: u32,
}

/// A run of pages.
#[derive(Clone, Copy)]
struct Pages {
    position: u64,
    /// Without checksums.
    bytes: usize,
    first_number: u32,
    head_checksum: u32,
}

impl KeyTable {
    fn keys(&self) -> Pages {
        Pages {
            position: self.position,
            bytes: self.count * KEY_BYTES,
            first_number: 0,
            head_checksum: self.head_checksum,
        }
    }

    fn filter(&self) -> Pages {
        let keys = self.keys();
        Pages {
            position: keys.end(),
            bytes: filter_blocks(self.count) * FILTER_BLOCK_BYTES,
            first_number: keys.count() as u32,
            ..keys
        }
    }

    /// Position after the keys and the filter.
    pub fn end(&self) -> u64 {
        self.filter().end()
    }

    /// The bytes of the keys, which are sorted, and of their filter.
    pub fn write(&self, keys: &[KeyEntry]) -> Vec<u8> {
        debug_assert!(keys.len() == self.count && keys.is_sorted());
        let mut rows = Vec::with_capacity(keys.len() * KEY_BYTES);
        for key in keys {
            rows.extend_from_slice(&key.hash.to_le_bytes());
            rows.extend_from_slice(&key.offset.0.to_le_bytes());
        }
        let mut out = Vec::with_capacity((self.end() - self.position) as usize);
        self.keys().write(&rows, &mut out);
        let filter = KeyFilter::new(self.hashing, keys);
        self.filter().write(&filter.to_bytes(), &mut out);
        out
    }

    /// The keys from all bytes of the table; None unless everything is as [`write`](Self::write) makes it.
    pub fn parse(&self, bytes: &[u8]) -> Option<Vec<KeyEntry>> {
        let (keys, filter) = (self.keys(), self.filter());
        let middle = usize::try_from(keys.end() - self.position).ok()?;
        let (rows, blocks) = bytes.split_at_checked(middle)?;
        let keys: Vec<KeyEntry> = entries(&keys.parse(rows)?).collect();
        let blocks = filter.parse(blocks)?;
        let is_whole = keys.is_sorted()
            && KeyFilter::new(self.hashing, &keys) == KeyFilter::from_bytes(self.hashing, &blocks);
        is_whole.then_some(keys)
    }

    pub fn read_filter(&self, file: &dyn File) -> Result<KeyFilter, IndexDamaged> {
        let filter = self.filter();
        let length = usize::try_from(filter.end() - filter.position).map_err(|_| IndexDamaged)?;
        let bytes = read_bytes(file, filter.position, length)?;
        let blocks = filter.parse(&bytes).ok_or(IndexDamaged)?;
        Ok(KeyFilter::from_bytes(self.hashing, &blocks))
    }

    /// Those of the wanted keys, which are ascending, that the filter in the file passes.
    pub fn filtered(
        &self,
        file: &dyn File,
        wanted: &[WantedKey],
    ) -> Result<Vec<WantedKey>, IndexDamaged> {
        let mut page = PageReader::new(file, self.filter());
        let blocks = filter_blocks(self.count);
        let mut passed = Vec::new();
        for (hash, number) in wanted {
            let block = filter_block_of(*hash, blocks);
            let bytes = page.read(block / PAGE_BLOCKS)?;
            let at = block % PAGE_BLOCKS * FILTER_BLOCK_BYTES;
            if block_has(&filter_block_at(bytes, at), &filter_bits(*hash)) {
                passed.push((*hash, *number));
            }
        }
        Ok(passed)
    }

    /// Gives the offsets of the wanted keys that are in the table, each with its number.
    pub fn find(
        &self,
        file: &dyn File,
        wanted: &[WantedKey],
        found: &mut dyn FnMut(u32, Offset),
    ) -> Result<(), IndexDamaged> {
        let mut page = PageReader::new(file, self.keys());
        for (hash, number) in wanted {
            self.find_one(&mut page, *hash, &mut |offset| found(*number, offset))?;
        }
        Ok(())
    }

    fn find_one(
        &self,
        page: &mut PageReader<'_>,
        hash: u64,
        found: &mut dyn FnMut(Offset),
    ) -> Result<(), IndexDamaged> {
        let (mut number, pages) = (first_page(page, hash)?, page.pages.count());
        let mut equal = 0;
        while number < pages {
            for entry in entries(page.read(number)?) {
                if entry.hash > hash || equal == EQUAL_MAX {
                    return Ok(());
                }
                if entry.hash == hash {
                    equal += 1;
                    found(entry.offset);
                }
            }
            number += 1;
        }
        Ok(())
    }
}

/// The first page whose last hash is not below `hash`; the number of pages when there is none.
fn first_page(page: &mut PageReader<'_>, hash: u64) -> Result<usize, IndexDamaged> {
    let pages = page.pages.count();
    let mut among = 0..pages;
    let mut guess = page_at(hash, pages);
    for guesses in 0.. {
        if among.is_empty() {
            break;
        }
        if guesses >= GUESSES_MAX {
            guess = usize::midpoint(among.start, among.end);
        }
        let number = guess.clamp(among.start, among.end - 1);
        let (first, last) = ends_of(page.read(number)?);
        if last < hash {
            among.start = number + 1;
            guess = number.saturating_add(1 + page_at(hash - last, pages));
        } else if first < hash {
            return Ok(number);
        } else {
            among.end = number;
            guess = number.saturating_sub(1 + page_at(first - hash, pages));
        }
    }
    Ok(among.start)
}

/// How many pages evenly spread hashes fill up to this one.
fn page_at(hash: u64, pages: usize) -> usize {
    ((u128::from(hash) * pages as u128) >> 64) as usize
}

/// The first and the last hash of a page, which is never empty.
fn ends_of(page: &[u8]) -> (u64, u64) {
    (u64_at(page, 0), u64_at(page, page.len() - KEY_BYTES))
}

pub(crate) fn entries(rows: &[u8]) -> impl Iterator<Item = KeyEntry> + '_ {
    rows.chunks_exact(KEY_BYTES).map(|row| KeyEntry {
        hash: u64_at(row, 0),
        offset: Offset(u64_at(row, 8)),
    })
}

impl Pages {
    fn count(&self) -> usize {
        self.bytes.div_ceil(PAGE_BYTES)
    }

    fn end(&self) -> u64 {
        self.position + (self.bytes + self.count() * CHECKSUM_BYTES) as u64
    }

    /// Where the bytes of a page are among those of all.
    fn range(&self, page: usize) -> Range<usize> {
        page * PAGE_BYTES..((page + 1) * PAGE_BYTES).min(self.bytes)
    }

    fn checksum(&self, page: usize, bytes: &[u8]) -> u32 {
        let number = self.first_number + page as u32;
        let seed = crc32c::crc32c_append(self.head_checksum, &number.to_le_bytes());
        crc32c::crc32c_append(seed, bytes)
    }

    fn write(&self, bytes: &[u8], out: &mut Vec<u8>) {
        for (number, page) in bytes.chunks(PAGE_BYTES).enumerate() {
            out.extend_from_slice(page);
            out.extend_from_slice(&self.checksum(number, page).to_le_bytes());
        }
    }

    /// The bytes without checksums, when all of them match.
    fn parse(&self, stored: &[u8]) -> Option<Vec<u8>> {
        let is_long = stored.len() == self.bytes + self.count() * CHECKSUM_BYTES;
        let mut bytes = Vec::with_capacity(if is_long { self.bytes } else { return None });
        for (number, page) in stored.chunks(PAGE_BYTES + CHECKSUM_BYTES).enumerate() {
            bytes.extend_from_slice(self.check(number, page)?);
        }
        Some(bytes)
    }

    /// The bytes of a stored page, when its checksum matches.
    fn check<'a>(&self, number: usize, stored: &'a [u8]) -> Option<&'a [u8]> {
        let (bytes, checksum) = stored.split_at_checked(self.range(number).len())?;
        let is_whole =
            checksum.len() == CHECKSUM_BYTES && u32_at(checksum, 0) == self.checksum(number, bytes);
        is_whole.then_some(bytes)
    }
}

/// Reads pages one at a time and keeps the last one.
struct PageReader<'a> {
    file: &'a dyn File,
    pages: Pages,
    loaded: Option<usize>,
    stored: Vec<u8>,
}

impl<'a> PageReader<'a> {
    fn new(file: &'a dyn File, pages: Pages) -> Self {
        Self {
            file,
            pages,
            loaded: None,
            stored: Vec::new(),
        }
    }

    /// The bytes of a page of the run.
    fn read(&mut self, number: usize) -> Result<&[u8], IndexDamaged> {
        let length = self.pages.range(number).len();
        if self.loaded != Some(number) {
            self.loaded = None;
            self.stored.resize(length + CHECKSUM_BYTES, 0);
            let before = number * (PAGE_BYTES + CHECKSUM_BYTES);
            let position = self.pages.position + before as u64;
            match read_full(self.file, &mut self.stored, position) {
                Ok(read) if read == self.stored.len() => {}
                _ => return Err(IndexDamaged),
            }
            let checked = self.pages.check(number, &self.stored);
            checked.ok_or(IndexDamaged)?;
            self.loaded = Some(number);
        }
        Ok(&self.stored[..length])
    }
}

#[cfg(test)]
#[path = "key_pages_tests.rs"]
mod tests;
