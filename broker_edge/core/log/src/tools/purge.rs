//! `purge`: removes the content of records of a device, or of topics, from a log that no broker has open.
//!
//! A purged record keeps its offset, time and epoch; topic, key, client id, extensions and payload are removed.
//! Everything else that may hold its bytes is removed too: indexes, the list of topics, quarantined files, and stale
//! bytes behind the batches.
//!
//! State of the internal partition goes by its key. A new kind whose id is a client needs no change here; one with
//! another id goes into `OTHER_KINDS`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::folder::{Folder, PartitionDir};
use super::repair::open_once;
use super::scan::scan_segment;
use super::segment_writer::SegmentWriter;
use super::work::{Access, ToolError, Work};
use crate::batch::assembler::{BatchAssembler, BatchStamp};
use crate::batch::layout::{BATCH_HOLDS_PURGED, FLAG_PURGED, FLAG_QOS, Identity};
use crate::batch::record_batch::{Batch, TopicView};
use crate::batch::records::Records;
use crate::batch::view::RecordView;
use crate::ids::{Epoch, Offset};
use crate::route::level;
use crate::segment::header::{HeaderFound, file_name};
use crate::vfs::files::OpenMode;

#[derive(Debug, Clone, Default, Serialize, PartialEq, Eq)]
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
        let state = record.topic.strip_prefix(STATE);
        if let Some((kind, id)) = state.and_then(|key| key.split_once('/')) {
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
    let meta = {
        let folder = Folder::open(dir, Access::Alone, work)?;
        folder.refuse_member(
            dir,
            "purging here would make it differ from the other copies",
        )?;
        folder.meta
    };
    let meta = meta.map_err(|error| ToolError::Refused(error.to_string()))?;
    let templates = meta.classes.iter().filter_map(|one| one.template.clone());
    let templates: Vec<String> = templates.collect();
    let matches = |record: &RecordView<'_>| what.matches(record, &templates);
    open_once(dir, &meta, work)?;
    let folder = Folder::open(dir, Access::Alone, work)?;
    let total = folder.bytes(work);
    let mut done = 0;
    let mut report = PurgeReport::default();
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
    let scan = scan_segment(work, place, base, limit, |batch, _| {
        records += batch.records().filter(|r| !r.purged && matches(r)).count() as u64;
        Ok(())
    })?;
    let path = place.segment(base);
    if records == 0 && scan.damage.is_empty() {
        if scan.leftover > 0 {
            work.on("cut", &path, |files, path| {
                let file = files.open(path, OpenMode::ReadWrite)?;
                file.set_len(scan.end)?;
                file.sync_data()
            })?;
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
        _ => Epoch(0),
    };
    let unfinished = |base: Offset| place.dir.join(file_name(base, "seg.tmp"));
    // The headers have a new time, so that a backup sees another file.
    let begin =
        |base: Offset| SegmentWriter::begin_segment(work, &unfinished(base), place, base, epoch);
    let mut stretches = vec![base];
    let mut copy = begin(base)?;
    let mut next = base;
    scan_segment(work, place, base, limit, |batch, _| {
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

/// The batch without the content of its matching records.
fn without(
    batch: &Batch,
    is_hit: &dyn Fn(&RecordView<'_>) -> bool,
    identity: &Identity,
) -> Vec<u8> {
    let mut records = Records::new();
    // By the index in the old table.
    let (mut topics, mut clients) = (BTreeMap::new(), BTreeMap::new());
    let mut purged_at = Vec::new();
    for (index, record) in batch.records().enumerate() {
        let mut entry = batch.entry(index);
        if is_hit(&record) {
            entry.flags = FLAG_PURGED | (entry.flags & FLAG_QOS);
            purged_at.push(records.entries.len());
        } else {
            entry.topic = *topics.entry(entry.topic).or_insert_with(|| {
                let TopicView { topic, key } = batch.topic(entry.topic);
                let start = key.as_ptr() as usize - topic.as_ptr() as usize;
                let key = start as u16..(start + key.len()) as u16;
                records.topic(topic, key).expect("no more than before").0
            });
            entry.client = *clients.entry(entry.client).or_insert_with(|| {
                let client = records.client(record.client_id);
                client.expect("no more than before").0
            });
            records.extensions.extend_from_slice(batch.extension(index));
            records.payloads.push(record.payload);
        }
        entry.payload_end = records.payloads.len() as u32;
        entry.extension_end = records.extensions.len() as u32;
        records.entries.extend_from_slice(&entry.to_bytes());
    }
    // After the names that are kept, because a full table has no room for the empty name: its first name serves.
    let topic = records.topic("", 0..0).map_or(0, |index| index.0);
    let client = records.client("").map_or(0, |index| index.0);
    for at in purged_at {
        records.entries[at..at + 2].copy_from_slice(&topic.to_le_bytes());
        records.entries[at + 2..at + 4].copy_from_slice(&client.to_le_bytes());
    }
    let stamp = BatchStamp {
        base_offset: batch.base_offset(),
        epoch: batch.epoch(),
        flags: batch.flags() | BATCH_HOLDS_PURGED,
    };
    let assembler = BatchAssembler::whole(&records, batch.base_time_us());
    let out = assembler.encode(identity, &stamp, Vec::new());
    debug_assert!(Batch::decode(&Arc::new(out.clone().into()), 0, identity).is_ok());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecordMeta;
    use crate::batch::record_batch::tests::identity;

    #[test]
    fn purging_from_full_tables_leaves_the_names_of_the_other_records() {
        let mut records = Records::new();
        for number in 0..u16::MAX {
            let name = number.to_string();
            let topic = records.topic(&name, 0..1).expect("room");
            let client = records.client(&name).expect("room");
            let meta = RecordMeta::new(topic, client, 1);
            records.push(meta, b"payload").expect("room");
            if number == 0 {
                records.push(meta, b"secret").expect("room");
            }
        }
        let stamp = BatchStamp {
            base_offset: Offset(0),
            epoch: Epoch(1),
            flags: 0,
        };
        let bytes = BatchAssembler::whole(&records, 1).encode(&identity(), &stamp, Vec::new());
        let decode = |bytes: Vec<u8>| {
            Batch::decode(&Arc::new(bytes.into()), 0, &identity()).expect("a whole batch")
        };
        let is_secret = |record: &RecordView<'_>| record.payload == b"secret";
        let left = decode(without(&decode(bytes), &is_secret, &identity()));
        let mut names = (0..u16::MAX).map(|number| number.to_string());
        for record in left.records() {
            assert_eq!(record.purged, record.offset == Offset(1));
            if !record.purged {
                let name = names.next().expect("a record for each name");
                assert_eq!((record.topic, record.client_id), (&*name, &*name));
            }
        }
        assert_eq!(names.next(), None);
    }
}
