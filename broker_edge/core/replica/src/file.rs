//! `shard-0.replica` in the folder of the log: read at a start, replaced as a whole and synced.

use std::io;
use std::path::{Path, PathBuf};

use headwater_cluster::replica_file::{BYTES_MAX, FILE_NAME, ReplicaFile};
use headwater_log::{Files, OpenMode};

pub(crate) fn path_in(dir: &Path) -> PathBuf {
    dir.join(FILE_NAME)
}

/// `None` when it is missing or refused: the replica is suspect then.
pub(crate) fn load(files: &dyn Files, dir: &Path) -> Option<ReplicaFile> {
    let path = path_in(dir);
    let refused = |reason: &dyn std::fmt::Display| {
        tracing::error!(path = %path.display(), %reason, "the replica file is not used, so this replica is suspect");
    };
    let bytes = match read(files, &path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            refused(&error);
            return None;
        }
    };
    let decoded = ReplicaFile::decode(&bytes);
    decoded.inspect_err(|error| refused(error)).ok()
}

fn read(files: &dyn Files, path: &Path) -> io::Result<Vec<u8>> {
    let file = files.open(path, OpenMode::Read)?;
    // One byte more than it may have: a longer file is refused by its length.
    let length = file.len()?.min(BYTES_MAX as u64 + 1);
    let mut bytes = vec![0; length as usize];
    let mut done = 0;
    while done < bytes.len() {
        let read = file.read_at(&mut bytes[done..], done as u64)?;
        if read == 0 {
            break;
        }
        done += read;
    }
    bytes.truncate(done);
    Ok(bytes)
}

/// Once it returns, the next start reads this file, whatever happens.
pub(crate) fn save(files: &dyn Files, dir: &Path, content: &ReplicaFile) -> io::Result<()> {
    let path = path_in(dir);
    let unfinished = path.with_extension("replica.tmp");
    let file = files.open(&unfinished, OpenMode::Create)?;
    file.write_all_at(&content.encode(), 0)?;
    file.sync_data()?;
    files.rename(&unfinished, &path)?;
    files.sync_dir(dir)
}
