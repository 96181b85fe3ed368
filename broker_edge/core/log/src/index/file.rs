//! The index file of a sealed segment, read piece by piece: a lookup reads the head, the page table and one page,
//! however many topics the segment has. Each piece has its own checksum, which is checked before the piece is used.

use std::io;
use std::sync::Arc;

use crate::batch::layout::u32_at;
use crate::ids::Offset;
use crate::index::format::{
    FIXED_BYTES, Head, Page, Section, StoredKeys, blocks_of, for_each_topic,
};
use crate::index::keys::{KeyFilter, PassedKeys, WantedKeys};
use crate::index::model::{
    Block, BlockLookup, BlockSet, Blocks, EachTopic, Index, IndexDamaged, read_bytes, topic_hash,
};
use crate::segment::header::file_name;
use crate::state::context::Context;
use crate::vfs::files::{File, OpenMode, read_full};

/// Neighbouring pages are read together up to this size.
const SCAN_BYTES: usize = 1 << 20;

/// An open index file whose head is whole; the rest of it is checked when it is read.
pub(crate) struct IndexFile {
    file: Arc<dyn File>,
    /// Its blocks are there after [`load`](Self::load).
    pub head: Head,
    /// None until [`load`](Self::load).
    pages: Option<Vec<Page>>,
}

impl IndexFile {
    /// None when the head is missing, damaged, of another format or of another segment.
    pub fn open(context: &Context, base: Offset) -> Option<Self> {
        let path = context.dir.join(file_name(base, "idx"));
        let file = context.open(&path, OpenMode::Read).ok()?;
        // Most segments have few epochs: one read is enough.
        let mut bytes = vec![0; 512];
        let read = read_full(&*file, &mut bytes, 0).ok()?;
        bytes.truncate(read);
        let head_bytes = Head::bytes(&bytes)?;
        if head_bytes > bytes.len() {
            if file.len().ok()? < head_bytes as u64 {
                return None;
            }
            bytes = vec![0; head_bytes];
            read_full(&*file, &mut bytes, 0).ok()?;
        }
        let head = Head::parse(&bytes[..head_bytes], &context.identity)?;
        (head.index.base == base).then_some(Self {
            file,
            head,
            pages: None,
        })
    }

    fn section(&self, section: Section) -> Result<Vec<u8>, IndexDamaged> {
        let bytes = self.read(section.position, section.bytes)?;
        section.check(&bytes).ok_or(IndexDamaged)?;
        Ok(bytes)
    }

    fn read(&self, position: u64, bytes: usize) -> Result<Vec<u8>, IndexDamaged> {
        read_bytes(&*self.file, position, bytes)
    }

    /// Of an index of the format before that has keys: the whole of it. Its keys cannot be searched where they are.
    pub fn read_older(&self, context: &Context) -> Result<Option<Index>, IndexDamaged> {
        if self.head.index.key_count == 0 || matches!(self.head.keys, StoredKeys::Pages(_)) {
            return Ok(None);
        }
        let length = self.file.len().map_err(|_| IndexDamaged)?;
        let bytes = self.read(0, usize::try_from(length).map_err(|_| IndexDamaged)?)?;
        let index = Index::from_bytes(&bytes, &context.identity);
        index.map(Some).ok_or(IndexDamaged)
    }

    pub fn key_filter(&self) -> Result<KeyFilter, IndexDamaged> {
        match self.head.keys {
            StoredKeys::Pages(table) => table.read_filter(&*self.file),
            StoredKeys::Flat(_) => Err(IndexDamaged),
        }
    }

    /// Gives the offsets of records that may have the wanted keys, with the numbers of those. `passed` is what the
    /// filter in memory says, if it is there; else the one in the file is asked.
    pub fn find_keys(
        &self,
        wanted: &WantedKeys<'_>,
        passed: Option<PassedKeys>,
        found: &mut dyn FnMut(u32, Offset),
    ) -> Result<(), IndexDamaged> {
        let StoredKeys::Pages(table) = self.head.keys else {
            return Err(IndexDamaged);
        };
        let passed = match passed.filter(|passed| passed.hashing == table.hashing) {
            Some(passed) => passed.keys,
            None => table.filtered(&*self.file, wanted.hashed(table.hashing))?,
        };
        table.find(&*self.file, &passed, found)
    }

    fn pages(&self) -> Result<Vec<Page>, IndexDamaged> {
        Ok(self.head.pages(&self.section(self.head.page_table)?))
    }

    /// Reads what lookups need, small enough to be kept for some segments.
    pub fn load(mut self) -> Result<Self, IndexDamaged> {
        self.head.index.blocks = blocks_of(&self.section(self.head.blocks)?);
        self.pages = Some(self.pages()?);
        Ok(self)
    }

    /// Memory that it keeps, for bounds.
    pub fn memory(&self) -> usize {
        let head = &self.head.index;
        size_of::<Self>()
            + head.blocks.len() * size_of::<Block>()
            + self.pages.as_ref().map_or(0, Vec::len) * size_of::<Page>()
            + head.epochs.len() * 16
            + head.holes.len() * 24
    }
}

impl BlockLookup for IndexFile {
    fn blocks(&self) -> Blocks<'_> {
        self.head.index.blocks()
    }

    /// In the order of the file.
    fn for_each_topic(&self, f: &mut EachTopic<'_>) -> Result<(), IndexDamaged> {
        match &self.pages {
            Some(pages) => scan(self, pages, f),
            None => scan(self, &self.pages()?, f),
        }
    }

    fn mark_topic(&self, topic: &str, marked: &mut BlockSet) -> Result<(), IndexDamaged> {
        let hash = topic_hash(topic);
        let pages = self.pages.as_deref().unwrap_or_default();
        let after = pages.partition_point(|page| page.first_hash <= hash);
        let Some(page) = after.checked_sub(1).map(|at| pages[at]) else {
            return Ok(());
        };
        for_each_topic(&self.section(page.section)?, &mut |name, _, blocks| {
            if name == topic {
                marked.mark(blocks);
            }
        })
        .ok_or(IndexDamaged)
    }
}

fn scan(file: &IndexFile, pages: &[Page], f: &mut EachTopic<'_>) -> Result<(), IndexDamaged> {
    let mut rest = pages;
    while let Some(first) = rest.first() {
        let start = first.section.position;
        let is_near = |page: &&Page| {
            let Section {
                position, bytes, ..
            } = page.section;
            let end = position.saturating_add(bytes as u64);
            position >= start && end - start <= SCAN_BYTES as u64
        };
        let count = rest.iter().take_while(is_near).count().max(1);
        let (together, later) = rest.split_at(count);
        let last = together[count - 1].section;
        let bytes = file.read(start, (last.position - start) as usize + last.bytes)?;
        for page in together {
            let at = (page.section.position - start) as usize;
            let page_bytes = bytes.get(at..at + page.section.bytes).ok_or(IndexDamaged)?;
            let checked = page.section.check(page_bytes).ok_or(IndexDamaged)?;
            for_each_topic(checked, f).ok_or(IndexDamaged)?;
        }
        rest = later;
    }
    Ok(())
}

/// The checksum in the head of a saved index. Index files with equal checksums have equal content.
pub(crate) fn stored_checksum(context: &Context, base: Offset) -> io::Result<Option<u32>> {
    let path = context.dir.join(file_name(base, "idx"));
    let mut bytes = [0; FIXED_BYTES];
    let read = read_full(&*context.open(&path, OpenMode::Read)?, &mut bytes, 0)?;
    let is_whole = read == FIXED_BYTES && Head::bytes(&bytes).is_some();
    Ok(is_whole.then(|| u32_at(&bytes, 12)))
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
