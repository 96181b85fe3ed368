//! Keeps bytes that are no longer served in files of their own, for people to inspect: `.damaged` and `.torn`.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::error::OpenError;
use crate::ids::Offset;
use crate::segment::header::file_name;
use crate::segment::scan::SCAN_CHUNK_BYTES;
use crate::state::context::Context;
use crate::vfs::files::{File, OpenMode, is_full, read_full};

/// Bytes of a segment, which held offset `first` or would have.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub bytes: Range<u64>,
    pub first: Offset,
    /// `damaged` or `torn`.
    pub kind: &'static str,
}

/// Where the bytes are, or would be if there were space for them.
#[derive(Debug)]
pub(crate) enum Kept {
    At(PathBuf),
    NoSpaceFor(PathBuf),
}

/// Copies the piece and syncs it. A full disk is not an error here, because it must not prevent a start.
pub(crate) fn keep(context: &Context, file: &dyn File, piece: Piece) -> io::Result<Kept> {
    let suffix = format!("{}.{}", context.epoch(), piece.kind);
    let path = context.dir.join(file_name(piece.first, &suffix));
    match copy_bytes(context, file, piece.bytes, &path) {
        Ok(()) => Ok(Kept::At(path)),
        Err(error) if is_full(&error) => {
            // It holds only a part.
            let _ = context.seams.files.remove(&path);
            Ok(Kept::NoSpaceFor(path))
        }
        Err(error) => Err(error),
    }
}

fn copy_bytes(
    context: &Context,
    from: &dyn File,
    bytes: Range<u64>,
    path: &Path,
) -> io::Result<()> {
    let file = context.open(path, OpenMode::Create)?;
    let mut position = bytes.start;
    while position < bytes.end {
        let mut chunk = vec![0; (bytes.end - position).min(SCAN_CHUNK_BYTES as u64) as usize];
        let read = read_full(from, &mut chunk, position)?;
        if read == 0 {
            break;
        }
        file.write_all_at(&chunk[..read], position - bytes.start)?;
        position += read as u64;
    }
    file.sync_data()
}

/// Sizes of the quarantined files of a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct QuarantineBytes {
    pub damaged: u64,
    /// Damaged, torn and misplaced.
    pub all: u64,
}

/// A file with bytes that are not served: `.damaged`, `.torn` or `.misplaced`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptFile {
    pub name: String,
    pub bytes: u64,
}

/// The quarantined files of a partition, in no order. A file that cannot be opened counts as empty: this is only a
/// statistic.
pub(crate) fn kept_files(context: &Context) -> Vec<KeptFile> {
    let files = &*context.seams.files;
    let is_kept = |name: &String| {
        let suffixes = [".damaged", ".torn", ".misplaced"];
        suffixes.iter().any(|suffix| name.ends_with(suffix))
    };
    let with_length = |name: String| {
        let file = files.open(&context.dir.join(&name), OpenMode::Read);
        let bytes = file.and_then(|file| file.len()).unwrap_or(0);
        KeptFile { name, bytes }
    };
    let names = files.list(&context.dir).unwrap_or_default().into_iter();
    names.filter(is_kept).map(with_length).collect()
}

/// Adds up the files.
pub(crate) fn quarantine_bytes_of(context: &Context) -> QuarantineBytes {
    let mut bytes = QuarantineBytes::default();
    for file in kept_files(context) {
        bytes.all += file.bytes;
        if file.name.ends_with(".damaged") {
            bytes.damaged += file.bytes;
        }
    }
    bytes
}

/// What recovery found and did, for the report of a start.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub torn_bytes: u64,
    pub rebuilt_indexes: usize,
    pub notes: Vec<String>,
    /// Why a replica may lack what it once had on its disk. Then nothing was changed.
    pub doubt: Option<String>,
}

impl Findings {
    /// Copies bytes that are not served to a file of their own, and notes where they are.
    pub fn keep(
        &mut self,
        context: &Context,
        file: &dyn File,
        piece: Piece,
    ) -> Result<(), OpenError> {
        let Range {
            start: from,
            end: to,
        } = piece.bytes;
        let kept = keep(context, file, piece);
        let kept = kept.map_err(|source| OpenError::write(&context.dir, source))?;
        self.notes.push(match kept {
            Kept::At(path) => format!("bytes {from} to {to} are kept in {}", path.display()),
            Kept::NoSpaceFor(path) => {
                let path = path.display();
                format!("no space to keep bytes {from} to {to} in {path}")
            }
        });
        Ok(())
    }
}
