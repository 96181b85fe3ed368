//! The file `topics` of a partition: the merged topics of most sealed segments, so that listing topics need not read
//! every index. Never authoritative: it names the indexes that it was made from, and is ignored when one of them has
//! changed.

use std::collections::HashMap;
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use ahash::RandomState;
use rustc_hash::FxHashSet;

use crate::batch::layout::{Identity, u16_at, u32_at, u64_at};
use crate::ids::Offset;
use crate::index::file::stored_checksum;
use crate::index::format::{extent_at, push_extent, push_numbers};
use crate::index::model::{Index, TopicExtent};
use crate::index::segment::Segment;
use crate::state::context::Context;
use crate::vfs::files::{Files, read_file, replace_file};

/// About 25 MB of names of usual length.
const TOPICS_MAX: usize = 200_000;
/// Publishers choose the names, and one may have 64 KiB: their number alone does not bound the memory.
const NAMES_BYTES_MAX: usize = 32 << 20;

const NAME: &str = "topics";
const MAGIC: &[u8; 8] = b"hwatrtop";
const FORMAT: u32 = 1;
const FIXED_BYTES: usize = 44;
/// Larger than any file that is written.
const BYTES_MAX: usize = 1 << 28;

/// About what a topic takes in memory beside its name.
const ENTRY_BYTES: usize = 128;

/// Topics with their extents. Names are shared by its clones.
#[derive(Debug, Default, Clone)]
pub(crate) struct TopicMap {
    by_name: HashMap<Arc<str>, TopicExtent, RandomState>,
    names_bytes: usize,
}

impl TopicMap {
    pub fn extend(&mut self, topic: &str, extent: TopicExtent) {
        match self.by_name.get_mut(topic) {
            Some(known) => known.extend(extent),
            None => {
                self.names_bytes += topic.len();
                self.by_name.insert(topic.into(), extent);
            }
        }
    }

    /// Extends the extent of each topic of an index.
    pub fn merge(&mut self, index: &Index) {
        for topic in &index.topics {
            self.extend(&topic.topic, topic.extent.clone());
        }
    }

    pub fn retain(&mut self, keep: impl Fn(&TopicExtent) -> bool) {
        let names_bytes = &mut self.names_bytes;
        self.by_name.retain(|topic, extent| {
            let keeps = keep(extent);
            *names_bytes -= if keeps { 0 } else { topic.len() };
            keeps
        });
    }

    /// About the memory that they take.
    pub fn memory_bytes(&self) -> usize {
        self.names_bytes + self.by_name.len() * ENTRY_BYTES
    }

    /// Whether these are more topics than are held in memory.
    pub fn is_over(&self) -> bool {
        self.by_name.len() > TOPICS_MAX || self.names_bytes > NAMES_BYTES_MAX
    }
}

impl IntoIterator for TopicMap {
    type Item = (Arc<str>, TopicExtent);
    type IntoIter = std::collections::hash_map::IntoIter<Arc<str>, TopicExtent>;

    fn into_iter(self) -> Self::IntoIter {
        self.by_name.into_iter()
    }
}

impl Deref for TopicMap {
    type Target = HashMap<Arc<str>, TopicExtent, RandomState>;

    fn deref(&self) -> &Self::Target {
        &self.by_name
    }
}

#[derive(Default)]
pub(crate) struct CatalogFile {
    pub topics: TopicMap,
    /// Base offsets of the covered segments.
    pub covers: FxHashSet<Offset>,
}

impl CatalogFile {
    /// The file, when every segment of `segments` that it covers still has the index it was made from.
    pub fn load(context: &Context, segments: &[Arc<Segment>]) -> Option<Self> {
        let bytes = read_file(&*context.seams.files, &context.dir.join(NAME), BYTES_MAX).ok()?;
        let fixed = bytes.get(..FIXED_BYTES)?;
        let is_ours = &fixed[..8] == MAGIC
            && u32_at(fixed, 8) == FORMAT
            && u32_at(fixed, 12) == crc32c::crc32c(&bytes[16..])
            && &fixed[16..32] == context.identity.log_id.as_bytes()
            && u32_at(fixed, 32) == context.identity.partition.0;
        if !is_ours {
            return None;
        }
        let (covered, count) = (u32_at(fixed, 36) as usize, u32_at(fixed, 40) as usize);
        let (table, mut rest) = bytes[FIXED_BYTES..].split_at_checked(covered.checked_mul(12)?)?;
        let mut covers = FxHashSet::default();
        let first = segments.first().map(|segment| segment.base);
        for row in table.chunks_exact(12) {
            let base = Offset(u64_at(row, 0));
            // Segments that retention has removed are below the log start; their topics are dropped later.
            if first.is_some_and(|first| base >= first) {
                let at = segments.binary_search_by_key(&base, |segment| segment.base);
                if index_checksum(context, &segments[at.ok()?])? != u32_at(row, 8) {
                    return None;
                }
                covers.insert(base);
            }
        }
        // A topic takes at least 26 bytes, so the allocation is covered by the file.
        if count > TOPICS_MAX || count > rest.len() / 26 {
            return None;
        }
        let mut topics = TopicMap::default();
        topics.by_name.reserve(count);
        for _ in 0..count {
            let (head, after) = rest.split_at_checked(26)?;
            let (topic, after) = after.split_at_checked(usize::from(u16_at(head, 0)))?;
            topics.extend(std::str::from_utf8(topic).ok()?, extent_at(head, 2));
            rest = after;
        }
        let is_whole = rest.is_empty() && !topics.is_over();
        is_whole.then_some(Self { topics, covers })
    }

    /// The part of the file that names the covered segments. All of their indexes are saved.
    pub fn coverage(context: &Context, segments: &[Arc<Segment>]) -> io::Result<Vec<u8>> {
        let mut rows = Vec::with_capacity(segments.len() * 12);
        for segment in segments {
            let checksum = stored_checksum(context, segment.base)?.ok_or_else(|| {
                let text = format!("the index of segment {} is not whole", segment.base);
                io::Error::new(io::ErrorKind::InvalidData, text)
            })?;
            push_row(&mut rows, segment.base, checksum);
        }
        Ok(rows)
    }

    pub fn to_bytes(identity: &Identity, coverage: &[u8], topics: &TopicMap) -> Vec<u8> {
        let mut out = Vec::with_capacity(FIXED_BYTES + coverage.len() + topics.len() * 64);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(identity.log_id.as_bytes());
        out.extend_from_slice(&identity.partition.0.to_le_bytes());
        out.extend_from_slice(&((coverage.len() / 12) as u32).to_le_bytes());
        out.extend_from_slice(&(topics.len() as u32).to_le_bytes());
        out.extend_from_slice(coverage);
        for (topic, extent) in topics.iter() {
            out.extend_from_slice(&(topic.len() as u16).to_le_bytes());
            push_extent(&mut out, extent);
            out.extend_from_slice(topic.as_bytes());
        }
        let checksum = crc32c::crc32c(&out[16..]);
        out[12..16].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Writes the file. It is synced, unlike an index: a start without it reads every index, however large the log is.
    pub fn save(files: &dyn Files, dir: &Path, bytes: &[u8]) -> io::Result<()> {
        replace_file(files, &dir.join(NAME), bytes)
    }
}

/// Builds the file for a tool that writes a partition segment by segment.
#[derive(Default)]
pub(crate) struct CatalogFileWriter {
    topics: TopicMap,
    coverage: Vec<u8>,
}

impl CatalogFileWriter {
    /// Takes in a sealed segment, with the bytes of its index file.
    pub fn add(&mut self, index: &Index, bytes: &[u8]) {
        push_row(&mut self.coverage, index.base, u32_at(bytes, 12));
        // More topics than the file may hold need not be collected.
        if !self.topics.is_over() {
            self.topics.merge(index);
        }
    }

    pub fn save(&self, files: &dyn Files, dir: &Path, identity: &Identity) -> io::Result<()> {
        if self.coverage.is_empty() || self.topics.is_over() {
            return Ok(());
        }
        let bytes = CatalogFile::to_bytes(identity, &self.coverage, &self.topics);
        CatalogFile::save(files, dir, &bytes)
    }
}

fn push_row(rows: &mut Vec<u8>, base: Offset, checksum: u32) {
    push_numbers(rows, [base.0]);
    rows.extend_from_slice(&checksum.to_le_bytes());
}

/// The checksum of a segment's index: of its file, or of the index that a start built because the file was lost.
fn index_checksum(context: &Context, segment: &Segment) -> Option<u32> {
    match segment.index_in_memory() {
        Some(index) => Some(u32_at(&index.to_bytes(&context.identity), 12)),
        None => stored_checksum(context, segment.base).ok()?,
    }
}
