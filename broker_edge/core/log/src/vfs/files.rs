//! The file system as a seam of a few calls. Tests replace it to fail a call, to fill the disk or to cut the power.
//!
//! It promises what a POSIX file system promises and no more: a write may be lost until `sync_data` of its file
//! returned, and a created, renamed or removed name until `sync_dir` of its folder returned.

use std::fs;
use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::Advice;

use crate::vfs::direct;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    Read,
    ReadWrite,
    /// A new, empty file; an old one of that name is emptied.
    Create,
}

pub trait File: Send + Sync {
    /// Reads up to `buffer.len()` bytes; 0 at the end of the file.
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize>;
    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()>;

    /// Says that these bytes are read soon: the system may fetch them from the disk meanwhile. Nothing else depends on it.
    fn will_read(&self, _position: u64, _bytes: u64) {}

    /// As [`write_all_at`](Self::write_all_at), where up to `pad` bytes behind may become zeros with it. A page of the
    /// cache that is written whole need not be read from the disk first.
    fn write_padded_at(&self, bytes: &[u8], position: u64, _pad: usize) -> io::Result<()> {
        self.write_all_at(bytes, position)
    }

    /// Writes zeros over `[from, to)`, most of which nobody has written yet. Called by who alone writes the file.
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

    /// What may still be written in the file system of this folder; None where nobody can tell.
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

/// Written at once, and on a multiple of it. For a larger write the kernel takes larger pages for its cache, which are
/// seldom ones that were in use just now: in a virtual machine the host then has to find memory for them, which was
/// measured to cost up to eight times the write. In pieces it costs a twentieth more where pages are cheap.
const WRITE_PIECE_BYTES: u64 = 64 << 10;

pub(crate) const PAGE_BYTES: u64 = 4096;

/// On a page, as direct writes want them.
#[repr(align(4096))]
pub(crate) struct Zeros(pub [u8; 64 << 10]);

pub(crate) static ZEROS: Zeros = Zeros([0; 64 << 10]);

fn write_zeros<F: File + ?Sized>(file: &F, from: u64, to: u64) -> io::Result<()> {
    let mut position = from;
    while position < to {
        let bytes = (to - position).min(ZEROS.0.len() as u64);
        file.write_all_at(&ZEROS.0[..bytes as usize], position)?;
        position += bytes;
    }
    Ok(())
}

/// The operating system's files.
#[derive(Debug, Clone, Copy)]
pub struct SystemFiles;

impl File for fs::File {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        loop {
            match FileExt::read_at(self, buffer, position) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    fn will_read(&self, position: u64, bytes: u64) {
        if let Some(bytes) = NonZeroU64::new(bytes) {
            // Some file systems know no advice.
            let _ = rustix::fs::fadvise(self, position, Some(bytes), Advice::WillNeed);
        }
    }

    fn write_all_at(&self, mut bytes: &[u8], mut position: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = WRITE_PIECE_BYTES - position % WRITE_PIECE_BYTES;
            let (piece, rest) = bytes.split_at(bytes.len().min(room as usize));
            FileExt::write_all_at(self, piece, position)?;
            position += piece.len() as u64;
            bytes = rest;
        }
        Ok(())
    }

    fn write_padded_at(&self, bytes: &[u8], position: u64, pad: usize) -> io::Result<()> {
        let end = position + bytes.len() as u64;
        let last = (end - end % PAGE_BYTES).max(position);
        let (whole, rest) = bytes.split_at((last - position) as usize);
        File::write_all_at(self, whole, position)?;
        let zeros = &ZEROS.0[..pad.min(PAGE_BYTES as usize)];
        let both = [io::IoSlice::new(rest), io::IoSlice::new(zeros)];
        let written = loop {
            match rustix::io::pwritev(self, &both, last) {
                Err(rustix::io::Errno::INTR) => {}
                result => break result?,
            }
        };
        // Seldom less than all: what is left goes the plain way.
        let left = rest.get(written..).unwrap_or_default();
        File::write_all_at(self, left, last + written as u64)
    }

    fn fill_zeros(&self, from: u64, to: u64) -> io::Result<()> {
        let first = from.next_multiple_of(PAGE_BYTES).min(to);
        write_zeros(self, from, first)?;
        let reached = direct::fill_zeros(self, first, to - to % PAGE_BYTES)?;
        write_zeros(self, reached.max(first), to)
    }

    fn sync_data(&self) -> io::Result<()> {
        fs::File::sync_data(self)
    }

    fn len(&self) -> io::Result<u64> {
        self.metadata().map(|metadata| metadata.len())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        fs::File::set_len(self, bytes)
    }
}

impl Files for SystemFiles {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            // A name that is not UTF-8 is none of ours.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut options = fs::OpenOptions::new();
        options.read(true);
        match mode {
            OpenMode::Read => {}
            OpenMode::ReadWrite => {
                options.write(true);
            }
            OpenMode::Create => {
                options.write(true).create(true).truncate(true);
            }
        }
        Ok(Arc::new(options.open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }

    fn lock(&self, path: &Path) -> Result<LockGuard, LockError> {
        let mut file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        let held = |file: fs::File| {
            let mut holder = String::new();
            // Best effort: the error is worth telling even when the holder's number cannot be read.
            let _ = file.take(32).read_to_string(&mut holder);
            let holder = holder.trim().to_owned();
            LockError::Held {
                holder: if holder.is_empty() {
                    "unknown".to_owned()
                } else {
                    holder
                },
            }
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(held(file)),
            Err(fs::TryLockError::Error(error)) => return Err(error.into()),
        }
        // The folder as well: who removes the file, to get rid of "a stale lock", would let in a second writer.
        let folder = path.parent().and_then(|folder| fs::File::open(folder).ok());
        match folder.as_ref().map(fs::File::try_lock) {
            Some(Err(fs::TryLockError::WouldBlock)) => return Err(held(file)),
            // Some file systems lock no folders: there the file has to do.
            Some(Err(fs::TryLockError::Error(_)) | Ok(())) | None => {}
        }
        file.set_len(0)?;
        writeln!(file, "{}", std::process::id())?;
        Ok(Box::new((file, folder)))
    }

    fn available_bytes(&self, dir: &Path) -> io::Result<Option<u64>> {
        let space = rustix::fs::statvfs(dir)?;
        Ok(Some(space.f_bavail.saturating_mul(space.f_frsize)))
    }
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
