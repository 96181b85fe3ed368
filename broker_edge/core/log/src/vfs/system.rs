//! The operating system's file system.

use std::fs;
use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, OFlags};

use crate::vfs::direct;
use crate::vfs::files::{
    File, Files, LockError, LockGuard, OpenMode, PAGE_BYTES, Padded, ZEROS, write_zeros,
};

/// Size and alignment of one write. For a larger write the kernel takes larger pages for its cache, and these were
/// rarely in use just before: in a virtual machine the host then has to find memory for them, which was measured to
/// cost up to eight times the write. Where pages are cheap, writing in pieces costs a twentieth more.
const WRITE_PIECE_BYTES: u64 = 64 << 10;

/// Only the broker's user may look at what is made here: records and sessions are not for every user of the machine.
const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

#[derive(Debug, Clone, Copy)]
pub struct SystemFiles;

/// A file, and whether writes to it pass the page cache now (`O_DIRECT`). Whoever reads the file of a writer opens it
/// for himself.
pub(crate) struct SystemFile {
    file: fs::File,
    is_direct: AtomicBool,
}

impl From<fs::File> for SystemFile {
    fn from(file: fs::File) -> Self {
        let is_direct = AtomicBool::new(false);
        Self { file, is_direct }
    }
}

impl SystemFile {
    /// Switches direct writes on or off. That costs a call, so they stay on from one batch to the next. False when the
    /// file system has none.
    fn switch(&self, direct: bool) -> io::Result<bool> {
        if self.is_direct.load(Ordering::Relaxed) == direct {
            return Ok(true);
        }
        // No other flag that can be changed matters for our files.
        let flags = [OFlags::empty(), OFlags::DIRECT][usize::from(direct)];
        match rustix::fs::fcntl_setfl(&self.file, flags) {
            Err(_) if direct => return Ok(false),
            switched => switched?,
        }
        self.is_direct.store(direct, Ordering::Relaxed);
        Ok(true)
    }
}

impl File for SystemFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.switch(false)?;
        loop {
            match FileExt::read_at(&self.file, buffer, position) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    fn will_read(&self, position: u64, bytes: u64) {
        if let Some(bytes) = NonZeroU64::new(bytes) {
            // Some file systems know no advice.
            let _ = rustix::fs::fadvise(&self.file, position, Some(bytes), Advice::WillNeed);
        }
    }

    fn write_all_at(&self, mut bytes: &[u8], mut position: u64) -> io::Result<()> {
        self.switch(false)?;
        while !bytes.is_empty() {
            let room = WRITE_PIECE_BYTES - position % WRITE_PIECE_BYTES;
            let (piece, rest) = bytes.split_at(bytes.len().min(room as usize));
            FileExt::write_all_at(&self.file, piece, position)?;
            position += piece.len() as u64;
            bytes = rest;
        }
        Ok(())
    }

    fn write_padded_at(&self, padded: &Padded<'_>, mut position: u64) -> io::Result<()> {
        let Padded { before, parts, pad } = *padded;
        if let Some(before) = before
            && self.switch(true)?
            && direct::write(&self.file, before, parts, position)?
        {
            return Ok(());
        }
        self.switch(false)?;
        for (part, left) in parts.iter().zip((0..parts.len()).rev()) {
            // The last piece and the zeros go in one call.
            let end = position + part.len() as u64;
            let last = (end - end % WRITE_PIECE_BYTES).max(position);
            let (whole, rest) = part.split_at((last - position) as usize);
            self.write_all_at(whole, position)?;
            let zeros = &ZEROS.0[..if left == 0 { pad } else { 0 }];
            let bytes = rest.len() + zeros.len();
            let written = direct::write_pieces(&self.file, [rest, zeros], bytes, last)?;
            // Rarely less than all: the rest is written the plain way.
            let missing = rest.get(written..).unwrap_or_default();
            self.write_all_at(missing, last + written as u64)?;
            position = end;
        }
        Ok(())
    }

    fn fill_zeros(&self, from: u64, to: u64) -> io::Result<()> {
        let first = from.next_multiple_of(PAGE_BYTES).min(to);
        write_zeros(self, from, first)?;
        let (mut reached, end) = (first, to - to % PAGE_BYTES);
        if end.saturating_sub(first) >= direct::ZEROS_MIN && self.switch(true)? {
            reached = direct::fill_zeros(&self.file, first, end)?;
        }
        write_zeros(self, reached, to)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.metadata().map(|metadata| metadata.len())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }
}

impl Files for SystemFiles {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(DIR_MODE)
            .create(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            // A name that is not UTF-8 is not ours.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let (writes, is_new) = (mode != OpenMode::Read, mode == OpenMode::Create);
        let mut options = fs::OpenOptions::new();
        options.read(true).write(writes);
        options.create(is_new).truncate(is_new).mode(FILE_MODE);
        Ok(Arc::new(SystemFile::from(open_regular(
            options,
            path,
            OFlags::empty(),
        )?)))
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
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.mode(FILE_MODE);
        // What a link leads to would be emptied.
        let mut file =
            open_regular(options, path, OFlags::NOFOLLOW).map_err(|error| {
                match error.raw_os_error() {
                    Some(libc::ELOOP) => io::Error::other("it is a symbolic link: remove it"),
                    _ => error,
                }
            })?;
        let held = |file: fs::File| {
            let mut holder = String::new();
            // Best effort: the error is useful even when the holder's process id cannot be read.
            let _ = file.take(32).read_to_string(&mut holder);
            let holder = Some(holder.trim()).filter(|holder| !holder.is_empty());
            let holder = holder.unwrap_or("unknown").to_owned();
            LockError::Held { holder }
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(held(file)),
            Err(fs::TryLockError::Error(error)) => return Err(error.into()),
        }
        // The folder as well: removing the file as "a stale lock" would otherwise let in a second writer.
        let folder = path.parent().and_then(|folder| fs::File::open(folder).ok());
        match folder.as_ref().map(fs::File::try_lock) {
            Some(Err(fs::TryLockError::WouldBlock)) => return Err(held(file)),
            // Some file systems cannot lock folders: there the lock of the file must do.
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

/// A pipe in the place of a file is refused: its other end may never come.
fn open_regular(mut options: fs::OpenOptions, path: &Path, flags: OFlags) -> io::Result<fs::File> {
    let flags = (OFlags::NONBLOCK | flags).bits();
    let file = options.custom_flags(flags.cast_signed()).open(path)?;
    if !file.metadata()?.is_file() {
        let reason = "it is no regular file";
        return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
    }
    Ok(file)
}
