//! `restore`: makes a log from a backup, by default with a new identity.
//!
//! Log id and secret are part of every checksum, so each batch gets a new checksum. `log.meta` is written last, and the
//! folder has a file `restoring` until then: the files of an interrupted restore are never taken for a log.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::folder::{PartitionDir, UNFINISHED, class_of, is_unfinished};
use super::manifest::{Manifest, StoredPartition, StoredSegment};
use super::segment_writer::SegmentWriter;
use super::work::{ToolError, Work};
use crate::batch::assembler::seal;
use crate::batch::layout::{HEADER_BYTES, Header, Identity};
use crate::batch::record_batch::Batch;
use crate::ids::{Epoch, Offset, PartitionId};
use crate::index::builder::IndexBuilder;
use crate::index::catalog_file::CatalogFileWriter;
use crate::recovery::log_folder::{random_identity, sync_names_of};
use crate::recovery::meta::Meta;
use crate::segment::header::SEGMENT_HEADER_BYTES;
use crate::segment::scan::{SCAN_CHUNK_BYTES, SegmentScan};
use crate::vfs::files::{File, OpenMode, read_full, replace_file};

/// With the same id, the old log may have gone on after the backup; its epochs must not be used again.
const EPOCHS_AHEAD: u64 = 1 << 20;

#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
pub struct RestoreReport {
    pub log_id: String,
    /// The log that was backed up.
    pub source_log_id: String,
    pub dir: PathBuf,
    pub records: u64,
    /// Per partition: name, log start, high watermark.
    pub partitions: Vec<(String, u64, u64)>,
}

/// Writes the backup in `source` to `dir`, which must be missing or empty.
pub fn restore(
    source: &Path,
    dir: &Path,
    same_id: bool,
    work: Work<'_>,
) -> Result<RestoreReport, ToolError> {
    let files = &*work.seams.files;
    let manifest = Manifest::load(files, source)?.ok_or_else(|| {
        ToolError::refused(source, "holds no finished backup: backup.json is not there")
    })?;
    let old_id = manifest.meta.log_id(source)?;
    let old_secret = manifest.meta.secret;
    let (id, secret) = if same_id {
        (old_id, old_secret)
    } else {
        let made = random_identity();
        made.map_err(ToolError::io("read", Path::new("/dev/urandom")))?
    };
    prepare(work, dir)?;
    let mut report = RestoreReport {
        log_id: id.to_string(),
        source_log_id: old_id.to_string(),
        dir: dir.to_owned(),
        records: 0,
        partitions: Vec::new(),
    };
    let segments = manifest.partitions.iter().flat_map(|one| &one.segments);
    let total = segments.map(|one| one.bytes).sum();
    let mut done = 0;
    let mut epoch = Epoch(manifest.meta.epoch);
    for (number, partition) in manifest.partitions.iter().enumerate() {
        let name = Path::new(&partition.name);
        let (class, _) = class_of(&partition.name)
            .ok_or_else(|| ToolError::refused(name, "is no partition of this version"))?;
        let identity = |log_id, secret| Identity {
            log_id,
            partition: PartitionId(number as u32),
            secret,
        };
        let mut writer = Writer {
            work,
            place: PartitionDir::new(dir, &partition.name, class, identity(id, secret)),
            old: identity(old_id, old_secret),
            epoch,
            open: None,
            next: Offset(partition.log_start),
            records: 0,
            topics: CatalogFileWriter::default(),
        };
        writer.restore(source, partition, &mut |bytes| {
            done += bytes;
            (work.progress)(done, total);
        })?;
        report.records += writer.records;
        epoch = writer.epoch;
        report.partitions.push((
            partition.name.clone(),
            partition.log_start,
            partition.high_watermark,
        ));
    }
    let ahead = if same_id { EPOCHS_AHEAD } else { 0 };
    let meta = Meta {
        log_id: id.to_string(),
        secret,
        created_us: work.seams.clock.now_us(),
        epoch: epoch.0 + ahead,
        ..manifest.meta
    };
    sync_names_of(files, dir)?;
    meta.save(files, dir)?;
    let marker = dir.join(UNFINISHED);
    files
        .remove(&marker)
        .and_then(|()| files.sync_dir(dir))
        .map_err(ToolError::io("remove", &marker))?;
    Ok(report)
}

/// Refuses a folder that holds anything but an interrupted restore, and removes the files of that.
fn prepare(work: Work<'_>, dir: &Path) -> Result<(), ToolError> {
    let files = &*work.seams.files;
    work.on("make", dir, |files, path| files.create_dir(path))?;
    let names = work.on("list", dir, |files, path| files.list(path))?;
    if !names.is_empty() && !is_unfinished(&names) {
        let why = "is not empty; restore into a folder that is not there yet";
        return Err(ToolError::refused(dir, why));
    }
    let marker = dir.join(UNFINISHED);
    replace_file(files, &marker, b"log restore has not finished here\n")
        .and_then(|()| files.sync_dir(dir))
        .map_err(ToolError::io("write", &marker))?;
    for name in names.iter().filter(|name| class_of(name).is_some()) {
        let folder = dir.join(name);
        for file in work.on("list", &folder, |files, path| files.list(path))? {
            let path = folder.join(file);
            work.on("remove", &path, |files, path| files.remove(path))?;
        }
    }
    Ok(())
}

/// Writes the segments of one partition.
struct Writer<'a> {
    work: Work<'a>,
    /// The new partition.
    place: PartitionDir,
    old: Identity,
    /// Not below that of any batch so far. `log.meta` of a replica knows its starts, and not the terms of its leaders.
    epoch: Epoch,
    open: Option<Open>,
    /// The next expected offset.
    next: Offset,
    records: u64,
    /// Topics of the finished segments.
    topics: CatalogFileWriter,
}

struct Open {
    base: Offset,
    copy: SegmentWriter,
    builder: IndexBuilder,
}

impl Writer<'_> {
    fn restore(
        &mut self,
        source: &Path,
        partition: &StoredPartition,
        done: &mut dyn FnMut(u64),
    ) -> Result<(), ToolError> {
        let (work, dir) = (self.work, self.place.dir.clone());
        work.on("make", &dir, |files, path| files.create_dir(path))?;
        // From the log start, so that damage there becomes a gap.
        self.begin(Offset(partition.log_start))?;
        for segment in &partition.segments {
            if Offset(segment.base) > self.open_base() {
                self.begin(Offset(segment.base))?;
            }
            let path = Manifest::path_of(source, &partition.name, &segment.file);
            self.copy_segment(&path, segment)?;
            done(segment.bytes);
        }
        if self.next.0 < partition.high_watermark {
            self.begin(Offset(partition.high_watermark))?;
        }
        // The last segment is the active one and has no index.
        if let Some(open) = self.open.take() {
            open.copy.finish()?;
        }
        work.on("write the list of topics in", &dir, |files, dir| {
            self.topics.save(files, dir, &self.place.identity)
        })?;
        work.on("sync", &dir, |files, path| files.sync_dir(path))
    }

    fn open_base(&self) -> Offset {
        self.open.as_ref().map_or(Offset(0), |open| open.base)
    }

    /// Finishes the open file and its index, and begins a file at `base`.
    fn begin(&mut self, base: Offset) -> Result<(), ToolError> {
        self.seal()?;
        let (path, epoch) = (self.place.segment(base), self.epoch);
        self.open = Some(Open {
            base,
            copy: SegmentWriter::begin_segment(self.work, &path, &self.place, base, epoch)?,
            builder: IndexBuilder::new(base),
        });
        self.next = base;
        Ok(())
    }

    fn seal(&mut self) -> Result<(), ToolError> {
        let Some(mut open) = self.open.take() else {
            return Ok(());
        };
        open.copy.finish()?;
        let path = self.place.segment(open.base).with_extension("idx");
        let index = open.builder.finish();
        let bytes = index.to_bytes(&self.place.identity);
        self.topics.add(&index, &bytes);
        self.work.on("write", &path, |files, path| {
            files.open(path, OpenMode::Create)?.write_all_at(&bytes, 0)
        })
    }

    fn copy_segment(&mut self, path: &Path, segment: &StoredSegment) -> Result<(), ToolError> {
        let failed = |error| ToolError::io("read", path)(error);
        let file = self.work.seams.files.open(path, OpenMode::Read);
        let file = file.map_err(failed)?;
        let is_whole = file.len().map_err(failed)? == segment.bytes
            && checksum_of(&*file).map_err(failed)? == segment.checksum;
        let damaged =
            || ToolError::refused(path, "does not match backup.json; restore another backup");
        if !is_whole {
            return Err(damaged());
        }
        let (begin, end, base) = (SEGMENT_HEADER_BYTES, segment.bytes, Offset(segment.base));
        let mut scan = SegmentScan::new(&*file, self.old, begin, end, base);
        while scan.position < segment.bytes {
            self.work.go_on()?;
            let mut head = [0; HEADER_BYTES];
            read_full(&*file, &mut head, scan.position).map_err(failed)?;
            // Damaged batches were left out of the file.
            let base = Header::parse(&head).map_err(|_| damaged())?.base_offset;
            if base < scan.expected {
                return Err(damaged());
            }
            scan.expected = base;
            let (batch, _) = scan.next().map_err(failed)?.ok_or_else(damaged)?;
            self.put(&batch)?;
        }
        Ok(())
    }

    fn put(&mut self, batch: &Batch) -> Result<(), ToolError> {
        self.epoch = self.epoch.max(batch.epoch());
        if batch.base_offset() != self.next {
            self.begin(batch.base_offset())?;
        }
        let mut bytes = batch.bytes().to_vec();
        seal(&self.place.identity, &mut bytes);
        self.next = batch.next_offset();
        self.records += batch.len() as u64;
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let position = open.copy.position();
        open.copy.write(&bytes)?;
        let batch = Batch::from_encoded(Arc::new(bytes.into()), 0);
        open.builder.add(&batch, position);
        Ok(())
    }
}

fn checksum_of(file: &dyn File) -> std::io::Result<u32> {
    let (mut checksum, mut position) = (0, 0);
    let mut chunk = vec![0; SCAN_CHUNK_BYTES];
    loop {
        let read = read_full(file, &mut chunk, position)?;
        if read == 0 {
            return Ok(checksum);
        }
        checksum = crc32c::crc32c_append(checksum, &chunk[..read]);
        position += read as u64;
    }
}
