//! Recovers the active segment: tells damage from a torn tail, quarantines both, and goes on behind the accepted
//! batches.

use std::io;
use std::sync::Arc;

use crate::error::OpenError;
use crate::failpoint;
use crate::ids::Offset;
use crate::index::rebuild::open_index;
use crate::index::segment::Segment;
use crate::recovery::checkpoint::Checkpoint;
use crate::recovery::look::{ActiveScan, look};
use crate::recovery::lost_offsets::{LostOffsets, records_in_a_segment};
use crate::recovery::quarantine::{Findings, Piece};
use crate::recovery::rewrite::{ActiveFile, begin, copy, renew, reuse};
use crate::segment::header::file_name;
use crate::state::context::Context;
use crate::vfs::files::{File, OpenMode};
use crate::vfs::salvage::{Salvage, says_nothing_of_bytes};

/// The segments that damage has split off, sealed, and the active one, which is not among them.
pub(crate) type Recovered = (Vec<Arc<Segment>>, ActiveFile);

pub(crate) fn recover_active(
    context: &Context,
    base: Offset,
    checkpoint: Option<Checkpoint>,
    is_recycled: bool,
    findings: &mut Findings,
) -> Result<Recovered, OpenError> {
    let path = context.dir.join(file_name(base, "seg"));
    let failed = |source| OpenError::io("recover", &path, source);
    let write_failed = |source| OpenError::write(&path, source);
    let open = || {
        let file = context.open(&path, OpenMode::ReadWrite)?;
        file.len().map(|_| file)
    };
    // Tried twice, because giving up on the file loses its offsets for good.
    let file = match open().or_else(|_| open()) {
        Ok(file) => file,
        Err(error) if says_nothing_of_bytes(&error) => return Err(failed(error)),
        // The others of its cluster have what is in it.
        Err(error) if context.is_replica => return Err(failed(error)),
        Err(error) => return go_on_behind(context, base, checkpoint, &error, findings),
    };
    let salvage = Salvage::new(Arc::clone(&file));
    let scan = look(&salvage, context.identity, base, checkpoint, is_recycled).map_err(failed)?;
    failpoint!("recovery-scanned");
    let last = scan.last();
    let is_whole = scan.ranges.len() == 1 && scan.torn_end == last.end;
    let stopped_here = checkpoint.is_some_and(|it| it.is_stop_at(base, last.end, last.next));
    let is_last = !had_a_later_segment(context, base, checkpoint);
    if is_whole && stopped_here && is_last {
        return Ok((Vec::new(), reuse(context, file, last).map_err(failed)?));
    }
    let unreadable = salvage.unreadable();
    let lost = LostOffsets::behind(context.segment_bytes, last, checkpoint, unreadable, is_last);
    if context.is_replica && (scan.accepted > 1 || lost.is_some()) {
        let first = scan.ranges[0];
        findings.doubt = Some(doubt(&scan, lost));
        return Ok((Vec::new(), reuse(context, file, first).map_err(failed)?));
    }
    quarantine(context, &salvage, &scan, lost, findings)?;
    failpoint!("recovery-kept-aside");
    if scan.accepted == 1 && lost.is_none() {
        let renewed = renew(context, file, last, scan.torn_end);
        let (active, is_in_place) = renewed.map_err(write_failed)?;
        if is_in_place {
            let text = "the disk is full: the active segment was renewed in place";
            findings.notes.push(text.to_owned());
        }
        return Ok((Vec::new(), active));
    }
    // The first range replaces the old file, so it comes last: until then the old file still has everything.
    let accepted = scan.ranges[..scan.accepted].iter().rev();
    let copied: Result<Vec<_>, _> = accepted
        .map(|range| copy(context, &salvage, *range))
        .collect();
    let mut copied = copied.map_err(write_failed)?;
    if let Some(lost) = lost {
        // Its offsets were durable once, or may have been: they are never given again.
        copied.insert(0, begin(context, lost.next).map_err(write_failed)?);
    }
    let active = copied.remove(0);
    let seal = |copied: ActiveFile| {
        copied.segment.seal();
        copied.segment
    };
    Ok((copied.into_iter().rev().map(seal).collect(), active))
}

/// What a log alone would decide: that the offsets between are lost. A replica asks the others first.
fn doubt(scan: &ActiveScan, lost: Option<LostOffsets>) -> String {
    let end = scan.ranges[0].next;
    match (scan.ranges[1..scan.accepted].first(), lost) {
        (Some(after), _) => format!(
            "it ends at offset {end}, and behind bytes that are no batch follows offset {}",
            after.base
        ),
        (None, lost) => {
            let next = lost.map_or(end, |lost| lost.next);
            format!("it ends at offset {end}, and had or may have had those below {next}")
        }
    }
}

/// Whether there was a segment after this one, which looks like the active one now: only a sealed segment has an index,
/// and a checkpoint names the segment that was active.
fn had_a_later_segment(context: &Context, base: Offset, checkpoint: Option<Checkpoint>) -> bool {
    checkpoint.is_some_and(|checkpoint| checkpoint.base > base)
        || open_index(context, base, Offset::BELIEVABLE_MAX).is_some()
}

/// For an active segment that cannot even be opened. It stays in place, sealed, for a start that can read it. Until
/// then its offsets are a gap, and the log goes on behind every offset that it can hold.
fn go_on_behind(
    context: &Context,
    base: Offset,
    checkpoint: Option<Checkpoint>,
    error: &io::Error,
    findings: &mut Findings,
) -> Result<Recovered, OpenError> {
    findings
        .notes
        .push(format!("segment {base} can not be read: {error}"));
    let known = checkpoint.map_or(base, |checkpoint| checkpoint.next.max(base));
    let next = known.plus(records_in_a_segment(context.segment_bytes));
    let active = begin(context, next)
        .map_err(|source| OpenError::write(&context.dir.join(file_name(next, "seg")), source))?;
    let unreadable = Arc::new(Segment::unreadable(&context.dir, base));
    Ok((vec![unreadable], active))
}

/// Copies damaged and torn bytes to files of their own, for people to inspect.
fn quarantine(
    context: &Context,
    file: &dyn File,
    scan: &ActiveScan,
    lost: Option<LostOffsets>,
    findings: &mut Findings,
) -> Result<(), OpenError> {
    let mut keep = |bytes, first, kind| findings.keep(context, file, Piece { bytes, first, kind });
    for pair in scan.ranges[..scan.accepted].windows(2) {
        keep(pair[0].end..pair[1].start, pair[0].next, "damaged")?;
    }
    let last = scan.last();
    let lost_end = lost.map_or(last.end, |lost| lost.end);
    if lost_end > last.end {
        keep(last.end..lost_end, last.next, "damaged")?;
    }
    if scan.torn_end > lost_end {
        keep(lost_end..scan.torn_end, last.next, "torn")?;
        findings.torn_bytes = scan.torn_end - lost_end;
    }
    Ok(())
}
