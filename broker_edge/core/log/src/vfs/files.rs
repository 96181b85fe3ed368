//! The file system as a seam of a few calls. Tests replace it to fail a call, to fill the disk or to cut the power.
//!
//! It promises what a POSIX file system promises and no more: a write may be lost until `sync_data` of its file
//! returned, and a created, renamed or removed name until `sync_dir` of its folder returned.

use std::io;
use std::path::Path;
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    Read,
    ReadWrite,
    /// A new, empty file; an old one of that name is emptied.
    Create,
}

/// Bytes to be written one part after the other.
pub struct Padded<'a> {
    /// What the file holds between the start of the page of the position and the position, if known. Then the write may
    /// pass the page cache, in whole pages.
    pub before: Option<&'a [u8]>,
    pub parts: &'a [&'a [u8]],
    /// So many bytes behind the parts, at most up to the end of their page, may become zeros.
    pub pad: usize,
}

pub trait File: Send + Sync {
    /// Reads up to `buffer.len()` bytes; 0 at the end of the file.
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize>;
    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()>;

    /// Announces that these bytes are read soon, so that the system may fetch them from the disk. Only a hint.
    fn will_read(&self, _position: u64, _bytes: u64) {}

    /// Only the sole writer of the file may call it with bytes `before`.
    fn write_padded_at(&self, padded: &Padded<'_>, mut position: u64) -> io::Result<()> {
        for part in padded.parts {
            self.write_all_at(part, position)?;
            position += part.len() as u64;
        }
        Ok(())
    }

    /// Writes zeros over `[from, to)`, most of which was never written. Only the sole writer of the file may call it.
    fn fill_zeros(&self, from: u64, to: u64) -> io::Result<()> {
        write_zeros(self, from, to)
    }

    /// Makes all written bytes, and a length that changed, survive a power cut.
    fn sync_data(&self) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;
    fn set_len(&self, bytes: u64) -> io::Result<()>;

    /// True when the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }
}

pub trait Files: Send + Sync {
    /// Creates the folder and its parents; an existing one is fine.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// The names in a folder, in no order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>>;
    /// Replaces `to` when it exists.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Takes the lock file for this process, without waiting.
    fn lock(&self, path: &Path) -> Result<LockGuard, LockError>;

    /// Free bytes in the file system of this folder; None when unknown.
    fn available_bytes(&self, _dir: &Path) -> io::Result<Option<u64>> {
        Ok(None)
    }
}

/// Holds the lock until it is dropped.
pub type LockGuard = Box<dyn Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The text that the holder wrote: its process id.
    #[error("held by process {holder}")]
    Held { holder: String },
    #[error(transparent)]
    Io(#[from] io::Error),
}

pub(crate) const PAGE_BYTES: u64 = 4096;

/// Page-aligned, as direct writes require.
#[repr(align(4096))]
pub(crate) struct Zeros(pub [u8; 64 << 10]);

pub(crate) static ZEROS: Zeros = Zeros([0; 64 << 10]);

pub(crate) fn write_zeros<F: File + ?Sized>(file: &F, from: u64, to: u64) -> io::Result<()> {
    let mut position = from;
    while position < to {
        let bytes = (to - position).min(ZEROS.0.len() as u64);
        file.write_all_at(&ZEROS.0[..bytes as usize], position)?;
        position += bytes;
    }
    Ok(())
}

/// Fills `buffer` from `position`; the number of bytes read is smaller only at the end of the file.
pub(crate) fn read_full(file: &dyn File, buffer: &mut [u8], position: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        let read = file.read_at(&mut buffer[done..], position + done as u64)?;
        if read == 0 {
            break;
        }
        done += read;
    }
    Ok(done)
}

/// Whether an error means that the device has no room, which passes, as opposed to having failed.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Whether an error means that the process has no file descriptor left, which passes too.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// None when there is no such file or folder.
pub(crate) fn existing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// The whole of a file, which must not be larger than `max_bytes`.
pub(crate) fn read_file(files: &dyn Files, path: &Path, max_bytes: usize) -> io::Result<Vec<u8>> {
    let file = files.open(path, OpenMode::Read)?;
    let length = usize::try_from(file.len()?).unwrap_or(usize::MAX);
    if length > max_bytes {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{length} bytes are too many"),
        ));
    }
    let mut bytes = vec![0; length];
    let read = read_full(&*file, &mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Replaces a small file as a whole. The new name is durable once the folder is synced.
pub(crate) fn replace_file(files: &dyn Files, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".tmp");
    let unfinished = Path::new(&unfinished);
    let file = files.open(unfinished, OpenMode::Create)?;
    file.write_all_at(bytes, 0)?;
    file.sync_data()?;
    files.rename(unfinished, path)
}
