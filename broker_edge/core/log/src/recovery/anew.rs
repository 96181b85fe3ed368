//! Empties the partition of a replica that begins anew where its leader says: what is left of it can not be cut.

use std::io;

use crate::failpoint;
use crate::ids::Offset;
use crate::recovery::checkpoint::Checkpoint;
use crate::recovery::rewrite::begin;
use crate::segment::header::{base_of, file_name};
use crate::state::context::Context;
use crate::vfs::files::existing;

/// Removes all segments and begins an empty one. When the power fails meanwhile, the next start finds less than there
/// was, with a hole or below what was committed.
pub(crate) fn begin_anew(context: &Context, at: Offset) -> io::Result<()> {
    let (files, dir) = (&*context.seams.files, &context.dir);
    let names = existing(files.list(dir))?.unwrap_or_default();
    files.create_dir(dir)?;
    // It tells of records that are to go.
    Checkpoint::remove(files, dir)?;
    files.sync_dir(dir)?;
    let mut bases: Vec<Offset> = names.iter().filter_map(|name| base_of(name)).collect();
    bases.sort_unstable();
    let remove =
        |base: &Offset, suffix| existing(files.remove(&dir.join(file_name(*base, suffix))));
    for base in bases.iter().rev() {
        // An index beside the last segment says that a later one is missing.
        remove(base, "idx")?;
    }
    // The newest first; the oldest stays until the new one is there, because a partition has a segment.
    for base in bases.iter().skip(1).rev() {
        remove(base, "seg")?;
    }
    failpoint!("anew-emptied");
    begin(context, at)?;
    if let Some(oldest) = bases.first().filter(|oldest| **oldest != at) {
        remove(oldest, "seg")?;
    }
    files.sync_dir(dir)
}
