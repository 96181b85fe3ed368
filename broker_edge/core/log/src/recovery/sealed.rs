//! Recovery of sealed segments: by their index where that can be used, else by reading them.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::error::OpenError;
use crate::ids::Offset;
use crate::index::file::IndexFile;
use crate::index::model::IndexDamaged;
use crate::index::rebuild::{index_of_file, open_index, save_index};
use crate::index::segment::{IndexState, Segment};
use crate::recovery::look::ANY_EPOCH;
use crate::recovery::quarantine::Findings;
use crate::segment::header::{FORMAT, HeaderFound, file_name};
use crate::segment::scan::read_header;
use crate::state::context::Context;
use crate::vfs::files::OpenMode;
use crate::vfs::salvage::{Salvage, says_nothing_of_bytes};

fn read_error(path: &Path, source: io::Error) -> OpenError {
    OpenError::io("read", path, source)
}

/// Refuses a segment of another log, partition or format. One whose header is damaged still has its batches.
pub(crate) fn check_header(
    context: &Context,
    base: Offset,
    findings: &mut Findings,
) -> Result<HeaderFound, OpenError> {
    let path = context.dir.join(file_name(base, "seg"));
    let file = context.open(&path, OpenMode::Read);
    let found = match file.and_then(|file| read_header(&*file)) {
        Ok(found) => found,
        Err(source) if says_nothing_of_bytes(&source) => return Err(read_error(&path, source)),
        // Its batches may still be readable.
        Err(_) => HeaderFound::Bad,
    };
    match found {
        HeaderFound::Good(header) if header.identity.log_id != context.identity.log_id => {
            Err(OpenError::ForeignSegment {
                path,
                expected: context.identity.log_id,
                found: header.identity.log_id,
            })
        }
        HeaderFound::Good(header) if header.identity.secret != context.identity.secret => {
            let reason = "its header has another secret than log.meta".to_owned();
            Err(OpenError::Damaged { path, reason })
        }
        HeaderFound::Good(header) if header.identity != context.identity || header.base != base => {
            let reason = format!(
                "it is offset {} of partition {}, moved or renamed",
                header.base, header.identity.partition
            );
            Err(OpenError::Damaged { path, reason })
        }
        HeaderFound::NewerFormat(found) => Err(OpenError::NewerFormat {
            path,
            found,
            supported: FORMAT,
        }),
        HeaderFound::Bad => {
            let text = format!("the header of segment {base} is damaged");
            findings.notes.push(text);
            Ok(found)
        }
        HeaderFound::Good(_) => Ok(found),
    }
}

/// A segment whose batches end at or before `limit`.
pub(crate) fn recover_sealed(
    context: &Context,
    base: Offset,
    limit: Offset,
    findings: &mut Findings,
) -> Result<Segment, OpenError> {
    let dir = &context.dir;
    let found = open_index(context, base, limit).map(|file| with_index_of(context, file));
    if let Some(Ok(segment)) = found {
        return Ok(segment);
    }
    findings.rebuilt_indexes += 1;
    let path = dir.join(file_name(base, "seg"));
    let rebuilt = context.open(&path, OpenMode::Read).and_then(|file| {
        let salvage = Salvage::new(file);
        let index = index_of_file(&salvage, context.identity, base, limit, ANY_EPOCH)?;
        Ok((Arc::new(index), salvage.unreadable()))
    });
    let (index, unreadable) = match rebuilt {
        Ok(rebuilt) => rebuilt,
        Err(source) if says_nothing_of_bytes(&source) => return Err(read_error(&path, source)),
        Err(error) => {
            let text = format!("segment {base} can not be read: {error}");
            findings.notes.push(text);
            return Ok(Segment::unreadable(dir, base));
        }
    };
    let head = index.head();
    let state = match unreadable {
        None => IndexState::Memory(index),
        Some(unreadable) => {
            let pieces = unreadable.pieces;
            let text = format!("segment {base} can not be read in {pieces} places");
            findings.notes.push(text);
            // Perhaps readable later: nothing is saved, so the next start tries again. Until then the offsets are a
            // gap.
            IndexState::Provisional(index)
        }
    };
    Ok(Segment::sealed(dir, head, state))
}

/// The segment of an index file. Of an index of the format before it is written anew, one by one, so that no start has
/// the keys of all in memory.
fn with_index_of(context: &Context, file: IndexFile) -> Result<Segment, IndexDamaged> {
    let Some(index) = file.read_older(context)? else {
        let head = file.head.index;
        return Ok(Segment::sealed(&context.dir, head, IndexState::Saved));
    };
    let head = index.head();
    let state = match save_index(context, &index) {
        Ok(()) => IndexState::Saved,
        // The maintenance thread tries again.
        Err(_) => IndexState::Memory(Arc::new(index)),
    };
    Ok(Segment::sealed(&context.dir, head, state))
}
