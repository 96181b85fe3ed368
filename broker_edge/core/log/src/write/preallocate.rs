//! Secures space for batches before it is needed: zeros ahead of the batches, and the change to a new segment.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::config::SyncMode;
use crate::failpoint;
use crate::ids::Class;
use crate::index::builder::IndexBuilder;
use crate::index::segment::Segment;
use crate::segment::create::{FILL_STEP_BYTES, create_segment_file, header_bytes};
use crate::segment::header::{SEGMENT_HEADER_BYTES, file_name};
use crate::vfs::files::{File, OpenMode, PAGE_BYTES, is_full, is_out_of_descriptors};
use crate::write::active::{Active, Halt, LastPage, SpareSegment};
use crate::write::group_commit::Group;
use crate::write::writer::Writer;

/// Zeros are written at least this far ahead of the batches.
const FILL_STEP_BYTES_MIN: u64 = 64 << 10;
/// The index of the active segment is in memory, so a segment with very many topics is sealed early.
const SEGMENT_TOPICS_MAX: usize = 200_000;

impl Writer {
    /// Makes sure that a batch of `bytes` can be written at the active position without new space. May change to a new
    /// segment; then it first flushes `group`, which belongs to the old one.
    pub(super) fn secure(
        &self,
        active: &mut Active,
        group: &mut Group,
        bytes: u64,
    ) -> Result<(), Halt> {
        let has_batches = active.position > SEGMENT_HEADER_BYTES;
        let is_over = active.position + bytes > self.context.segment_bytes
            || active.topics >= SEGMENT_TOPICS_MAX;
        if has_batches && is_over {
            self.flush(active, group)?;
            self.roll(active, bytes)?;
        }
        let end = active.position + bytes;
        if end <= active.filled {
            return Ok(());
        }
        let to = fill_to(active.filled, active.position, self.context.segment_bytes)
            .max(end.next_multiple_of(PAGE_BYTES));
        let filled = self.take_space(to - active.filled).and_then(|()| {
            if self.context.sync == SyncMode::Never {
                return Ok(()); // Without a sync nothing is secured: the space would only be written twice.
            }
            active.file.fill_zeros(active.filled, to)
        });
        match filled {
            Ok(()) => {}
            Err(error) if is_full(&error) => {
                if self.spare_bytes() < SEGMENT_HEADER_BYTES + bytes || !has_batches {
                    return Err(Halt::Full);
                }
                self.flush(active, group)?;
                return self.roll(active, bytes);
            }
            Err(error) => return Err(Halt::failed("extending the active segment", &error)),
        }
        if self.context.sync != SyncMode::Never {
            // Syncs the metadata now, so that the sync of a batch later has only data to write.
            self.sync_file(active)?;
        }
        failpoint!("segment-filled");
        active.filled = to;
        active.segment.set_file_bytes(to);
        Ok(())
    }

    /// Takes space from the disk budget. The internal partition is never refused.
    fn take_space(&self, bytes: u64) -> io::Result<()> {
        if self.context.class == Class::Internal {
            self.budget.note(bytes);
        } else if !self.budget.take(bytes) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        Ok(())
    }

    pub fn spare_bytes(&self) -> u64 {
        self.spare.lock().as_ref().map_or(0, |spare| spare.bytes)
    }

    /// Seals the active segment, whose batches are all shown to readers, and begins a new one. What a replica has not
    /// committed always lies in the active segment: until all is committed it begins no other.
    pub(super) fn roll(&self, active: &mut Active, first_bytes: u64) -> Result<(), Halt> {
        self.sync_active(active)?;
        if self.context.is_replica && self.status.high_watermark() != active.next {
            return Err(Halt::Uncommitted);
        }
        failpoint!("roll-begun");
        let context = &self.context;
        let path = context.dir.join(file_name(active.next, "seg"));
        let (file, filled) = match self.begin_segment(active, &path, first_bytes) {
            Ok(begun) => begun,
            // Passes by itself: nothing was written to the active segment.
            Err(error) if is_full(&error) || is_out_of_descriptors(&error) => {
                return Err(Halt::Full);
            }
            Err(error) => return Err(Halt::failed("preparing a segment", &error)),
        };
        failpoint!("roll-segment-ready");
        let builder = IndexBuilder::new(active.next);
        let segment = Arc::new(Segment::active(&context.dir, builder));
        self.topics.seal(&active.segment);
        if active.filled > active.position + FILL_STEP_BYTES {
            // Gives unused space back. If it fails, the space stays taken and nothing else changes.
            let _ = active.file.set_len(active.position);
            active.segment.set_file_bytes(0);
        }
        failpoint!("roll-sealed");
        self.segments.push(Arc::clone(&segment));
        active.file = file;
        active.segment = segment;
        active.position = SEGMENT_HEADER_BYTES;
        active.filled = filled;
        active.last_page = LastPage::default();
        active.segment.set_file_bytes(filled);
        active.topics = 0;
        Ok(())
    }

    /// Makes the new segment complete and durable under its name; returns the file and how far it is filled.
    fn begin_segment(
        &self,
        active: &Active,
        path: &Path,
        first_bytes: u64,
    ) -> io::Result<(Arc<dyn File>, u64)> {
        let context = &self.context;
        let spare = self.spare.lock().take();
        let recycled = spare.as_ref().is_some_and(|spare| spare.recycled);
        let header = header_bytes(context, active.next, recycled);
        let (unfinished, file, filled) = match spare {
            Some(spare) => {
                spare.file.write_all_at(&header, 0)?;
                spare.file.sync_data()?;
                (spare.path, spare.file, spare.bytes)
            }
            None => {
                let unfinished = path.with_extension("seg.tmp");
                let end =
                    (SEGMENT_HEADER_BYTES + first_bytes).max(fill_to(0, 0, context.segment_bytes));
                self.take_space(end)?;
                match create_segment_file(context, &unfinished, &header, end) {
                    Ok(file) => (unfinished, file, end),
                    Err(error) => {
                        // It may hold the last free bytes. A start would remove it too.
                        let _ = context.seams.files.remove(&unfinished);
                        return Err(error);
                    }
                }
            }
        };
        failpoint!("segment-written");
        context.seams.files.rename(&unfinished, path)?;
        failpoint!("segment-named");
        context.seams.files.sync_dir(&context.dir)?;
        Ok((file, filled))
    }

    /// Removes a spare that holds the file of a removed segment: when space is short, it is needed elsewhere.
    pub fn drop_recycled_spare(&self) {
        let mut spare = self.spare.lock();
        if self.context.class == Class::Internal {
            return;
        }
        if let Some(spare) = spare.take_if(|spare| spare.recycled)
            && let Err(error) = self.context.seams.files.remove(&spare.path)
        {
            tracing::warn!(partition = %self.context.name, %error, "a spare segment could not be removed");
        }
    }

    fn new_spare_path(&self) -> PathBuf {
        let number = self.spares_made.fetch_add(1, Ordering::Relaxed);
        self.context.dir.join(format!("spare-{number}.tmp"))
    }

    /// The internal partition always has a whole spare segment, so that state can be saved when the disk is full.
    pub fn prepare_spare(&self) {
        if self.context.class != Class::Internal || self.spare.lock().is_some() {
            return;
        }
        let path = self.new_spare_path();
        let bytes = self.context.segment_bytes;
        let zeros = vec![0; SEGMENT_HEADER_BYTES as usize];
        match create_segment_file(&self.context, &path, &zeros, bytes) {
            Ok(file) => {
                self.budget.note(bytes);
                failpoint!("spare-made");
                let mut spare = self.spare.lock();
                if spare.is_some() {
                    // A removed segment became the spare meanwhile.
                    let _ = self.context.seams.files.remove(&path);
                    return;
                }
                *spare = Some(SpareSegment {
                    path,
                    file,
                    bytes,
                    recycled: false,
                });
            }
            Err(error) => {
                tracing::warn!(partition = %self.context.name, %error, "no spare segment yet");
                let _ = self.context.seams.files.remove(&path);
            }
        }
    }

    /// Turns the file of a removed segment into the spare segment. False when no spare is wanted: the caller then
    /// removes the file.
    pub fn recycle(&self, segment: Arc<Segment>) -> io::Result<bool> {
        let context = &self.context;
        let path = self.new_spare_path();
        let mut spare = self.spare.lock();
        // A reader that still has the segment may open its file by name, and must not find other bytes there.
        let Ok(segment) = Arc::try_unwrap(segment).map_err(drop) else {
            return Ok(false);
        };
        if spare.is_some() {
            return Ok(false);
        }
        let file = context.open(&segment.path, OpenMode::ReadWrite)?;
        let bytes = file.len()?;
        if bytes < context.segment_bytes / 2 || bytes > context.segment_bytes + FILL_STEP_BYTES {
            return Ok(false);
        }
        context.seams.files.rename(&segment.path, &path)?;
        failpoint!("retention-segment-renamed");
        let zeroed = context.seams.files.sync_dir(&context.dir).and_then(|()| {
            file.write_all_at(&vec![0; SEGMENT_HEADER_BYTES as usize], 0)?;
            file.sync_data()
        });
        if let Err(error) = zeroed {
            let _ = context.seams.files.remove(&path);
            return Err(error);
        }
        failpoint!("retention-segment-recycled");
        *spare = Some(SpareSegment {
            path,
            file,
            bytes,
            recycled: true,
        });
        Ok(true)
    }
}

/// How far to fill when `filled` is used up: ahead by as much as was written so far. So a segment that stays small
/// costs little more than its records, and one that grows is rarely synced for this.
fn fill_to(filled: u64, position: u64, segment_bytes: u64) -> u64 {
    let step = position.clamp(FILL_STEP_BYTES_MIN, FILL_STEP_BYTES);
    (filled + step).min(segment_bytes)
}
