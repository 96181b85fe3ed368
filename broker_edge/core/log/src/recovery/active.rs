//! Recovery of the active segment: tells damage from a torn tail, keeps both aside, and copies what is accepted.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::batch::layout::BATCH_AFTER_UNSYNCED;
use crate::error::OpenError;
use crate::failpoint;
use crate::faults::{Sabotage, is_sabotaged};
use crate::ids::Offset;
use crate::index::builder::IndexBuilder;
use crate::index::rebuild::{add, load_index};
use crate::recovery::checkpoint::Checkpoint;
use crate::recovery::lost_offsets::{LostOffsets, records_in_a_segment};
use crate::recovery::meta::write_error;
use crate::recovery::quarantine::Piece;
use crate::recovery::sealed::{ANY_EPOCH, Findings};
use crate::segment::header::{SEGMENT_HEADER_BYTES, Segment, file_name};
use crate::segment::scan::{SegmentScan, Step, WALK_CHUNK_BYTES};
use crate::state::context::Context;
use crate::vfs::files::{File, OpenMode, is_full, read_full};
use crate::vfs::salvage::{Salvage, says_nothing_of_bytes};
use crate::write::writer::Active;

/// How far behind the accepted batches leftovers without a header are looked for.
const LEFTOVER_BYTES_MAX: u64 = 4 << 20;

pub(crate) struct RecoveredActive {
    /// Those that damage has split off, sealed, and last the active one.
    pub segments: Vec<Arc<Segment>>,
    pub active: Active,
}

/// Valid batches one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ValidRange {
    pub start: u64,
    pub end: u64,
    pub base: Offset,
    pub next: Offset,
    /// Holds a batch that was written after everything before it had been synced.
    pub is_proof: bool,
}

struct Scan {
    /// The first begins where the segment begins and may be empty; between them is what is not valid.
    stretches: Vec<ValidRange>,
    /// How many of them are accepted.
    accepted: usize,
    /// What follows the accepted ones and was never acknowledged, up to this position.
    torn_end: u64,
}

impl Scan {
    fn last(&self) -> ValidRange {
        self.stretches[self.accepted - 1]
    }
}

pub(crate) fn recover_active(
    context: &Context,
    base: Offset,
    mark: Option<Checkpoint>,
    is_recycled: bool,
    findings: &mut Findings,
) -> Result<RecoveredActive, OpenError> {
    let path = context.dir.join(file_name(base, "seg"));
    let failed = |source| OpenError::Io {
        action: "recover",
        path: path.clone(),
        source,
    };
    let open = || {
        let file = context.open(&path, OpenMode::ReadWrite)?;
        file.len().map(|_| file)
    };
    // Giving up on it takes away offsets for good, so once is not enough.
    let file = match open().or_else(|_| open()) {
        Ok(file) => file,
        Err(error) if says_nothing_of_bytes(&error) => return Err(failed(error)),
        Err(error) => return go_on_behind(context, base, mark, &error, findings),
    };
    let salvage = Salvage::new(Arc::clone(&file));
    let scan = scan(context, &salvage, base, mark, is_recycled).map_err(failed)?;
    failpoint!("recovery-scanned");
    let last = scan.last();
    let is_whole = scan.stretches.len() == 1 && scan.torn_end == last.end;
    let stopped_here = mark.is_some_and(|mark| mark.is_stop_at(base, last.end, last.next));
    let is_last = !had_a_later_segment(context, base, mark);
    if is_whole && stopped_here && is_last {
        return reuse(context, file, last).map_err(failed);
    }
    let lost = LostOffsets::behind(
        context.segment_bytes,
        last,
        mark,
        salvage.unreadable(),
        is_last,
    );
    quarantine(context, &salvage, &scan, lost, findings)?;
    failpoint!("recovery-kept-aside");
    if scan.accepted == 1 && lost.is_none() {
        return renew(context, file, &scan, findings).map_err(|source| write_error(&path, source));
    }
    let write_failed = |source| write_error(&path, source);
    let mut segments = Vec::new();
    let mut active = None;
    // The first stretch replaces the old file, so it comes last: until then the old file still has everything.
    for at in (0..scan.accepted).rev() {
        let copied = copy(context, &salvage, scan.stretches[at]).map_err(write_failed)?;
        if at + 1 == scan.accepted {
            active = Some(copied);
        } else {
            let segment = copied.segment;
            segment.seal();
            segments.push(segment);
        }
    }
    segments.reverse();
    let mut active = active.expect("the first stretch is always accepted");
    segments.push(Arc::clone(&active.segment));
    if let Some(lost) = lost {
        // Its offsets were durable once, or may have been: they are never given again.
        active.segment.seal();
        active = begin(context, lost.next).map_err(write_failed)?;
        segments.push(Arc::clone(&active.segment));
    }
    Ok(RecoveredActive { segments, active })
}

/// Whether there was a segment after this one, which looks like the active one now: only a sealed segment has an index,
/// and a mark names the segment that was active.
fn had_a_later_segment(context: &Context, base: Offset, mark: Option<Checkpoint>) -> bool {
    mark.is_some_and(|mark| mark.base > base)
        || load_index(context, base, Offset::BELIEVABLE_MAX).is_some()
}

/// The active segment can not even be opened. It stays where it is, sealed, for a start that can read it; until then
/// its offsets are a gap, and the log goes on behind every offset that it can hold.
fn go_on_behind(
    context: &Context,
    base: Offset,
    mark: Option<Checkpoint>,
    error: &io::Error,
    findings: &mut Findings,
) -> Result<RecoveredActive, OpenError> {
    findings
        .notes
        .push(format!("segment {base} can not be read: {error}"));
    let known = mark.map_or(base, |mark| mark.next.max(base));
    let next = known.plus(records_in_a_segment(context.segment_bytes));
    let active = begin(context, next)
        .map_err(|source| write_error(&context.dir.join(file_name(next, "seg")), source))?;
    let unread = Arc::new(Segment::unread(&context.dir, base));
    Ok(RecoveredActive {
        segments: vec![unread, Arc::clone(&active.segment)],
        active,
    })
}

fn scan(
    context: &Context,
    file: &dyn File,
    base: Offset,
    mark: Option<Checkpoint>,
    is_recycled: bool,
) -> io::Result<Scan> {
    let end = file.len()?;
    let mut walk = SegmentScan::new(file, context.identity, SEGMENT_HEADER_BYTES, end, base);
    let begin = |walk: &SegmentScan<'_>| ValidRange {
        start: walk.position,
        end: walk.position,
        base: walk.expected,
        next: walk.expected,
        is_proof: false,
    };
    let mut stretches = vec![begin(&walk)];
    let mut last_batch = None;
    loop {
        match walk.next()? {
            Step::Batch { batch, position } => {
                last_batch = Some((position, batch.base_offset()));
                if let Some(stretch) = stretches.last_mut() {
                    stretch.end = walk.position;
                    stretch.next = walk.expected;
                    stretch.is_proof |= batch.flags() & BATCH_AFTER_UNSYNCED == 0;
                }
            }
            Step::Bad => {
                if !walk.resync(Offset::BELIEVABLE_MAX, ANY_EPOCH)? {
                    break;
                }
                stretches.push(begin(&walk));
            }
        }
    }
    if let (true, Some((position, base)), Some(stretch)) = (
        is_sabotaged(Sabotage::OffsetReused),
        last_batch,
        stretches.last_mut(),
    ) && mark.is_none_or(|mark| mark.position < stretch.end)
    {
        (stretch.end, stretch.next) = (position, base);
    }
    let marked_to = mark
        .filter(|mark| mark.base == base)
        .map_or(0, |mark| mark.position);
    let is_accepted = |stretch: &ValidRange| stretch.is_proof || stretch.start < marked_to;
    let accepted = stretches.iter().rposition(is_accepted).unwrap_or(0) + 1;
    let accepted_end = stretches[accepted - 1].end;
    // The walk stands behind the last batch that was found, accepted or not.
    walk.skip_claimed()?;
    let torn_end = if is_recycled && !walk.is_spoiled_batch()? {
        walk.position // What follows is of an earlier life of the file, and nobody misses it.
    } else {
        let leftover_end = accepted_end + leftover_bytes(file, accepted_end)?;
        walk.position.max(leftover_end)
    };
    Ok(Scan {
        stretches,
        accepted,
        torn_end,
    })
}

/// Makes sure that a single stretch is on the disk: in a new file, or on a full disk by writing it again in place.
fn renew(
    context: &Context,
    file: Arc<dyn File>,
    scan: &Scan,
    findings: &mut Findings,
) -> io::Result<RecoveredActive> {
    let stretch = scan.last();
    match copy(context, &*file, stretch) {
        Ok(active) => {
            return Ok(RecoveredActive {
                segments: vec![Arc::clone(&active.segment)],
                active,
            });
        }
        Err(error) if is_full(&error) => {}
        Err(error) => return Err(error),
    }
    let unfinished = context.dir.join(file_name(stretch.base, "seg.tmp"));
    context.seams.files.remove(&unfinished)?;
    // Equal bytes over equal bytes need no space and harm nothing if the power fails; the sync then covers them.
    scan_range(context, &*file, stretch, |batch, position| {
        file.write_all_at(batch.bytes(), position)
    })?;
    file.fill_zeros(stretch.end, scan.torn_end)?;
    file.sync_data()?;
    findings
        .notes
        .push("the disk is full: the active segment was renewed in place".to_owned());
    reuse(context, file, stretch)
}

/// How many bytes from `position` on are not the zeros that were written ahead.
fn leftover_bytes(file: &dyn File, position: u64) -> io::Result<u64> {
    let room = file.len()?.saturating_sub(position).min(LEFTOVER_BYTES_MAX);
    let mut bytes = vec![0; room as usize];
    let read = read_full(file, &mut bytes, position)?;
    Ok(bytes[..read]
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |at| at as u64 + 1))
}

/// Goes on with a file that was synced and whole when its last writer stopped.
fn reuse(
    context: &Context,
    file: Arc<dyn File>,
    stretch: ValidRange,
) -> io::Result<RecoveredActive> {
    let mut growing = IndexBuilder::new(stretch.base);
    scan_range(context, &*file, stretch, |batch, position| {
        add(&mut growing, batch, position);
        Ok(())
    })?;
    let filled = file.len()?;
    let segment = Arc::new(Segment::growing(&context.dir, stretch.base, growing));
    let active = active(context, file, &segment, stretch.end, filled, stretch.next);
    Ok(RecoveredActive {
        segments: vec![segment],
        active,
    })
}

fn active(
    context: &Context,
    file: Arc<dyn File>,
    segment: &Arc<Segment>,
    position: u64,
    filled: u64,
    next: Offset,
) -> Active {
    Active {
        file,
        segment: Arc::clone(segment),
        position,
        filled,
        whole_to: 0,
        next,
        topics: 0,
        unsynced: false,
        synced_at: context.seams.clock.steady(),
        wrote_at: context.seams.clock.steady(),
        marked: false,
        marked_at: None,
    }
}

fn scan_range(
    context: &Context,
    file: &dyn File,
    stretch: ValidRange,
    mut f: impl FnMut(crate::batch::decode::Batch, u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut walk = SegmentScan::new(
        file,
        context.identity,
        stretch.start,
        stretch.end,
        stretch.base,
    );
    while walk.position < stretch.end {
        match walk.next()? {
            Step::Batch { batch, position } => f(batch, position)?,
            Step::Bad => {
                let text = "the file changed while it was read";
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
        }
    }
    Ok(())
}

/// Writes the batches of a stretch into a new segment file and puts it, synced, under its name.
fn copy(context: &Context, old: &dyn File, stretch: ValidRange) -> io::Result<Active> {
    let path = context.dir.join(file_name(stretch.base, "seg"));
    let unfinished = path.with_extension("seg.tmp");
    let file = context.open(&unfinished, OpenMode::Create)?;
    file.write_all_at(&context.header(stretch.base, false).to_bytes(), 0)?;
    let mut growing = IndexBuilder::new(stretch.base);
    let mut buffer: Vec<u8> = Vec::new();
    let mut written = SEGMENT_HEADER_BYTES;
    scan_range(context, old, stretch, |batch, _| {
        let position = written + buffer.len() as u64;
        buffer.extend_from_slice(batch.bytes());
        add(&mut growing, batch, position);
        if buffer.len() >= WALK_CHUNK_BYTES {
            file.write_all_at(&buffer, written)?;
            written += buffer.len() as u64;
            buffer.clear();
        }
        Ok(())
    })?;
    file.write_all_at(&buffer, written)?;
    written += buffer.len() as u64;
    failpoint!("recovery-copied");
    publish(context, &file, unfinished, path)?;
    let segment = Arc::new(Segment::growing(&context.dir, stretch.base, growing));
    Ok(active(
        context,
        file,
        &segment,
        written,
        written,
        stretch.next,
    ))
}

/// An empty segment that begins at `base`.
fn begin(context: &Context, base: Offset) -> io::Result<Active> {
    let empty = SEGMENT_HEADER_BYTES;
    let stretch = ValidRange {
        start: empty,
        end: empty,
        base,
        next: base,
        is_proof: false,
    };
    let path = context.dir.join(file_name(base, "seg"));
    let unfinished = path.with_extension("seg.tmp");
    let file = context.open(&unfinished, OpenMode::Create)?;
    file.write_all_at(&context.header(base, false).to_bytes(), 0)?;
    publish(context, &file, unfinished, path)?;
    let segment = Arc::new(Segment::growing(
        &context.dir,
        base,
        IndexBuilder::new(base),
    ));
    Ok(active(context, file, &segment, empty, empty, stretch.next))
}

fn publish(
    context: &Context,
    file: &Arc<dyn File>,
    unfinished: PathBuf,
    path: PathBuf,
) -> io::Result<()> {
    let files = &*context.seams.files;
    file.sync_data()?;
    failpoint!("recovery-synced");
    files.rename(&unfinished, &path)?;
    failpoint!("recovery-named");
    // An index beside it describes the old file.
    match files.remove(&path.with_extension("idx")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    files.sync_dir(&context.dir)
}

/// Copies damaged and torn bytes to files of their own, for people to look at.
fn quarantine(
    context: &Context,
    file: &dyn File,
    scan: &Scan,
    lost: Option<LostOffsets>,
    findings: &mut Findings,
) -> Result<(), OpenError> {
    let mut pieces = Vec::new();
    let mut add = |from, to, first, kind| {
        pieces.push(Piece {
            from,
            to,
            first,
            kind,
        });
    };
    for pair in scan.stretches[..scan.accepted].windows(2) {
        add(pair[0].end, pair[1].start, pair[0].next, "damaged");
    }
    let last = scan.last();
    let lost_end = lost.map_or(last.end, |lost| lost.end);
    if lost_end > last.end {
        add(last.end, lost_end, last.next, "damaged");
    }
    if scan.torn_end > lost_end {
        findings.torn_bytes = scan.torn_end - lost_end;
        add(lost_end, scan.torn_end, last.next, "torn");
    }
    for piece in pieces {
        findings.keep(context, file, piece)?;
    }
    Ok(())
}
