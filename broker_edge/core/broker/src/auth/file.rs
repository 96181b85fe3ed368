//! Reads the files of an authority, and reports what is wrong with them.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::regular_file;

/// Larger files are refused, because these files are written by people or small programs.
pub const BYTES_MAX: u64 = 64 << 20;

/// What is wrong with a file, in one sentence for the operator.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot read {}: {reason}; check the path and that the broker's user may read it", file.display())]
    Unreadable {
        file: PathBuf,
        reason: std::io::Error,
    },
    #[error("{}, line {line}: {reason}", file.display())]
    Line {
        file: PathBuf,
        line: usize,
        reason: String,
    },
    #[error("{}: {reason}", file.display())]
    Whole { file: PathBuf, reason: String },
}

/// The text of a file of bounded size.
///
/// # Errors
/// The file cannot be read, is too large, or is not UTF-8.
pub fn read(file: &Path) -> Result<String, FileError> {
    let unreadable = |reason| FileError::Unreadable {
        file: file.to_owned(),
        reason,
    };
    let mut text = String::new();
    let opened = regular_file::open(file).map_err(unreadable)?;
    let read = opened.take(BYTES_MAX + 1).read_to_string(&mut text);
    if read.map_err(unreadable)? as u64 > BYTES_MAX {
        return Err(FileError::Whole {
            file: file.to_owned(),
            reason: format!("the file is larger than {} MiB", BYTES_MAX >> 20),
        });
    }
    Ok(text)
}

/// Parses a file. `parse` fails with the number of an invalid line and what is wrong with it.
///
/// # Errors
/// The file cannot be read, or has an invalid line.
pub fn load<T>(
    file: &Path,
    parse: impl FnOnce(&str) -> Result<T, (usize, String)>,
) -> Result<T, FileError> {
    parse(&read(file)?).map_err(|(line, reason)| FileError::Line {
        file: file.to_owned(),
        line,
        reason,
    })
}

/// The first word of a line, and the rest.
pub fn split_word(line: &str) -> (&str, &str) {
    match line.split_once(|c: char| c.is_ascii_whitespace()) {
        Some((word, rest)) => (word, rest.trim_start()),
        None => (line, ""),
    }
}

/// The lines with content and their numbers: without empty lines and comments.
pub fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..)
        .zip(text.lines())
        .map(|(number, line)| (number, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}
