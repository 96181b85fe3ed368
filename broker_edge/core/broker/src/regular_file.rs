//! Opens and reads the files that people name to the broker and its tools, and makes the names of new ones durable.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a file for reading. One that is no regular file is refused: reading a pipe would wait for its other end.
///
/// # Errors
/// The file cannot be opened, or is no regular file.
pub fn open(file: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let opened = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(file)?;
    if !opened.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    Ok(opened)
}

/// The bytes of a file, as [`open`] opens it.
///
/// # Errors
/// The file cannot be opened or read, or has more than `bytes_max` bytes; of these no more are read.
pub fn read(file: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let opened = open(file)?;
    opened.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let limit = match bytes_max.is_multiple_of(1 << 20) {
            true => format!("{} MiB", bytes_max >> 20),
            false => format!("{bytes_max} bytes"),
        };
        return Err(io::Error::other(format!("it is larger than {limit}")));
    }
    Ok(bytes)
}

/// Syncs the folder of a file, so that a name that the file was just given is there after a power cut.
///
/// # Errors
/// The folder cannot be opened or synced.
pub fn sync_name(file: &Path) -> io::Result<()> {
    let folder = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// A named pipe, for tests.
#[cfg(test)]
pub fn pipe_in(folder: &Path) -> std::path::PathBuf {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let pipe = folder.join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).expect("a pipe");
    pipe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_and_a_folder_are_refused_at_once() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for file in [&*pipe_in(dir.path()), dir.path()] {
            let refused = open(file).expect_err("it is no file").to_string();
            assert_eq!(refused, "it is no regular file");
        }
        let plain = dir.path().join("plain");
        std::fs::write(&plain, "text").expect("it is written");
        let text = io::read_to_string(open(&plain).expect("a file"));
        assert_eq!(text.expect("it is read"), "text");
    }

    #[test]
    fn a_file_that_is_too_large_is_refused_and_not_cut() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let file = dir.path().join("file");
        std::fs::write(&file, "text").expect("it is written");
        assert_eq!(read(&file, 4).expect("it fits"), b"text");
        let refused = read(&file, 3).expect_err("too large").to_string();
        assert_eq!(refused, "it is larger than 3 bytes");
    }

    #[test]
    fn a_name_is_synced_in_its_folder() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        sync_name(&dir.path().join("file")).expect("a folder");
        sync_name(Path::new("file")).expect("the folder of the process");
        sync_name(&dir.path().join("missing/file")).expect_err("no folder");
    }
}
