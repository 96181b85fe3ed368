//! `purge`: removes the content of records of a device, or of topics, from a log that no broker has open.
//!
//! A purged record keeps its offset, time and epoch; topic, key, client id, extensions and payload are removed.
//! Everything else that may hold its bytes is removed too: indexes, the list of topics, quarantined files, and stale
//! bytes behind the batches.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::folder::{Folder, PartitionDir};
use super::repair::open_once;
use super::scan::scan_segment;
use super::segment_writer::SegmentWriter;
use super::work::{Access, ToolError, Work};
use crate::batch::layout::{
    BATCH_HOLDS_PURGED, CODEC_NONE, Entry, FLAG_PURGED, FLAG_QOS, HEADER_BYTES, Header, Identity,
};
use crate::batch::record_batch::Batch;
use crate::batch::view::RecordView;
use crate::ids::Offset;
use crate::route::level;
use crate::segment::header::{HeaderFound, SegmentHeader, file_name};
use crate::vfs::files::OpenMode;

#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
pub struct PurgeReport {
    pub records: u64,
    /// Segments that were rewritten.
    pub segments: usize,
    /// Quarantined files of earlier starts, which may have held the same bytes.
    pub removed_files: usize,
    pub partitions: Vec<(String, u64)>,
}

/// The records to purge.
#[derive(Clone, Copy)]
pub enum PurgeWhat<'a> {
    /// Records that a device sent, records whose key or routing level names it, and its state.
    Device(&'a str),
    /// Records of these topics, and their retained values.
    Topics(&'a dyn Fn(&str) -> bool),
}

/// Topics of the internal partition: `$state/<kind>/<id>`.
const STATE: &str = "$state/";
/// Kinds whose id is not a client or a topic.
const OTHER_KINDS: [&str; 2] = ["group", "snapshot"];

impl PurgeWhat<'_> {
    fn matches(&self, record: &RecordView<'_>, templates: &[String]) -> bool {
        if let Some((kind, id)) = record
            .topic
            .strip_prefix(STATE)
            .and_then(|key| key.split_once('/'))
        {
            return match self {
                Self::Device(device) if kind == "retained" => names(id, device, templates),
                Self::Device(device) => id == *device && !OTHER_KINDS.contains(&kind),
                Self::Topics(wanted) => kind == "retained" && wanted(id),
            };
        }
        match self {
            Self::Device(device) => {
                record.client_id == *device
                    || record.key == device.as_bytes()
                    || names(record.topic, device, templates)
            }
            Self::Topics(wanted) => wanted(record.topic),
        }
    }
}

/// Whether the routing level of a topic is this device.
fn names(topic: &str, device: &str, templates: &[String]) -> bool {
    let is_named =
        |template: &String| level(template, topic).is_some_and(|at| &topic[at] == device);
    templates.iter().any(is_named)
}

/// Purges all partitions, the internal one included. The next purge finishes an interrupted one.
pub fn purge(dir: &Path, what: PurgeWhat<'_>, work: Work<'_>) -> Result<PurgeReport, ToolError> {
    if matches!(what, PurgeWhat::Device("")) {
        return Err(ToolError::Refused("a device has a name".to_owned()));
    }
    // Recovery first: an unfinished write might come back otherwise.
    let folder = Folder::open(dir, Access::Alone, work)?;
    let meta = folder.meta.as_ref().map(Clone::clone);
    let meta = meta.map_err(|error| ToolError::Refused(error.to_string()))?;
    drop(folder);
    let templates: Vec<String> = meta
        .classes
        .iter()
        .filter_map(|class| class.template.clone())
        .collect();
    let matches = |record: &RecordView<'_>| what.matches(record, &templates);
    open_once(dir, &meta, work)?;
    let folder = Folder::open(dir, Access::Alone, work)?;
    let total = folder.bytes(work);
    let mut done = 0;
    let mut report = PurgeReport {
        records: 0,
        segments: 0,
        removed_files: 0,
        partitions: Vec::new(),
    };
    for place in &folder.partitions {
        let mut records = 0;
        for (base, limit) in folder.readable(place) {
            let (purged, bytes) = purge_segment(place, base, limit, &matches, work)?;
            records += purged;
            report.segments += usize::from(purged > 0);
            done += bytes;
            (work.progress)(done, total);
        }
        report.removed_files += clean(place, work)?;
        report.records += records;
        report.partitions.push((place.name.clone(), records));
    }
    drop(folder);
    // Builds the indexes again, and a checkpoint at the new ends.
    open_once(dir, &meta, work)?;
    Ok(report)
}

/// Rewrites a segment when it holds a match, and cuts stale bytes off its end. Returns the number of matches and the
/// bytes of its batches.
fn purge_segment(
    place: &PartitionDir,
    base: Offset,
    limit: Option<Offset>,
    matches: &dyn Fn(&RecordView<'_>) -> bool,
    work: Work<'_>,
) -> Result<(u64, u64), ToolError> {
    let mut records = 0;
    let scan = scan_segment(work, place, base, limit, |batch| {
        records += batch.records().filter(|r| !r.purged && matches(r)).count() as u64;
        Ok(())
    })?;
    let path = place.segment(base);
    if records == 0 && scan.damage.is_empty() {
        if scan.leftover > 0 {
            let failed = |error| ToolError::io("cut", &path)(error);
            let file = work
                .seams
                .files
                .open(&path, OpenMode::ReadWrite)
                .map_err(failed)?;
            file.set_len(scan.end)
                .and_then(|()| file.sync_data())
                .map_err(failed)?;
        }
        return Ok((0, scan.end));
    }
    // Damaged bytes may belong to a match, so they are removed as well.
    rewrite(place, base, limit, &scan.header, matches, work)?;
    Ok((records, scan.end))
}

/// Rewrites a segment, with one file per range without gaps. The first replaces the old file, so it comes last.
fn rewrite(
    place: &PartitionDir,
    base: Offset,
    limit: Option<Offset>,
    old: &HeaderFound,
    matches: &dyn Fn(&RecordView<'_>) -> bool,
    work: Work<'_>,
) -> Result<(), ToolError> {
    let epoch = match old {
        HeaderFound::Good(header) => header.epoch,
        _ => crate::ids::Epoch(0),
    };
    let unfinished = |base: Offset| place.dir.join(file_name(base, "seg.tmp"));
    let begin = |base: Offset| {
        let header = SegmentHeader {
            identity: place.identity,
            class: place.class,
            recycled: false,
            base,
            epoch,
            // A new time, so that a backup sees another file.
            created_us: work.seams.clock.now_us(),
        };
        SegmentWriter::begin(work, &unfinished(base), &header.to_bytes())
    };
    let mut stretches = vec![base];
    let mut copy = begin(base)?;
    let mut next = base;
    scan_segment(work, place, base, limit, |batch| {
        if batch.base_offset() != next {
            let new = begin(batch.base_offset())?;
            std::mem::replace(&mut copy, new).finish()?;
            stretches.push(batch.base_offset());
        }
        next = batch.next_offset();
        let is_hit = |record: &RecordView<'_>| record.purged || matches(record);
        if batch.records().any(|record| is_hit(&record)) {
            copy.write(&without(batch, &is_hit, &place.identity))
        } else {
            copy.write(batch.bytes())
        }
    })?;
    copy.finish()?;
    for base in stretches.iter().rev() {
        let (from, to) = (unfinished(*base), place.segment(*base));
        work.on("rename", &from, |files, from| files.rename(from, &to))?;
        work.on("sync", &place.dir, |files, path| files.sync_dir(path))?;
    }
    Ok(())
}

/// Removes the files besides the segments that may hold bytes of purged records.
fn clean(place: &PartitionDir, work: Work<'_>) -> Result<usize, ToolError> {
    let mut kept_aside = 0;
    let names = work.on("list", &place.dir, |files, path| files.list(path))?;
    for name in names {
        let is_aside = [".damaged", ".torn", ".misplaced"]
            .iter()
            .any(|end| name.ends_with(end));
        let is_derived = name.ends_with(".idx") || name.ends_with(".tmp") || name == "topics";
        // The checkpoint names old positions.
        if is_aside || is_derived || name == "mark" {
            let path = place.dir.join(&name);
            work.on("remove", &path, |files, path| files.remove(path))?;
            kept_aside += usize::from(is_aside);
        }
    }
    work.on("sync", &place.dir, |files, path| files.sync_dir(path))?;
    Ok(kept_aside)
}

/// A name table of the rewritten batch: the names that are still used, and an empty one.
#[derive(Default)]
struct Table {
    bytes: Vec<u8>,
    count: u16,
    /// New index of each old one.
    places: Vec<Option<u16>>,
    empty: Option<u16>,
}

impl Table {
    fn place(&mut self, old: u16, encode: impl FnOnce(&mut Vec<u8>)) -> u16 {
        let old = usize::from(old);
        if self.places.len() <= old {
            self.places.resize(old + 1, None);
        }
        *self.places[old].get_or_insert_with(|| {
            encode(&mut self.bytes);
            self.count += 1;
            self.count - 1
        })
    }

    /// An entry of `fixed` zero bytes: an empty name. A full table uses its first name instead.
    fn empty(&mut self, fixed: usize) -> u16 {
        if let Some(place) = self.empty {
            return place;
        }
        if self.count == u16::MAX {
            return 0;
        }
        self.bytes.extend(std::iter::repeat_n(0, fixed));
        self.count += 1;
        self.empty = Some(self.count - 1);
        self.count - 1
    }
}

/// The batch without the content of its matching records.
fn without(
    batch: &Batch,
    is_hit: &dyn Fn(&RecordView<'_>) -> bool,
    identity: &Identity,
) -> Vec<u8> {
    let (mut topics, mut clients) = (Table::default(), Table::default());
    let (mut entries, mut extensions, mut payloads) = (Vec::new(), Vec::new(), Vec::new());
    for (index, record) in batch.records().enumerate() {
        let old = batch.entry(index);
        let (topic, client, flags) = if is_hit(&record) {
            let flags = FLAG_PURGED | (old.flags & FLAG_QOS);
            (topics.empty(6), clients.empty(2), flags)
        } else {
            extensions.extend_from_slice(batch.extension(index));
            payloads.extend_from_slice(record.payload);
            let view = batch.topic(old.topic);
            let topic = topics.place(old.topic, |bytes| {
                let start = view.key.as_ptr() as usize - view.topic.as_ptr() as usize;
                for number in [view.topic.len(), start, view.key.len()] {
                    bytes.extend_from_slice(&(number as u16).to_le_bytes());
                }
                bytes.extend_from_slice(view.topic.as_bytes());
            });
            let client = clients.place(old.client, |bytes| {
                bytes.extend_from_slice(&(record.client_id.len() as u16).to_le_bytes());
                bytes.extend_from_slice(record.client_id.as_bytes());
            });
            (topic, client, old.flags)
        };
        let entry = Entry {
            topic,
            client,
            time_delta_us: old.time_delta_us,
            payload_end: payloads.len() as u32,
            extension_end: extensions.len() as u32,
            flags,
        };
        entries.extend_from_slice(&entry.to_bytes());
    }
    let sections = [
        &topics.bytes,
        &clients.bytes,
        &entries,
        &extensions,
        &payloads,
    ];
    let size: usize = sections.iter().map(|section| section.len()).sum();
    let header = Header {
        length: (HEADER_BYTES + size - 4) as u32,
        checksum: 0,
        base_offset: batch.base_offset(),
        epoch: batch.epoch(),
        base_time_us: batch.base_time_us(),
        records: batch.len() as u32,
        topics: topics.count,
        clients: clients.count,
        codec: CODEC_NONE,
        flags: batch.flags() | BATCH_HOLDS_PURGED,
        topics_bytes: topics.bytes.len() as u32,
        clients_bytes: clients.bytes.len() as u32,
        extensions_bytes: extensions.len() as u32,
        payloads_bytes: payloads.len() as u32,
        uncompressed_bytes: size as u32,
    };
    let mut out = header.to_bytes().to_vec();
    for section in sections {
        out.extend_from_slice(section);
    }
    let checksum = identity.checksum(&out);
    out[4..8].copy_from_slice(&checksum.to_le_bytes());
    debug_assert!(Batch::decode(&Arc::new(out.clone().into()), 0, identity).is_ok());
    out
}
