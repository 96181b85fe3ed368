//! `backup`: a copy of a log up to its high watermarks, taken while the log is open or closed.
//!
//! Files of a backup are never changed. So a second backup into the same folder copies only new segments, and the first
//! one stays valid until the second is complete. Segments are copied, never linked: the log may recycle a file.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::folder::{Folder, PartitionDir, with_ends};
use super::manifest::{BACKUP_FORMAT, Manifest, StoredPartition, StoredSegment, claim};
use super::scan::scan_segment;
use super::segment_writer::SegmentWriter;
use super::work::{Access, ToolError, Work};
use crate::ids::Offset;
use crate::log::Log;
use crate::partition::{Owners, Partition};
use crate::recovery::meta::Meta;
use crate::segment::header::SEGMENT_HEADER_BYTES;
use crate::vfs::files::{OpenMode, read_full};
use crate::vfs::salvage::Salvage;

#[derive(Debug, Clone, Default, Serialize, PartialEq, Eq)]
pub struct BackupReport {
    pub log_id: String,
    pub dir: PathBuf,
    pub partitions: Vec<BackedUp>,
    /// Segments that an earlier backup already had.
    pub reused: usize,
    pub copied: usize,
    pub copied_bytes: u64,
}

#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
pub struct BackedUp {
    pub name: String,
    pub log_start: u64,
    pub high_watermark: u64,
    /// Offsets that are damaged in the source and missing in the backup.
    pub damaged: Vec<(u64, u64)>,
}

/// The part of a partition to copy.
struct PartitionCopy {
    place: PartitionDir,
    log_start: Offset,
    /// None: up to the end of the last segment.
    high_watermark: Option<Offset>,
    /// Base offsets, and the base offset of the next segment.
    segments: Vec<(Offset, Option<Offset>)>,
}

/// Copies the log in `dir`, which no process has open, to `dest`.
pub fn backup(dir: &Path, dest: &Path, work: Work<'_>) -> Result<BackupReport, ToolError> {
    let folder = Folder::open(dir, Access::Alone, work)?;
    folder.refuse_member(
        dir,
        "back up the running cluster, which knows what is committed",
    )?;
    let parts = folder.partitions.iter().map(|place| PartitionCopy {
        place: place.clone(),
        log_start: place.bases.first().copied().unwrap_or_default(),
        high_watermark: None,
        segments: folder.readable(place),
    });
    let parts = parts.collect();
    copy_parts(&folder.meta?, parts, dir, dest, work)
}

impl Log {
    /// Copies the records below the high watermarks of now to `dest`, while the log is written and read. Until it is
    /// done, retention removes nothing.
    pub fn backup(&self, dest: &Path, work: Work<'_>) -> Result<BackupReport, ToolError> {
        let owners: Vec<&Owners> = self.partitions().iter().map(Partition::owners).collect();
        let _pauses: Vec<_> = owners.iter().map(|one| one.retention.pause()).collect();
        // The internal partition comes first and its high watermark is read first: its records name offsets of the
        // others, which are durable by then.
        let parts: Vec<PartitionCopy> = owners.iter().map(|one| part_of(one)).collect();
        let first = &owners[0].shared.context.dir;
        let dir = first.parent().expect("it is in the folder of the log");
        let meta = Meta::load(&*work.seams.files, dir)?;
        let meta = meta.ok_or_else(|| ToolError::Refused("log.meta is gone".to_owned()))?;
        copy_parts(&meta, parts, dir, dest, work)
    }
}

fn part_of(owners: &Owners) -> PartitionCopy {
    let high_watermark = owners.shared.status.high_watermark();
    let segments = owners.shared.segments.all();
    let bases = segments.iter().map(|segment| segment.base);
    let bases: Vec<Offset> = bases.filter(|base| *base < high_watermark).collect();
    let context = &owners.shared.context;
    let log = context.dir.parent().unwrap_or(&context.dir);
    PartitionCopy {
        place: PartitionDir::new(log, &context.name, context.class, context.identity),
        log_start: owners.shared.status.log_start(),
        high_watermark: Some(high_watermark),
        segments: with_ends(&bases, Some(high_watermark)),
    }
}

fn copy_parts(
    meta: &Meta,
    parts: Vec<PartitionCopy>,
    dir: &Path,
    dest: &Path,
    work: Work<'_>,
) -> Result<BackupReport, ToolError> {
    let files = &*work.seams.files;
    if dest.starts_with(dir) {
        let why = "lies in the data folder; choose a folder outside of it";
        return Err(ToolError::refused(dest, why));
    }
    claim(work, dest, &meta.log_id)?;
    let earlier = Manifest::load(files, dest)?;
    let mut report = BackupReport {
        log_id: meta.log_id.clone(),
        dir: dest.to_owned(),
        ..BackupReport::default()
    };
    let total = parts.iter().map(|part| part.segments.len() as u64).sum();
    let mut done = 0;
    let mut partitions = Vec::new();
    for part in &parts {
        let folder = dest.join(&part.place.name);
        work.on("make", &folder, |files, path| files.create_dir(path))?;
        let mut stored = Vec::new();
        for (base, limit) in &part.segments {
            work.go_on()?;
            let earlier = earlier.as_ref();
            let segment = store(part, *base, *limit, earlier, dest, work, &mut report)?;
            stored.push(segment);
            done += 1;
            (work.progress)(done, total);
        }
        work.on("sync", &folder, |files, path| files.sync_dir(path))?;
        let last = stored.last().map_or(part.log_start.0, |last| last.end);
        let partition = StoredPartition {
            name: part.place.name.clone(),
            log_start: part.log_start.0,
            high_watermark: part.high_watermark.map_or(last, |offset| offset.0),
            segments: stored,
        };
        let segments = partition.segments.iter();
        report.partitions.push(BackedUp {
            name: part.place.name.clone(),
            log_start: partition.log_start,
            high_watermark: partition.high_watermark,
            damaged: segments.flat_map(|one| one.damaged.clone()).collect(),
        });
        partitions.push(partition);
    }
    work.on("sync", dest, |files, path| files.sync_dir(path))?;
    let manifest = Manifest {
        backup_format: BACKUP_FORMAT,
        made_us: work.seams.clock.now_us(),
        meta: meta.clone().of_member(None),
        partitions,
    };
    manifest.save(files, dest)?;
    prune(&manifest, dest, work);
    Ok(report)
}

/// Copies a segment, unless an earlier backup has it.
fn store(
    part: &PartitionCopy,
    base: Offset,
    limit: Option<Offset>,
    earlier: Option<&Manifest>,
    dest: &Path,
    work: Work<'_>,
    report: &mut BackupReport,
) -> Result<StoredSegment, ToolError> {
    let files = &*work.seams.files;
    let path = part.place.segment(base);
    let failed = |error| ToolError::io("read", &path)(error);
    let source = Salvage::new(part.place.open(work, base)?);
    let mut header = vec![0; SEGMENT_HEADER_BYTES as usize];
    let read = read_full(&source, &mut header, 0).map_err(failed)?;
    header[read..].fill(0);
    // A segment that a purge has rewritten has another header.
    let version = crc32c::crc32c(&header);
    let name = |end: u64| format!("{:020}-{end:020}-{version:08x}.seg", base.0);
    if let (Some(limit), Some(earlier)) = (limit, earlier)
        && let Some(stored) = earlier.find(&part.place.name, &name(limit.0))
        && let path = Manifest::path_of(dest, &part.place.name, &stored.file)
        && let Ok(file) = files.open(&path, OpenMode::Read)
        && file.len().is_ok_and(|length| length == stored.bytes)
    {
        report.reused += 1;
        return Ok(stored.clone());
    }
    let unfinished = Manifest::path_of(dest, &part.place.name, &format!("{:020}.tmp", base.0));
    let mut copy = SegmentWriter::begin(work, &unfinished, &header)?;
    let scan = scan_segment(work, &part.place, base, limit, |batch, _| {
        copy.write(batch.bytes())
    })?;
    let end = limit.unwrap_or(scan.next);
    let lost = scan.damage.iter().map(|one| &one.lost);
    let damaged = lost.map(|lost| (lost.start.0, lost.end.0));
    let (bytes, checksum) = copy.finish()?;
    let file = name(end.0);
    let path = Manifest::path_of(dest, &part.place.name, &file);
    work.on("rename", &unfinished, |files, from| {
        files.rename(from, &path)
    })?;
    report.copied += 1;
    report.copied_bytes += bytes;
    Ok(StoredSegment {
        file,
        base: base.0,
        end: end.0,
        bytes,
        checksum,
        damaged: damaged.collect(),
    })
}

/// Removes files of earlier backups that this one does not name. A file that stays only takes space.
fn prune(manifest: &Manifest, dest: &Path, work: Work<'_>) {
    let files = &*work.seams.files;
    for partition in &manifest.partitions {
        let folder = dest.join(&partition.name);
        let names = files.list(&folder).unwrap_or_default();
        let is_ours = |name: &String| name.ends_with(".seg") || name.ends_with(".tmp");
        for name in names.iter().filter(|name| is_ours(name)) {
            if manifest.find(&partition.name, name).is_none()
                && let Err(error) = files.remove(&folder.join(name))
            {
                tracing::warn!(file = name, %error, "a file of an earlier backup is not removed");
            }
        }
    }
}
