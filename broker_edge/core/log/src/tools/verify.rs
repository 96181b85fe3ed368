//! `verify`: reads every segment and reports what is whole, what is lost, and what a start would repair. Changes
//! nothing.

use std::path::Path;

use serde::Serialize;

use super::folder::{Folder, PartitionDir};
use super::scan::{SegmentCheck, scan_segment};
use super::work::{Access, ToolError, Work};
use crate::ids::{Epoch, Offset};
use crate::index::builder::IndexBuilder;
use crate::index::keys::KeyHashing;
use crate::index::model::Index;
use crate::recovery::checkpoint::Checkpoint;
use crate::segment::header::{FORMAT, HeaderFound, file_name};
use crate::vfs::files::read_file;

/// Larger than the index of any segment.
const INDEX_BYTES_MAX: usize = 1 << 30;

#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
pub struct VerifyReport {
    pub log_id: String,
    pub format: u32,
    /// False when a broker had the log open: then the newest segments were left out.
    pub complete: bool,
    /// Why there is no good `log.meta`.
    pub meta: Option<String>,
    pub partitions: Vec<PartitionCheck>,
}

/// Lost offsets, and where their bytes should be.
#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
pub struct FoundGap {
    pub start: u64,
    pub end: u64,
    /// `damage` or `purge`.
    pub reason: &'static str,
    pub file: String,
    pub position: u64,
    pub bytes: u64,
}

#[derive(Debug, Clone, Serialize, PartialEq, Eq, Default)]
pub struct PartitionCheck {
    pub partition: u32,
    pub name: String,
    pub segments: usize,
    pub records: u64,
    pub purged: u64,
    /// Bytes of segments up to their last batch.
    pub bytes: u64,
    pub log_start: u64,
    pub next_offset: u64,
    pub first_epoch: u64,
    pub last_epoch: u64,
    pub gaps: Vec<FoundGap>,
    /// The first offset that is damaged.
    pub first_bad: Option<u64>,
    /// Damage that loses no record: headers, the checkpoint.
    pub flaws: Vec<String>,
    /// Indexes that a start would build again.
    pub indexes: Vec<String>,
    /// Bytes behind the last batch that a start would cut as an unfinished write.
    pub torn_bytes: u64,
    /// Files that earlier starts kept aside.
    pub kept_aside: usize,
}

impl VerifyReport {
    /// Segments and bytes that were read.
    #[must_use]
    pub fn read(&self) -> (usize, u64) {
        let of = |(segments, bytes), check: &PartitionCheck| {
            (segments + check.segments, bytes + check.bytes)
        };
        self.partitions.iter().fold((0, 0), of)
    }

    /// Whether the result says anything: beside a running broker, all segments may have been left out.
    #[must_use]
    pub fn has_read(&self) -> bool {
        self.read().0 > 0
    }

    /// Whether anything is damaged. An index that must be built again does not count.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        let is_hurt = |check: &PartitionCheck| check.first_bad.is_some() || !check.flaws.is_empty();
        self.meta.is_some() || self.partitions.iter().any(is_hurt)
    }
}

/// Reads everything readable of the log in `dir`.
pub fn verify(dir: &Path, access: Access, work: Work<'_>) -> Result<VerifyReport, ToolError> {
    let folder = Folder::open(dir, access, work)?;
    let total = folder.bytes(work);
    let mut done = 0;
    let mut partitions = Vec::new();
    for place in &folder.partitions {
        partitions.push(check_partition(&folder, place, work, &mut done, total)?);
    }
    Ok(VerifyReport {
        log_id: folder.log_id.to_string(),
        format: folder.meta.as_ref().map_or(FORMAT, |meta| meta.format),
        complete: folder.lock.is_some(),
        meta: folder.meta.as_ref().err().map(ToString::to_string),
        partitions,
    })
}

fn check_partition(
    folder: &Folder,
    place: &PartitionDir,
    work: Work<'_>,
    done: &mut u64,
    total: u64,
) -> Result<PartitionCheck, ToolError> {
    let mut check = PartitionCheck {
        partition: place.identity.partition.0,
        name: place.name.clone(),
        log_start: place.bases.first().map_or(0, |base| base.0),
        kept_aside: place.aside.len(),
        ..PartitionCheck::default()
    };
    if place.bases.is_empty() {
        check
            .flaws
            .push("the folder is missing or empty".to_owned());
        return Ok(check);
    }
    let newest = folder.meta.as_ref().map_or(u64::MAX, |meta| meta.epoch);
    let mut last: Option<SegmentCheck> = None;
    for (base, limit) in folder.readable(place) {
        let scan = check_segment(place, base, limit, work, &mut check)?;
        *done += scan.end;
        (work.progress)(*done, total);
        last = Some(scan);
    }
    // The epochs of a node of a cluster are the terms of its leaders, and those of `log.meta` its own starts.
    if check.last_epoch > newest && !folder.is_of_member {
        check.flaws.push(format!(
            "it has epoch {}, log.meta knows {newest}",
            check.last_epoch
        ));
    }
    if let Some(last) = last.filter(|_| folder.lock.is_some()) {
        check_end(place, &last, work, &mut check);
    }
    let first = check.gaps.iter().find(|gap| gap.reason == "damage");
    check.first_bad = first.map(|gap| gap.start);
    Ok(check)
}

fn check_segment(
    place: &PartitionDir,
    base: Offset,
    limit: Option<Offset>,
    work: Work<'_>,
    check: &mut PartitionCheck,
) -> Result<SegmentCheck, ToolError> {
    let file = file_name(base, "seg");
    let mut index = IndexBuilder::new(base);
    let mut epoch = Epoch(check.last_epoch);
    let mut backwards = None;
    let mut purged: Vec<std::ops::Range<u64>> = Vec::new();
    let mut count = 0;
    let scan = scan_segment(work, place, base, limit, |batch, position| {
        index.add(batch, position);
        if batch.epoch() < epoch {
            backwards.get_or_insert(batch.base_offset());
        }
        epoch = batch.epoch();
        for record in batch.records().filter(|record| record.purged) {
            count += 1;
            let offset = record.offset.0;
            match purged.last_mut().filter(|run| run.end == offset) {
                Some(run) => run.end += 1,
                None => purged.push(offset..offset + 1),
            }
        }
        Ok(())
    })?;
    let gap = |range: std::ops::Range<u64>, reason, place: std::ops::Range<u64>| FoundGap {
        start: range.start,
        end: range.end,
        reason,
        file: file.clone(),
        position: place.start,
        bytes: place.end - place.start,
    };
    for damage in &scan.damage {
        let lost = damage.lost.start.0..damage.lost.end.0;
        check.gaps.push(gap(lost, "damage", damage.place.clone()));
    }
    check
        .gaps
        .extend(purged.into_iter().map(|run| gap(run, "purge", 0..0)));
    check.gaps.sort_by_key(|gap| gap.start);
    check.segments += 1;
    check.records += scan.records;
    check.purged += count;
    check.bytes += scan.end;
    check.next_offset = limit.unwrap_or(scan.next).0;
    check.last_epoch = epoch.0;
    if check.first_epoch == 0 {
        let first = index.head().epochs.first();
        check.first_epoch = first.map_or(0, |(_, epoch)| epoch.0);
    }
    if let Some(offset) = backwards {
        check
            .flaws
            .push(format!("{file}: the epoch falls at offset {offset}"));
    }
    if scan.unreadable > 0 {
        let pieces = scan.unreadable;
        check.flaws.push(format!(
            "{file}: the disk does not give {pieces} pieces of 4,096 bytes"
        ));
    }
    check_header(place, base, &scan.header, &file, check);
    if limit.is_some() {
        check_index(place, base, index.finish(), work, check);
    }
    Ok(scan)
}

fn check_header(
    place: &PartitionDir,
    base: Offset,
    header: &HeaderFound,
    file: &str,
    check: &mut PartitionCheck,
) {
    let flaw = match header {
        HeaderFound::Good(header) if header.identity == place.identity && header.base == base => {
            return;
        }
        HeaderFound::Good(header) if header.identity.secret != place.identity.secret => {
            "the header has another secret than the log".to_owned()
        }
        HeaderFound::Good(header) => format!(
            "it is offset {} of partition {} of log {}, moved or renamed",
            header.base, header.identity.partition, header.identity.log_id
        ),
        HeaderFound::NewerFormat(format) => format!("format {format} is unknown to this version"),
        HeaderFound::Bad => "the header is damaged".to_owned(),
    };
    check.flaws.push(format!("{file}: {flaw}"));
}

fn check_index(
    place: &PartitionDir,
    base: Offset,
    expected: Index,
    work: Work<'_>,
    check: &mut PartitionCheck,
) {
    let name = file_name(base, "idx");
    let path = place.dir.join(&name);
    let what = match read_file(&*work.seams.files, &path, INDEX_BYTES_MAX) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => "missing",
        Err(_) => "unreadable",
        Ok(bytes) => match Index::from_bytes(&bytes, &place.identity) {
            None => "damaged",
            Some(index) => {
                if is_same(index, expected) {
                    return;
                }
                "not the one of its segment"
            }
        },
    };
    check.indexes.push(format!("{name}: {what}"));
}

/// Whether an index is the expected one, whose keys are in the order of their records.
fn is_same(mut index: Index, mut expected: Index) -> bool {
    if index.key_hashing == KeyHashing::Key {
        // From format 2, which hashes them otherwise: their places are compared.
        expected.key_hashing = index.key_hashing;
        let keys = index.keys.iter_mut().chain(&mut expected.keys);
        keys.for_each(|key| key.hash = 0);
        index.keys.sort_unstable();
    }
    expected.keys.sort_unstable();
    index == expected
}

/// Judges the bytes behind the last batch: lost when the checkpoint covers them, else an unfinished write.
fn check_end(
    place: &PartitionDir,
    last: &SegmentCheck,
    work: Work<'_>,
    check: &mut PartitionCheck,
) {
    let checkpoint = Checkpoint::load(&*work.seams.files, &place.dir, &place.identity);
    let checkpoint = checkpoint.unwrap_or_else(|what| {
        check.flaws.push(what.to_owned());
        None
    });
    if let Some(checkpoint) = checkpoint.filter(|checkpoint| checkpoint.next > last.next) {
        check.gaps.push(FoundGap {
            start: last.next.0,
            end: checkpoint.next.0,
            reason: "damage",
            file: file_name(last.base, "seg"),
            position: last.end,
            bytes: checkpoint.position.saturating_sub(last.end),
        });
        check.next_offset = checkpoint.next.0;
        return;
    }
    if matches!(last.header, HeaderFound::Good(header) if !header.recycled) {
        check.torn_bytes = last.leftover;
    }
}
