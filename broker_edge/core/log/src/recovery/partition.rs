//! Recovers a partition from its folder, in the order of `docs/format.md` §7.
//!
//! Nothing is appended here and no offset is shown; the caller sets the high watermark once this returned.

use std::io;
use std::sync::Arc;

use crate::batch::record_batch::Batch;
use crate::error::OpenError;
use crate::failpoint;
use crate::ids::{Epoch, Offset};
use crate::index::keys::KeyEntry;
use crate::index::segment::Segment;
use crate::recovery::active::recover_active;
use crate::recovery::checkpoint::Checkpoint;
use crate::recovery::quarantine::{Findings, QuarantineBytes, quarantine_bytes_of};
use crate::recovery::replica::uncommitted_of;
use crate::recovery::rewrite::{ActiveFile, create_first};
use crate::recovery::sealed::{check_header, recover_sealed};
use crate::segment::header::{HeaderFound, base_of, file_name};
use crate::state::context::Context;

/// A partition that can go on.
pub(crate) struct RecoveredPartition {
    pub active: ActiveFile,
    /// Ascending; the last is the active one.
    pub segments: Vec<Arc<Segment>>,
    /// Of the committed records of the active segment. Those of sealed segments are in their indexes.
    pub keys: Vec<KeyEntry>,
    /// Everything below is committed.
    pub high_watermark: Offset,
    /// Of a replica, with their positions in the active segment.
    pub uncommitted: Vec<(Batch, u64)>,
    pub quarantine: QuarantineBytes,
    /// Of a replica that may lack what it once had on its disk.
    pub doubt: Option<String>,
}

/// Makes the folder of a new partition and its first segment.
pub(crate) fn create(context: &Context) -> Result<RecoveredPartition, OpenError> {
    let created = context.seams.files.create_dir(&context.dir);
    created.map_err(|source| OpenError::write(&context.dir, source))?;
    let path = context.dir.join(file_name(Offset(0), "seg"));
    let active = create_first(context).map_err(|source| OpenError::write(&path, source))?;
    Ok(RecoveredPartition {
        segments: vec![Arc::clone(&active.segment)],
        high_watermark: active.next,
        active,
        keys: Vec::new(),
        uncommitted: Vec::new(),
        quarantine: QuarantineBytes::default(),
        doubt: None,
    })
}

/// Recovers an existing partition. `newest` is the newest epoch that any batch may carry, and of a replica everything
/// below `committed` is known to be committed.
pub(crate) fn recover(
    context: &Context,
    newest: Epoch,
    committed: Option<Offset>,
) -> Result<(RecoveredPartition, Findings), OpenError> {
    let mut findings = Findings::default();
    let bases = list_segments(context, &mut findings)?;
    let Some((active_base, sealed_bases)) = bases.split_last() else {
        return Err(missing(context));
    };
    let mut active_header = HeaderFound::Bad;
    for base in &bases {
        active_header = check_header(context, *base, &mut findings)?;
    }
    let mut segments = Vec::with_capacity(bases.len());
    for (base, limit) in sealed_bases.iter().zip(&bases[1..]) {
        let segment = recover_sealed(context, *base, *limit, &mut findings)?;
        segments.push(Arc::new(segment));
    }
    failpoint!("recovery-sealed-read");
    let checkpoint = Checkpoint::load(&*context.seams.files, &context.dir, &context.identity);
    let checkpoint = checkpoint.unwrap_or_else(|what| {
        findings.notes.push(format!("{what}: it is ignored"));
        None
    });
    // Unknown when the header is damaged: the bytes behind the batches may be records, and are quarantined.
    let is_recycled = matches!(active_header, HeaderFound::Good(header) if header.recycled);
    let (split_off, active) = recover_active(
        context,
        *active_base,
        checkpoint,
        is_recycled,
        &mut findings,
    )?;
    segments.extend(split_off);
    segments.push(Arc::clone(&active.segment));
    check_epochs(context, &segments, newest)?;
    let (mut high_watermark, mut uncommitted) = (active.next, Vec::new());
    if let Some(committed) = committed {
        let found = uncommitted_of(context, &active, committed);
        (high_watermark, uncommitted) =
            found.map_err(|source| OpenError::io("read", &active.segment.path, source))?;
    }
    // A segment that is split off has its index in memory.
    let keys = (active.segment).with_builder(|builder| builder.head().keys.clone());
    let mut doubt = findings.doubt.clone();
    if let Some(committed) = committed.filter(|committed| *committed > active.next) {
        let end = active.next;
        doubt.get_or_insert(format!(
            "it ends at offset {end}, and those below {committed} were committed"
        ));
    }
    let recovered = RecoveredPartition {
        active,
        segments,
        keys: keys.unwrap_or_default(),
        high_watermark,
        uncommitted,
        quarantine: quarantine_bytes_of(context),
        doubt,
    };
    Ok((recovered, findings))
}

fn missing(context: &Context) -> OpenError {
    OpenError::PartitionMissing {
        path: context.dir.clone(),
        log_id: context.identity.log_id,
    }
}

/// Base offsets, ascending. Removes what an earlier process left unfinished.
fn list_segments(context: &Context, findings: &mut Findings) -> Result<Vec<Offset>, OpenError> {
    let files = &*context.seams.files;
    let names = files.list(&context.dir).map_err(|source| {
        if source.kind() == io::ErrorKind::NotFound {
            return missing(context);
        }
        OpenError::io("list", &context.dir, source)
    })?;
    for name in names.iter().filter(|name| name.ends_with(".tmp")) {
        // A file that cannot be removed only takes space: it is emptied before its name is used again.
        if let Err(error) = files.remove(&context.dir.join(name)) {
            findings
                .notes
                .push(format!("{name} could not be removed: {error}"));
        }
    }
    failpoint!("recovery-unfinished-removed");
    let mut bases: Vec<Offset> = names.iter().filter_map(|name| base_of(name)).collect();
    bases.sort_unstable();
    Ok(bases)
}

/// Epochs above the one in `log.meta` mean that `log.meta` is older than the segments.
fn check_epochs(
    context: &Context,
    segments: &[Arc<Segment>],
    newest: Epoch,
) -> Result<(), OpenError> {
    let last = |segment: &Arc<Segment>| {
        segment.with_head(|head| head.epochs.last().map(|(_, epoch)| *epoch))
    };
    match segments.iter().filter_map(last).max() {
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
