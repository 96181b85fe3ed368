//! The manifest of a backup: `backup.json` names its files. It is written last and replaced as a whole.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::work::{ToolError, Work};
use crate::recovery::log_folder::sync_names_of;
use crate::recovery::meta::Meta;
use crate::vfs::files::{Files, existing, read_file, replace_file};

const NAME: &str = "backup.json";
/// Names the log whose backup a folder is for, before there is a manifest.
const OWNER: &str = "backup.log";
pub(super) const BACKUP_FORMAT: u32 = 1;
/// Larger than the manifest of any log.
const MAX_BYTES: usize = 256 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub backup_format: u32,
    pub made_us: i64,
    /// The content of `log.meta`.
    pub meta: Meta,
    pub partitions: Vec<StoredPartition>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredPartition {
    pub name: String,
    pub log_start: u64,
    /// Records below it are in the backup.
    pub high_watermark: u64,
    pub segments: Vec<StoredSegment>,
}

/// A segment file, shortened to its valid batches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredSegment {
    pub file: String,
    pub base: u64,
    /// Copied up to this offset.
    pub end: u64,
    pub bytes: u64,
    /// Of the whole file.
    pub checksum: u32,
    /// Offsets in between that were damaged at the source.
    pub damaged: Vec<(u64, u64)>,
}

/// The part that every format of the manifest has.
#[derive(Deserialize)]
struct FormatOnly {
    backup_format: u32,
}

impl Manifest {
    /// None when the folder holds no finished backup.
    pub fn load(files: &dyn Files, dir: &Path) -> Result<Option<Self>, ToolError> {
        let path = dir.join(NAME);
        let read = existing(read_file(files, &path, MAX_BYTES));
        let Some(bytes) = read.map_err(ToolError::io("read", &path))? else {
            return Ok(None);
        };
        let damaged = || ToolError::refused(&path, "is damaged; take another backup");
        let text = String::from_utf8(bytes).map_err(|_| damaged())?;
        let (json, rest) = text.split_once('\n').ok_or_else(damaged)?;
        if rest != format!("{:08x}\n", crc32c::crc32c(json.as_bytes())) {
            return Err(damaged());
        }
        let format: FormatOnly = serde_json::from_str(json).map_err(|_| damaged())?;
        if format.backup_format > BACKUP_FORMAT {
            return Err(ToolError::Refused(format!(
                "{} has format {}, this version reads up to {BACKUP_FORMAT}; use a newer headwater",
                path.display(),
                format.backup_format
            )));
        }
        serde_json::from_str(json).map(Some).map_err(|_| damaged())
    }

    pub fn save(&self, files: &dyn Files, dir: &Path) -> Result<(), ToolError> {
        let path = dir.join(NAME);
        let json = serde_json::to_string(self).expect("numbers and text always serialize");
        let text = format!("{json}\n{:08x}\n", crc32c::crc32c(json.as_bytes()));
        replace_file(files, &path, text.as_bytes())
            .and_then(|()| files.sync_dir(dir))
            .map_err(ToolError::io("write", &path))
    }

    pub fn path_of(dir: &Path, partition: &str, file: &str) -> PathBuf {
        dir.join(partition).join(file)
    }

    /// The segment in an earlier backup.
    pub fn find(&self, partition: &str, file: &str) -> Option<&StoredSegment> {
        let partition = self.partitions.iter().find(|one| one.name == partition)?;
        partition.segments.iter().find(|one| one.file == file)
    }
}

/// Makes sure that a folder is empty or holds backups of this log, and notes the log in it.
pub(super) fn claim(work: Work<'_>, dir: &Path, log_id: &str) -> Result<(), ToolError> {
    let files = &*work.seams.files;
    work.on("make", dir, |files, path| files.create_dir(path))?;
    let names = work.on("list", dir, |files, path| files.list(path))?;
    let path = dir.join(OWNER);
    let owner = existing(read_file(files, &path, 64)).map_err(ToolError::io("read", &path))?;
    if let Some(owner) = owner {
        if owner.trim_ascii() == log_id.as_bytes() {
            return Ok(());
        }
        let why = "holds backups of another log; choose another folder";
        return Err(ToolError::refused(dir, why));
    }
    if !names.iter().all(|name| name.ends_with(".tmp")) {
        let why = "is neither empty nor a backup; choose another folder";
        return Err(ToolError::refused(dir, why));
    }
    replace_file(files, &path, format!("{log_id}\n").as_bytes())
        .and_then(|()| files.sync_dir(dir))
        .map_err(ToolError::io("write", &path))?;
    Ok(sync_names_of(files, dir)?)
}
