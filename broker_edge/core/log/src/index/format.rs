//! The bytes of an index file, written and read. Reading checks everything and returns None when anything is wrong: the
//! index is then built again from its segment.
//!
//! A start reads only the head, a lookup the head and one page of topics (`file.rs`) or of keys (`key_pages.rs`).

use crate::batch::layout::{Identity, u16_at, u32_at, u64_at};
use crate::ids::{Epoch, Offset};
use crate::index::key_pages::{KEY_BYTES, KeyTable, entries};
use crate::index::keys::KeyHashing;
use crate::index::model::{
    Block, EachTopic, Hole, Index, IndexTopic, RetainedOffset, TopicExtent, block_numbers,
    topic_hash,
};

const MAGIC: &[u8; 8] = b"hwatridx";
pub(crate) const INDEX_FORMAT: u32 = 3;
/// Its keys lie in the order of their records, without a filter, in one piece, and are hashed without their topics. An
/// index of it that has keys is written anew when it is found; those of other formats are built again.
pub(crate) const INDEX_FORMAT_BEFORE: u32 = 2;
pub(crate) const FIXED_BYTES: usize = 128;
const BLOCK_BYTES: usize = 24;
const PAGE_ENTRY_BYTES: usize = 20;
/// Topics are grouped into pages of about this size.
const PAGE_BYTES: usize = 4 << 10;
/// Bound of the head, which a start reads and which holds epochs and holes. A larger one is not read.
pub(crate) const HEAD_BYTES_MAX: usize = 16 << 20;

/// The part of an index that a start needs, and where the rest is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    /// Without blocks, keys and topics.
    pub index: Index,
    pub blocks: Section,
    pub keys: StoredKeys,
    pub page_table: Section,
    /// Where the pages begin; they fill the rest of the file.
    pages_at: u64,
    /// Topics that have a record with the retain flag.
    pub retained: u32,
}

/// The keys in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoredKeys {
    /// Of [`INDEX_FORMAT_BEFORE`].
    Flat(Section),
    Pages(KeyTable),
}

/// A table of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Section {
    pub position: u64,
    pub bytes: usize,
    checksum: u32,
}

/// A page of topics: from this hash on, up to the next page's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Page {
    pub first_hash: u64,
    pub section: Section,
}

impl Index {
    pub fn to_bytes(&self, identity: &Identity) -> Vec<u8> {
        let mut blocks = Vec::with_capacity(self.blocks.len() * BLOCK_BYTES);
        for block in &self.blocks {
            push_numbers(
                &mut blocks,
                [block.offset.0, block.position, block.max_time_us as u64],
            );
        }
        let (page_table, pages) = pages_of(&self.topics);
        let retained = self
            .topics
            .iter()
            .filter(|topic| topic.extent.retained.is_some());
        let counts = [
            self.blocks.len(),
            self.epochs.len(),
            self.holes.len(),
            retained.count(),
            self.keys.len(),
            self.topics.len(),
            page_table.len() / PAGE_ENTRY_BYTES,
        ];
        let mut out = Vec::with_capacity(FIXED_BYTES + blocks.len() + pages.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&INDEX_FORMAT.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(identity.log_id.as_bytes());
        out.extend_from_slice(&identity.partition.0.to_le_bytes());
        out.extend_from_slice(&self.last_checksum.to_le_bytes());
        push_numbers(
            &mut out,
            [self.base.0, self.next.0, self.data_end, self.last_position],
        );
        push_numbers(
            &mut out,
            [self.first_time_us as u64, self.max_time_us as u64],
        );
        for count in counts {
            out.extend_from_slice(&(count as u32).to_le_bytes());
        }
        out.extend_from_slice(&crc32c::crc32c(&blocks).to_le_bytes());
        let is_with_topic = self.key_hashing == KeyHashing::TopicAndKey;
        out.extend_from_slice(&u32::from(is_with_topic).to_le_bytes());
        out.extend_from_slice(&crc32c::crc32c(&page_table).to_le_bytes());
        debug_assert_eq!(out.len(), FIXED_BYTES);
        for (offset, epoch) in &self.epochs {
            push_numbers(&mut out, [offset.0, epoch.0]);
        }
        for hole in &self.holes {
            push_numbers(&mut out, [hole.first.0, hole.next.0, hole.resume]);
        }
        let checksum = crc32c::crc32c(&out[16..]);
        out[12..16].copy_from_slice(&checksum.to_le_bytes());
        out.extend_from_slice(&blocks);
        let table = KeyTable {
            position: out.len() as u64,
            count: self.keys.len(),
            hashing: self.key_hashing,
            head_checksum: checksum,
        };
        let mut keys = self.keys.clone();
        keys.sort_unstable();
        out.extend_from_slice(&table.write(&keys));
        out.extend_from_slice(&page_table);
        out.extend_from_slice(&pages);
        out
    }

    /// Parses a whole index file.
    pub fn from_bytes(bytes: &[u8], identity: &Identity) -> Option<Self> {
        let head_bytes = Head::bytes(bytes)?;
        let head = Head::parse(bytes.get(..head_bytes)?, identity)?;
        let range = |position: u64, end: u64| {
            let start = usize::try_from(position).ok()?;
            bytes.get(start..usize::try_from(end).ok()?)
        };
        let section = |section: Section| section.check(range(section.position, section.end())?);
        let blocks = blocks_of(section(head.blocks)?);
        let keys = match head.keys {
            StoredKeys::Flat(keys) => {
                let mut keys: Vec<_> = entries(section(keys)?).collect();
                keys.sort_unstable();
                keys
            }
            StoredKeys::Pages(table) => table.parse(range(table.position, table.end())?)?,
        };
        let pages = head.pages(section(head.page_table)?);
        let mut topics = Vec::new();
        let mut end = head.pages_at;
        for page in &pages {
            if page.section.position != end {
                return None;
            }
            end += page.section.bytes as u64;
            for_each_topic(section(page.section)?, &mut |topic, extent, blocks| {
                topics.push(IndexTopic {
                    topic: topic.into(),
                    extent,
                    blocks: blocks.to_vec(),
                });
            })?;
        }
        let is_whole = end == bytes.len() as u64
            && topics.len() == u32_at(bytes, 108) as usize
            && topics
                .iter()
                .all(|topic| block_numbers(&topic.blocks).all(|number| number < blocks.len()));
        is_whole.then_some(Self {
            blocks,
            keys,
            topics,
            ..head.index
        })
    }
}

impl Head {
    /// Size of the head of an index file that begins with `fixed`.
    pub fn bytes(fixed: &[u8]) -> Option<usize> {
        let fixed = fixed.get(..FIXED_BYTES)?;
        let is_known = [INDEX_FORMAT_BEFORE, INDEX_FORMAT].contains(&u32_at(fixed, 8));
        if &fixed[..8] != MAGIC || !is_known {
            return None;
        }
        let (epochs, holes) = (u32_at(fixed, 92) as usize, u32_at(fixed, 96) as usize);
        Some(FIXED_BYTES + epochs * 16 + holes * 24).filter(|bytes| *bytes <= HEAD_BYTES_MAX)
    }

    /// Parses a head of exactly these bytes.
    pub fn parse(bytes: &[u8], identity: &Identity) -> Option<Self> {
        if Self::bytes(bytes)? != bytes.len() {
            return None;
        }
        let is_ours = u32_at(bytes, 12) == crc32c::crc32c(&bytes[16..])
            && &bytes[16..32] == identity.log_id.as_bytes()
            && u32_at(bytes, 32) == identity.partition.0
            && u64_at(bytes, 40) <= u64_at(bytes, 48)
            && u64_at(bytes, 48) <= Offset::BELIEVABLE_MAX.0;
        if !is_ours {
            return None;
        }
        let count = |at: usize| u32_at(bytes, 88 + at * 4) as usize;
        let (epoch_rows, hole_rows) = bytes[FIXED_BYTES..].split_at(count(1) * 16);
        let section = |position: u64, bytes_of: usize, checksum_at: usize| Section {
            position,
            bytes: bytes_of,
            checksum: u32_at(bytes, checksum_at),
        };
        let blocks = section(bytes.len() as u64, count(0) * BLOCK_BYTES, 116);
        let keys = stored_keys(bytes, blocks.end())?;
        let page_table = section(keys.end(), count(6) * PAGE_ENTRY_BYTES, 124);
        let index = Index {
            key_hashing: keys.hashing(),
            key_count: count(4),
            next: Offset(u64_at(bytes, 48)),
            data_end: u64_at(bytes, 56),
            last_position: u64_at(bytes, 64),
            last_checksum: u32_at(bytes, 36),
            first_time_us: u64_at(bytes, 72) as i64,
            max_time_us: u64_at(bytes, 80) as i64,
            epochs: rows(epoch_rows, |[offset, epoch]| (Offset(offset), Epoch(epoch))),
            holes: rows(hole_rows, |[first, next, resume]| Hole {
                first: Offset(first),
                next: Offset(next),
                resume,
            }),
            ..Index::empty(Offset(u64_at(bytes, 40)))
        };
        Some(Self {
            index,
            blocks,
            keys,
            page_table,
            pages_at: page_table.end(),
            retained: count(3) as u32,
        })
    }

    /// Where the pages are, from the checked bytes of the page table.
    pub fn pages(&self, table: &[u8]) -> Vec<Page> {
        let page = |row: &[u8]| Page {
            first_hash: u64_at(row, 0),
            section: Section {
                position: self.pages_at.saturating_add(u64::from(u32_at(row, 8))),
                bytes: u32_at(row, 12) as usize,
                checksum: u32_at(row, 16),
            },
        };
        table.chunks_exact(PAGE_ENTRY_BYTES).map(page).collect()
    }
}

/// Where the keys are that begin at `position`, by a checked head.
fn stored_keys(head: &[u8], position: u64) -> Option<StoredKeys> {
    let (count, said) = (u32_at(head, 104) as usize, u32_at(head, 120));
    if u32_at(head, 8) == INDEX_FORMAT_BEFORE {
        return Some(StoredKeys::Flat(Section {
            position,
            bytes: count * KEY_BYTES,
            checksum: said,
        }));
    }
    let hashing = match said {
        0 => KeyHashing::Key,
        1 => KeyHashing::TopicAndKey,
        _ => return None,
    };
    Some(StoredKeys::Pages(KeyTable {
        position,
        count,
        hashing,
        head_checksum: u32_at(head, 12),
    }))
}

impl StoredKeys {
    fn end(&self) -> u64 {
        match self {
            Self::Flat(section) => section.end(),
            Self::Pages(table) => table.end(),
        }
    }

    fn hashing(&self) -> KeyHashing {
        match self {
            Self::Flat(_) => KeyHashing::Key,
            Self::Pages(table) => table.hashing,
        }
    }
}

impl Section {
    fn end(self) -> u64 {
        self.position.saturating_add(self.bytes as u64)
    }

    /// The bytes, when their checksum matches.
    pub fn check(self, bytes: &[u8]) -> Option<&[u8]> {
        (bytes.len() == self.bytes && crc32c::crc32c(bytes) == self.checksum).then_some(bytes)
    }
}

/// Calls `f` for every topic of a checked page; None when the page does not consist of whole topics.
pub(crate) fn for_each_topic(mut page: &[u8], f: &mut EachTopic<'_>) -> Option<()> {
    while !page.is_empty() {
        let (head, rest) = page.split_at_checked(30)?;
        let (topic, rest) = rest.split_at_checked(usize::from(u16_at(head, 0)))?;
        let (blocks, rest) = rest.split_at_checked(u32_at(head, 26) as usize)?;
        f(std::str::from_utf8(topic).ok()?, extent_at(head, 2), blocks);
        page = rest;
    }
    Some(())
}

pub(crate) fn push_extent(out: &mut Vec<u8>, extent: &TopicExtent) {
    let (range, retained) = (&extent.range, retained_number(extent.retained));
    push_numbers(out, [range.start.0, range.end.0, retained]);
}

pub(crate) fn extent_at(bytes: &[u8], at: usize) -> TopicExtent {
    TopicExtent {
        range: Offset(u64_at(bytes, at))..Offset(u64_at(bytes, at + 8)),
        retained: retained_from(u64_at(bytes, at + 16)),
    }
}

/// 0 for none, else the offset plus 1, with the highest bit for a payload that is empty.
fn retained_number(retained: Option<RetainedOffset>) -> u64 {
    retained.map_or(0, |place| {
        (place.offset.0 + 1) | u64::from(place.is_cleared) << 63
    })
}

fn retained_from(number: u64) -> Option<RetainedOffset> {
    let offset = Offset((number & !(1 << 63)).checked_sub(1)?);
    let is_cleared = number >> 63 == 1;
    Some(RetainedOffset { offset, is_cleared })
}

/// The page table and the pages.
fn pages_of(topics: &[IndexTopic]) -> (Vec<u8>, Vec<u8>) {
    let (mut table, mut pages) = (Vec::new(), Vec::new());
    let mut page: Vec<u8> = Vec::new();
    let mut first_hash = 0;
    let mut end_page = |page: &mut Vec<u8>, first_hash: u64| {
        table.extend_from_slice(&first_hash.to_le_bytes());
        table.extend_from_slice(&(pages.len() as u32).to_le_bytes());
        table.extend_from_slice(&(page.len() as u32).to_le_bytes());
        table.extend_from_slice(&crc32c::crc32c(page).to_le_bytes());
        pages.append(page);
    };
    let mut last_hash = 0;
    for topic in topics {
        let hash = topic_hash(&topic.topic);
        // Topics of one hash stay together: a lookup reads one page.
        if page.len() >= PAGE_BYTES && hash != last_hash {
            end_page(&mut page, first_hash);
        }
        if page.is_empty() {
            first_hash = hash;
        }
        last_hash = hash;
        page.extend_from_slice(&(topic.topic.len() as u16).to_le_bytes());
        push_extent(&mut page, &topic.extent);
        page.extend_from_slice(&(topic.blocks.len() as u32).to_le_bytes());
        page.extend_from_slice(topic.topic.as_bytes());
        page.extend_from_slice(&topic.blocks);
    }
    if !page.is_empty() {
        end_page(&mut page, first_hash);
    }
    (table, pages)
}

pub(crate) fn blocks_of(bytes: &[u8]) -> Vec<Block> {
    rows(bytes, |[offset, position, time]| Block {
        offset: Offset(offset),
        position,
        max_time_us: time as i64,
    })
}

pub(crate) fn push_numbers<const N: usize>(out: &mut Vec<u8>, numbers: [u64; N]) {
    for number in numbers {
        out.extend_from_slice(&number.to_le_bytes());
    }
}

fn rows<const N: usize, T>(bytes: &[u8], make: impl Fn([u64; N]) -> T) -> Vec<T> {
    let row = |row: &[u8]| make(std::array::from_fn(|column| u64_at(row, column * 8)));
    bytes.chunks_exact(N * 8).map(row).collect()
}

#[cfg(test)]
#[path = "format_tests.rs"]
pub(crate) mod tests;
