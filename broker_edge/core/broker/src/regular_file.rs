//! Opens the files that people name to the broker and its tools.

use std::fs::{File, OpenOptions};
use std::io;
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
}
