//! Writes the segment files of backup, restore and purge.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::folder::PartitionDir;
use super::work::{ToolError, Work};
use crate::ids::{Epoch, Offset};
use crate::segment::header::SegmentHeader;
use crate::segment::scan::SCAN_CHUNK_BYTES;
use crate::vfs::files::{File, OpenMode};

/// Writes a file from its beginning to its end.
pub(super) struct SegmentWriter {
    path: PathBuf,
    file: Arc<dyn File>,
    buffer: Vec<u8>,
    written: u64,
    checksum: u32,
}

impl SegmentWriter {
    pub fn begin(work: Work<'_>, path: &Path, header: &[u8]) -> Result<Self, ToolError> {
        let file = work.seams.files.open(path, OpenMode::Create);
        let mut copy = Self {
            path: path.to_owned(),
            file: file.map_err(ToolError::io("make", path))?,
            buffer: Vec::new(),
            written: 0,
            checksum: 0,
        };
        copy.write(header)?;
        Ok(copy)
    }

    /// Begins a segment of a partition that starts at `base`.
    pub fn begin_segment(
        work: Work<'_>,
        path: &Path,
        place: &PartitionDir,
        base: Offset,
        epoch: Epoch,
    ) -> Result<Self, ToolError> {
        let header = SegmentHeader {
            identity: place.identity,
            class: place.class,
            recycled: false,
            base,
            epoch,
            created_us: work.seams.clock.now_us(),
        };
        Self::begin(work, path, &header.to_bytes())
    }

    /// Position of the next byte.
    pub fn position(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), ToolError> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= SCAN_CHUNK_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ToolError> {
        let written = self.file.write_all_at(&self.buffer, self.written);
        written.map_err(ToolError::io("write", &self.path))?;
        self.checksum = crc32c::crc32c_append(self.checksum, &self.buffer);
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Length and checksum of the file. It is synced; its name is not.
    pub fn finish(mut self) -> Result<(u64, u32), ToolError> {
        self.flush()?;
        self.file
            .sync_data()
            .map_err(ToolError::io("sync", &self.path))?;
        Ok((self.written, self.checksum))
    }
}
