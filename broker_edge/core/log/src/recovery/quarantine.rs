//! Keeps bytes that are no longer served in files of their own, for people to look at: `.damaged` and `.torn`.

use std::io;
use std::path::{Path, PathBuf};

use crate::ids::Offset;
use crate::segment::header::file_name;
use crate::segment::scan::WALK_CHUNK_BYTES;
use crate::state::context::Context;
use crate::vfs::files::{File, OpenMode, is_full, read_full};

/// Bytes `[from, to)` of a segment, which held offset `first` or would have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub from: u64,
    pub to: u64,
    pub first: Offset,
    /// `damaged` or `torn`.
    pub kind: &'static str,
}

/// Where the bytes are, or would be when there is no space for them.
#[derive(Debug)]
pub(crate) enum Kept {
    At(PathBuf),
    NoSpaceFor(PathBuf),
}

/// Copies the piece and syncs it. A full disk is no reason to refuse a start, so it is no error here.
pub(crate) fn keep(context: &Context, file: &dyn File, piece: Piece) -> io::Result<Kept> {
    let suffix = format!("{}.{}", context.epoch, piece.kind);
    let path = context.dir.join(file_name(piece.first, &suffix));
    match copy_bytes(context, file, piece, &path) {
        Ok(()) => Ok(Kept::At(path)),
        Err(error) if is_full(&error) => {
            // Whatever it holds is only a part.
            let _ = context.seams.files.remove(&path);
            Ok(Kept::NoSpaceFor(path))
        }
        Err(error) => Err(error),
    }
}

fn copy_bytes(context: &Context, from: &dyn File, piece: Piece, path: &Path) -> io::Result<()> {
    let file = context.open(path, OpenMode::Create)?;
    let mut position = piece.from;
    while position < piece.to {
        let mut chunk = vec![0; (piece.to - position).min(WALK_CHUNK_BYTES as u64) as usize];
        let read = read_full(from, &mut chunk, position)?;
        if read == 0 {
            break;
        }
        file.write_all_at(&chunk[..read], position - piece.from)?;
        position += read as u64;
    }
    file.sync_data()
}

/// Bytes of the files of a partition that are kept aside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct QuarantineBytes {
    pub damaged: u64,
    /// Damaged, torn and misplaced.
    pub all: u64,
}

/// Looks at the files. What can not be looked at counts as nothing: it is only a figure.
pub(crate) fn quarantine_bytes_of(context: &Context) -> QuarantineBytes {
    let files = &*context.seams.files;
    let mut bytes = QuarantineBytes::default();
    for name in files.list(&context.dir).unwrap_or_default() {
        let is_damaged = name.ends_with(".damaged");
        if !is_damaged && !name.ends_with(".torn") && !name.ends_with(".misplaced") {
            continue;
        }
        let file = files.open(&context.dir.join(&name), OpenMode::Read);
        let length = file.and_then(|file| file.len()).unwrap_or(0);
        bytes.all += length;
        if is_damaged {
            bytes.damaged += length;
        }
    }
    bytes
}
