//! Recovery of the active segment: tells damage from a torn tail, keeps both aside, and copies what is accepted.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::context::{Context, fill_zeros};
use crate::encode::BATCH_AFTER_UNSYNCED;
use crate::error::OpenError;
use crate::files::{File, OpenMode, is_full, read_full};
use crate::ids::{Epoch, Offset};
use crate::index::Growing;
use crate::mark::{Mark, MarkKind};
use crate::meta::write_error;
use crate::rebuild::add;
use crate::recovery::Findings;
use crate::segment::{SEGMENT_HEADER_BYTES, Segment, file_name};
use crate::walk::{Step, WALK_CHUNK_BYTES, Walk};
use crate::writer::Active;

/// How far behind the accepted batches leftovers without a header are looked for.
const LEFTOVER_BYTES_MAX: u64 = 4 << 20;

pub(crate) struct RecoveredActive {
    /// Those that damage has split off, sealed, and last the active one.
    pub segments: Vec<Arc<Segment>>,
    pub active: Active,
}

/// Valid batches one after the other.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    start: u64,
    end: u64,
    base: Offset,
    next: Offset,
    /// Holds a batch that was written after everything before it had been synced.
    is_proof: bool,
}

struct Scan {
    /// The first begins where the segment begins and may be empty; between them is what is not valid.
    stretches: Vec<Stretch>,
    /// How many of them are accepted.
    accepted: usize,
    /// What follows the accepted ones and was never acknowledged, up to this position.
    torn_end: u64,
}

impl Scan {
    fn last(&self) -> Stretch {
        self.stretches[self.accepted - 1]
    }
}

pub(crate) fn recover_active(
    context: &Context,
    base: Offset,
    newest: Epoch,
    mark: Option<Mark>,
    is_recycled: bool,
    findings: &mut Findings,
) -> Result<RecoveredActive, OpenError> {
    let path = context.dir.join(file_name(base, "seg"));
    let failed = |source| OpenError::Io {
        action: "recover",
        path: path.clone(),
        source,
    };
    let file = context.open(&path, OpenMode::ReadWrite).map_err(failed)?;
    let scan = scan(context, &*file, base, newest, mark, is_recycled).map_err(failed)?;
    let last = scan.last();
    let is_whole = scan.stretches.len() == 1 && scan.torn_end == last.end;
    let stopped_here = mark.is_some_and(|mark| {
        let at_end = mark.position == last.end && mark.next == last.next;
        mark.kind == MarkKind::CleanStop && mark.base == base && at_end
    });
    if is_whole && stopped_here {
        return reuse(context, file, last).map_err(failed);
    }
    keep_aside(context, &*file, &scan, mark, findings)?;
    let lost = mark.filter(|mark| mark.next > last.next);
    if scan.accepted == 1 && lost.is_none() {
        return renew(context, file, &scan, findings).map_err(|source| write_error(&path, source));
    }
    let write_failed = |source| write_error(&path, source);
    let mut segments = Vec::new();
    let mut active = None;
    // The first stretch replaces the old file, so it comes last: until then the old file still has everything.
    for at in (0..scan.accepted).rev() {
        let copied = copy(context, &*file, scan.stretches[at]).map_err(write_failed)?;
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
    if let Some(mark) = lost {
        // Its offsets were durable once: they are never given again.
        active.segment.seal();
        active = begin(context, mark.next).map_err(write_failed)?;
        segments.push(Arc::clone(&active.segment));
    }
    Ok(RecoveredActive { segments, active })
}

fn scan(
    context: &Context,
    file: &dyn File,
    base: Offset,
    newest: Epoch,
    mark: Option<Mark>,
    is_recycled: bool,
) -> io::Result<Scan> {
    let end = file.len()?;
    let mut walk = Walk::new(file, context.identity, SEGMENT_HEADER_BYTES, end, base);
    let begin = |walk: &Walk<'_>| Stretch {
        start: walk.position,
        end: walk.position,
        base: walk.expected,
        next: walk.expected,
        is_proof: false,
    };
    let mut stretches = vec![begin(&walk)];
    loop {
        match walk.next()? {
            Step::Batch { batch, .. } => {
                if let Some(stretch) = stretches.last_mut() {
                    stretch.end = walk.position;
                    stretch.next = walk.expected;
                    stretch.is_proof |= batch.flags() & BATCH_AFTER_UNSYNCED == 0;
                }
            }
            Step::Bad => {
                if !walk.resync(Offset(u64::MAX), newest)? {
                    break;
                }
                stretches.push(begin(&walk));
            }
        }
    }
    let marked_to = mark
        .filter(|mark| mark.base == base)
        .map_or(0, |mark| mark.position);
    let is_accepted = |stretch: &Stretch| stretch.is_proof || stretch.start < marked_to;
    let accepted = stretches.iter().rposition(is_accepted).unwrap_or(0) + 1;
    let accepted_end = stretches[accepted - 1].end;
    let torn_end = if accepted < stretches.len() {
        stretches[stretches.len() - 1].end
    } else if let Some(bytes) = walk.claimed_bytes()? {
        (accepted_end + bytes).min(end)
    } else if is_recycled {
        accepted_end // Bytes of an earlier life of the file, which nobody misses.
    } else {
        accepted_end + leftover_bytes(file, accepted_end)?
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
    walk_stretch(context, &*file, stretch, |batch, position| {
        file.write_all_at(batch.bytes(), position)
    })?;
    fill_zeros(&*file, stretch.end, scan.torn_end)?;
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
fn reuse(context: &Context, file: Arc<dyn File>, stretch: Stretch) -> io::Result<RecoveredActive> {
    let mut growing = Growing::new(stretch.base);
    walk_stretch(context, &*file, stretch, |batch, position| {
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
        next,
        topics: 0,
        unsynced: false,
        synced_at: context.seams.clock.steady(),
        wrote_at: context.seams.clock.steady(),
        marked: false,
    }
}

fn walk_stretch(
    context: &Context,
    file: &dyn File,
    stretch: Stretch,
    mut f: impl FnMut(crate::batch::Batch, u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut walk = Walk::new(
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
fn copy(context: &Context, old: &dyn File, stretch: Stretch) -> io::Result<Active> {
    let path = context.dir.join(file_name(stretch.base, "seg"));
    let unfinished = path.with_extension("seg.tmp");
    let file = context.open(&unfinished, OpenMode::Create)?;
    file.write_all_at(&context.header(stretch.base, false).to_bytes(), 0)?;
    let mut growing = Growing::new(stretch.base);
    let mut buffer: Vec<u8> = Vec::new();
    let mut written = SEGMENT_HEADER_BYTES;
    walk_stretch(context, old, stretch, |batch, _| {
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
    let stretch = Stretch {
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
    let segment = Arc::new(Segment::growing(&context.dir, base, Growing::new(base)));
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
    files.rename(&unfinished, &path)?;
    // An index beside it describes the old file.
    match files.remove(&path.with_extension("idx")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    files.sync_dir(&context.dir)
}

/// Copies damaged and torn bytes to files of their own, for people to look at.
fn keep_aside(
    context: &Context,
    file: &dyn File,
    scan: &Scan,
    mark: Option<Mark>,
    findings: &mut Findings,
) -> Result<(), OpenError> {
    let mut pieces = Vec::new();
    for pair in scan.stretches[..scan.accepted].windows(2) {
        pieces.push((pair[0].end, pair[1].start, pair[0].next, "damaged"));
    }
    let last = scan.last();
    let lost_to = mark
        .filter(|mark| mark.next > last.next)
        .map_or(last.end, |mark| mark.position);
    if lost_to > last.end {
        pieces.push((last.end, lost_to, last.next, "damaged"));
    }
    let torn_start = last.end.max(lost_to);
    if scan.torn_end > torn_start {
        findings.torn_bytes = scan.torn_end - torn_start;
        pieces.push((torn_start, scan.torn_end, last.next, "torn"));
    }
    for (from, to, offset, suffix) in pieces {
        let suffix = format!("{}.{suffix}", context.epoch);
        let path = context.dir.join(file_name(offset, &suffix));
        match copy_bytes(context, file, from, to, &path) {
            Ok(()) => findings.notes.push(format!(
                "bytes {from} to {to} are kept in {}",
                path.display()
            )),
            Err(error) if is_full(&error) => {
                let _ = context.seams.files.remove(&path);
                findings.notes.push(format!(
                    "no space to keep bytes {from} to {to} in {}",
                    path.display()
                ));
            }
            Err(source) => return Err(write_error(&path, source)),
        }
    }
    Ok(())
}

fn copy_bytes(
    context: &Context,
    from: &dyn File,
    start: u64,
    end: u64,
    path: &std::path::Path,
) -> io::Result<()> {
    let file = context.open(path, OpenMode::Create)?;
    let mut position = start;
    while position < end {
        let mut chunk = vec![0; (end - position).min(WALK_CHUNK_BYTES as u64) as usize];
        let read = read_full(from, &mut chunk, position)?;
        if read == 0 {
            break;
        }
        file.write_all_at(&chunk[..read], position - start)?;
        position += read as u64;
    }
    file.sync_data()
}
