//! Makes a partition of what a folder holds: `docs/format.md` §7, in that order.
//!
//! Nothing is appended here and no offset is shown; the caller sets the high watermark once this returned.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::error::OpenError;
use crate::failpoint;
use crate::ids::{Epoch, Offset};
use crate::index::builder::IndexBuilder;
use crate::index::catalog::TopicCatalog;
use crate::index::rebuild::{index_of_file, load_index};
use crate::recovery::active::recover_active;
use crate::recovery::checkpoint::Checkpoint;
use crate::recovery::meta::write_error;
use crate::recovery::quarantine::{Kept, Piece, QuarantineBytes, keep, quarantine_bytes_of};
use crate::segment::header::{
    HeaderFound, IndexState, SEGMENT_HEADER_BYTES, Segment, SegmentHeader, base_of, file_name,
};
use crate::state::context::{Context, FILL_STEP_BYTES, create_segment_file};
use crate::state::core::Parts;
use crate::vfs::files::{File, OpenMode, read_full};
use crate::vfs::salvage::{Salvage, says_nothing_of_bytes};
use crate::write::idempotency::IdempotencyKeys;
use crate::write::writer::Active;

/// Behind damage a batch of any epoch is looked for: one that `log.meta` does not know is no reason to cut it off, but
/// says that `log.meta` is older than the records, and the start is refused.
pub(crate) const ANY_EPOCH: Epoch = Epoch(u64::MAX);

/// What recovery did, for the report.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub torn_bytes: u64,
    pub rebuilt_indexes: usize,
    pub notes: Vec<String>,
}

impl Findings {
    /// Copies bytes that are not served to a file of their own, and says where they are.
    pub fn keep(
        &mut self,
        context: &Context,
        file: &dyn File,
        piece: Piece,
    ) -> Result<(), OpenError> {
        let kept =
            keep(context, file, piece).map_err(|source| write_error(&context.dir, source))?;
        let Piece { from, to, .. } = piece;
        self.notes.push(match kept {
            Kept::At(path) => format!("bytes {from} to {to} are kept in {}", path.display()),
            Kept::NoSpaceFor(path) => {
                format!(
                    "no space to keep bytes {from} to {to} in {}",
                    path.display()
                )
            }
        });
        Ok(())
    }
}

/// Makes the folder of a new partition and its first segment.
pub(crate) fn create(context: &Context) -> Result<Parts, OpenError> {
    let files = &*context.seams.files;
    files
        .create_dir(&context.dir)
        .map_err(|source| write_error(&context.dir, source))?;
    let base = Offset(0);
    let path = context.dir.join(file_name(base, "seg"));
    let unfinished = path.with_extension("seg.tmp");
    let filled = FILL_STEP_BYTES.min(context.segment_bytes);
    let header = context.header(base, false).to_bytes();
    let file = create_segment_file(context, &unfinished, &header, filled)
        .and_then(|file| {
            files.rename(&unfinished, &path)?;
            files.sync_dir(&context.dir)?;
            Ok(file)
        })
        .map_err(|source| write_error(&path, source))?;
    let segment = Arc::new(Segment::growing(
        &context.dir,
        base,
        IndexBuilder::new(base),
    ));
    let active = Active {
        file,
        segment: Arc::clone(&segment),
        position: SEGMENT_HEADER_BYTES,
        filled,
        whole_to: 0,
        next: base,
        topics: 0,
        unsynced: false,
        synced_at: context.seams.clock.steady(),
        wrote_at: context.seams.clock.steady(),
        marked: false,
        marked_at: None,
    };
    let topics = TopicCatalog::default();
    Ok(Parts {
        active,
        segments: vec![segment],
        keys: IdempotencyKeys::default(),
        topics,
        aside: QuarantineBytes::default(),
    })
}

/// Recovers an existing partition. `newest` is the newest epoch that any batch may carry.
pub(crate) fn recover(context: &Context, newest: Epoch) -> Result<(Parts, Findings), OpenError> {
    let mut findings = Findings::default();
    let bases = list_segments(context, &mut findings)?;
    let Some((active_base, sealed_bases)) = bases.split_last() else {
        let log_id = context.identity.log_id;
        return Err(OpenError::PartitionMissing {
            path: context.dir.clone(),
            log_id,
        });
    };
    let mut active_header = HeaderFound::Bad;
    for base in &bases {
        active_header = check_header(context, *base, &mut findings)?;
    }
    let mut segments = Vec::with_capacity(bases.len());
    let mut keys = IdempotencyKeys::default();
    for (base, limit) in sealed_bases.iter().zip(&bases[1..]) {
        let segment = recover_sealed(context, *base, *limit, &mut findings, |index| {
            keys.add_entries(&index.keys);
        })?;
        segments.push(Arc::new(segment));
    }
    failpoint!("recovery-sealed-read");
    let mark = Checkpoint::load(&*context.seams.files, &context.dir, &context.identity);
    let mark = mark.unwrap_or_else(|what| {
        findings.notes.push(format!("{what}: it is ignored"));
        None
    });
    // With a damaged header nobody knows: what follows the batches may be records, and is kept aside.
    let is_recycled = matches!(active_header, HeaderFound::Good(header) if header.recycled);
    let recovered = recover_active(context, *active_base, mark, is_recycled, &mut findings)?;
    for segment in &recovered.segments {
        if let IndexState::Memory(index) = &*segment.index.lock() {
            keys.add_entries(&index.keys);
        }
        segment.with_builder(|growing| keys.add_entries(growing.keys()));
    }
    segments.extend(recovered.segments);
    let parts = Parts {
        active: recovered.active,
        segments,
        keys,
        topics: TopicCatalog::default(),
        aside: quarantine_bytes_of(context),
    };
    check_epochs(context, &parts, newest)?;
    Ok((parts, findings))
}

/// Base offsets, ascending. Removes what an earlier process left unfinished.
fn list_segments(context: &Context, findings: &mut Findings) -> Result<Vec<Offset>, OpenError> {
    let files = &*context.seams.files;
    let names = files.list(&context.dir).map_err(|source| {
        if source.kind() == io::ErrorKind::NotFound {
            let log_id = context.identity.log_id;
            OpenError::PartitionMissing {
                path: context.dir.clone(),
                log_id,
            }
        } else {
            OpenError::Io {
                action: "list",
                path: context.dir.clone(),
                source,
            }
        }
    })?;
    for name in names.iter().filter(|name| name.ends_with(".tmp")) {
        // One that stays only takes space: whoever needs its name empties it first.
        if let Err(error) = files.remove(&context.dir.join(name)) {
            findings
                .notes
                .push(format!("{name} is not removed: {error}"));
        }
    }
    failpoint!("recovery-unfinished-removed");
    let mut bases: Vec<Offset> = names.iter().filter_map(|name| base_of(name)).collect();
    bases.sort_unstable();
    Ok(bases)
}

/// Refuses a segment of another log, partition or format. One whose header is damaged still has its batches.
fn check_header(
    context: &Context,
    base: Offset,
    findings: &mut Findings,
) -> Result<HeaderFound, OpenError> {
    let path = context.dir.join(file_name(base, "seg"));
    let read = |path: &Path| -> io::Result<HeaderFound> {
        let mut bytes = vec![0; SEGMENT_HEADER_BYTES as usize];
        let read = read_full(&*context.open(path, OpenMode::Read)?, &mut bytes, 0)?;
        Ok(SegmentHeader::parse(&bytes[..read]))
    };
    let found = match read(&path) {
        Ok(found) => found,
        Err(source) if says_nothing_of_bytes(&source) => {
            return Err(OpenError::Io {
                action: "read",
                path,
                source,
            });
        }
        // Its batches may be readable all the same.
        Err(_) => HeaderFound::Bad,
    };
    match found {
        HeaderFound::Good(header) => {
            if header.identity.log_id != context.identity.log_id {
                let (expected, found) = (context.identity.log_id, header.identity.log_id);
                return Err(OpenError::ForeignSegment {
                    path,
                    expected,
                    found,
                });
            }
            if header.identity != context.identity || header.base != base {
                let reason = if header.identity.secret == context.identity.secret {
                    format!(
                        "it is offset {} of partition {}, moved or renamed",
                        header.base, header.identity.partition
                    )
                } else {
                    "its header has another secret than log.meta".to_owned()
                };
                return Err(OpenError::Damaged { path, reason });
            }
        }
        HeaderFound::NewerFormat(found) => {
            return Err(OpenError::NewerFormat {
                path,
                found,
                supported: crate::segment::header::FORMAT,
            });
        }
        HeaderFound::Bad => {
            findings
                .notes
                .push(format!("the header of segment {base} is damaged"));
        }
    }
    Ok(found)
}

fn recover_sealed(
    context: &Context,
    base: Offset,
    limit: Offset,
    findings: &mut Findings,
    mut note: impl FnMut(&crate::index::model::Index),
) -> Result<Segment, OpenError> {
    if let Some(index) = load_index(context, base, limit) {
        note(&index);
        let place = IndexState::Saved;
        return Ok(Segment::sealed(&context.dir, base, index.summary(), place));
    }
    findings.rebuilt_indexes += 1;
    let path = context.dir.join(file_name(base, "seg"));
    let rebuilt = context.open(&path, OpenMode::Read).and_then(|file| {
        let salvage = Salvage::new(file);
        let index = index_of_file(&salvage, context.identity, base, limit, ANY_EPOCH)?;
        Ok((index, salvage.unreadable()))
    });
    let index = match rebuilt {
        Ok((index, None)) => {
            let index = Arc::new(index);
            note(&index);
            let place = IndexState::Memory(Arc::clone(&index));
            return Ok(Segment::sealed(&context.dir, base, index.summary(), place));
        }
        Ok((index, Some(unreadable))) => {
            findings.notes.push(format!(
                "segment {base} can not be read in {} places",
                unreadable.pieces
            ));
            index
        }
        Err(source) if says_nothing_of_bytes(&source) => {
            return Err(OpenError::Io {
                action: "read",
                path,
                source,
            });
        }
        Err(error) => {
            findings
                .notes
                .push(format!("segment {base} can not be read: {error}"));
            return Ok(Segment::unread(&context.dir, base));
        }
    };
    // Unreadable now, perhaps readable later: nothing is saved, so the next start tries again; until then the offsets
    // are a gap.
    note(&index);
    let (summary, index) = (index.summary(), Arc::new(index));
    let place = IndexState::Provisional(index);
    Ok(Segment::sealed(&context.dir, base, summary, place))
}

/// Epochs above `log.meta`'s can only mean that it is older than the segments.
fn check_epochs(context: &Context, parts: &Parts, newest: Epoch) -> Result<(), OpenError> {
    let last = |segment: &Arc<Segment>| match segment.sealed.get() {
        Some(summary) => summary.epochs.last().map(|(_, epoch)| *epoch),
        None => segment
            .with_builder(|growing| growing.epochs().last().map(|(_, e)| *e))
            .flatten(),
    };
    match parts.segments.iter().filter_map(last).max() {
        Some(found) if found > newest => Err(OpenError::Damaged {
            path: context.dir.with_file_name("log.meta"),
            reason: format!(
                "it is older than partition {}, which has epoch {found}",
                context.name
            ),
        }),
        _ => Ok(()),
    }
}
