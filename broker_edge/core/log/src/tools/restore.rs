//! `restore`: makes a log from a backup, by default with a new identity.
//!
//! Log id and secret are part of every checksum, so each batch gets a new checksum. `log.meta` is written last, and the
//! folder has a file `restoring` until then: the files of an interrupted restore are never taken for a log.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::folder::{UNFINISHED, class_of, is_unfinished};
use super::manifest::{Manifest, StoredPartition, StoredSegment};
use super::segment_writer::SegmentWriter;
use super::work::{ToolError, Work};
use crate::batch::layout::{HEADER_BYTES, Header, Identity};
use crate::batch::record_batch::Batch;
use crate::ids::{Class, Epoch, LogId, Offset, PartitionId, Secret};
use crate::index::builder::IndexBuilder;
use crate::index::catalog_file::CatalogFileWriter;
use crate::recovery::log_folder::{random_id, random_secret, sync_names_of};
use crate::recovery::meta::Meta;
use crate::segment::header::{SEGMENT_HEADER_BYTES, SegmentHeader, file_name};
use crate::segment::scan::{SCAN_CHUNK_BYTES, SegmentScan, Step};
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
        let text = "holds no finished backup: backup.json is not there";
        ToolError::Refused(format!("{} {text}", source.display()))
    })?;
    let old_id = manifest.meta.log_id(source)?;
    let old_secret = manifest.meta.secret;
    let (id, secret) = if same_id {
        (old_id, old_secret)
    } else {
        let made = random_id().and_then(|id| Ok((id, random_secret()?)));
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
    let total = manifest
        .partitions
        .iter()
        .flat_map(|one| &one.segments)
        .map(|one| one.bytes)
        .sum();
    let mut done = 0;
    for (number, partition) in manifest.partitions.iter().enumerate() {
        let (class, _) = class_of(&partition.name).ok_or_else(|| {
            ToolError::Refused(format!(
                "{} is no partition of this version",
                partition.name
            ))
        })?;
        let mut writer = Writer {
            work,
            dir: dir.join(&partition.name),
            class,
            old: identity(old_id, old_secret, number),
            new: identity(id, secret, number),
            epoch: Epoch(manifest.meta.epoch),
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
        epoch: manifest.meta.epoch + ahead,
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

fn identity(log_id: LogId, secret: Secret, number: usize) -> Identity {
    Identity {
        log_id,
        partition: PartitionId(number as u32),
        secret,
    }
}

/// Refuses a folder that holds anything but an interrupted restore, and removes the files of that.
fn prepare(work: Work<'_>, dir: &Path) -> Result<(), ToolError> {
    let files = &*work.seams.files;
    work.on("make", dir, |files, path| files.create_dir(path))?;
    let names = work.on("list", dir, |files, path| files.list(path))?;
    if !names.is_empty() && !is_unfinished(&names) {
        return Err(ToolError::Refused(format!(
            "{} is not empty; restore into a folder that is not there yet",
            dir.display()
        )));
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
    dir: PathBuf,
    class: Class,
    old: Identity,
    new: Identity,
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
        let files = &*self.work.seams.files;
        self.work
            .on("make", &self.dir, |files, path| files.create_dir(path))?;
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
        self.topics
            .save(files, &self.dir, &self.new)
            .map_err(ToolError::io("write the list of topics in", &self.dir))?;
        self.work
            .on("sync", &self.dir, |files, path| files.sync_dir(path))
    }

    fn open_base(&self) -> Offset {
        self.open.as_ref().map_or(Offset(0), |open| open.base)
    }

    /// Finishes the open file and its index, and begins a file at `base`.
    fn begin(&mut self, base: Offset) -> Result<(), ToolError> {
        self.seal()?;
        let header = SegmentHeader {
            identity: self.new,
            class: self.class,
            recycled: false,
            base,
            epoch: self.epoch,
            created_us: self.work.seams.clock.now_us(),
        };
        let path = self.dir.join(file_name(base, "seg"));
        self.open = Some(Open {
            base,
            copy: SegmentWriter::begin(self.work, &path, &header.to_bytes())?,
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
        let path = self.dir.join(file_name(open.base, "idx"));
        let index = open.builder.finish();
        let bytes = index.to_bytes(&self.new);
        self.topics.add(&index, &bytes);
        let file = self.work.seams.files.open(&path, OpenMode::Create);
        file.and_then(|file| file.write_all_at(&bytes, 0))
            .map_err(ToolError::io("write", &path))
    }

    fn copy_segment(&mut self, path: &Path, segment: &StoredSegment) -> Result<(), ToolError> {
        let failed = |error| ToolError::io("read", path)(error);
        let file = self
            .work
            .seams
            .files
            .open(path, OpenMode::Read)
            .map_err(failed)?;
        let is_whole = file.len().map_err(failed)? == segment.bytes
            && checksum_of(&*file).map_err(failed)? == segment.checksum;
        let damaged = || {
            let text = "does not match backup.json; restore another backup";
            ToolError::Refused(format!("{} {text}", path.display()))
        };
        if !is_whole {
            return Err(damaged());
        }
        let mut scan = SegmentScan::new(
            &*file,
            self.old,
            SEGMENT_HEADER_BYTES,
            segment.bytes,
            Offset(segment.base),
        );
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
            match scan.next().map_err(failed)? {
                Step::Batch { batch, .. } => self.put(&batch)?,
                Step::Bad => return Err(damaged()),
            }
        }
        Ok(())
    }

    fn put(&mut self, batch: &Batch) -> Result<(), ToolError> {
        if batch.base_offset() != self.next {
            self.begin(batch.base_offset())?;
        }
        let mut bytes = batch.bytes().to_vec();
        let checksum = self.new.checksum(&bytes);
        bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
        self.next = batch.next_offset();
        self.records += batch.len() as u64;
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let position = open.copy.position();
        open.copy.write(&bytes)?;
        let batch = Batch::decode(&Arc::new(bytes.into()), 0, &self.new).map_err(|error| {
            ToolError::Refused(format!(
                "a batch at offset {} came out wrong: {error}",
                self.next
            ))
        })?;
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
