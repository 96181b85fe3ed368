//! `dump`: the records of partitions, one after the other, with the gaps between them.

use std::ops::Range;
use std::path::Path;

use super::folder::{Folder, PartitionDir};
use super::scan::scan_segment;
use super::work::{Access, ToolError, Work};
use crate::batch::view::RecordView;
use crate::ids::{Offset, PartitionId};

/// Which records are wanted.
pub struct DumpWish<'a> {
    /// Names such as `telemetry-0`; none means all.
    pub partitions: Vec<String>,
    pub offsets: Range<Offset>,
    pub wanted: &'a dyn Fn(&str) -> bool,
    pub limit: Option<u64>,
}

/// One line of a dump.
pub enum Dumped<'a> {
    Record {
        partition: PartitionId,
        name: &'a str,
        record: &'a RecordView<'a>,
    },
    /// Offsets that cannot be read.
    Lost {
        partition: PartitionId,
        name: &'a str,
        offsets: Range<Offset>,
    },
}

/// Gives every wanted record to `take`, and stops at the limit; returns their number.
pub fn dump(
    dir: &Path,
    access: Access,
    wish: &DumpWish<'_>,
    work: Work<'_>,
    take: &mut dyn FnMut(Dumped<'_>) -> std::io::Result<()>,
) -> Result<u64, ToolError> {
    let folder = Folder::open(dir, access, work)?;
    let is_known = |name: &String| folder.partitions.iter().any(|place| place.name == *name);
    if let Some(unknown) = wish.partitions.iter().find(|name| !is_known(name)) {
        let names: Vec<&str> = folder.partitions.iter().map(|place| &*place.name).collect();
        return Err(ToolError::Refused(format!(
            "there is no partition {unknown}; there are {}",
            names.join(", ")
        )));
    }
    let mut count = 0;
    for place in &folder.partitions {
        if !wish.partitions.is_empty() && !wish.partitions.contains(&place.name) {
            continue;
        }
        for (base, limit) in folder.readable(place) {
            if base >= wish.offsets.end || limit.is_some_and(|end| end <= wish.offsets.start) {
                continue;
            }
            let mut is_enough = false;
            let counts = (&mut count, &mut is_enough);
            let dumped = dump_segment(place, (base, limit), wish, work, counts, take);
            if is_enough {
                return Ok(count);
            }
            dumped?;
        }
    }
    Ok(count)
}

/// Sets the flag, and fails, when the limit is reached.
fn dump_segment(
    place: &PartitionDir,
    (base, limit): (Offset, Option<Offset>),
    wish: &DumpWish<'_>,
    work: Work<'_>,
    (count, is_enough): (&mut u64, &mut bool),
    take: &mut dyn FnMut(Dumped<'_>) -> std::io::Result<()>,
) -> Result<(), ToolError> {
    let (partition, name) = (place.identity.partition, &*place.name);
    let told = |error| ToolError::io("write the dump of", &place.dir)(error);
    let mut expected = base;
    let lose = |take: &mut dyn FnMut(Dumped<'_>) -> std::io::Result<()>, lost: Range<Offset>| {
        let offsets = lost.start.max(wish.offsets.start)..lost.end.min(wish.offsets.end);
        if offsets.start >= offsets.end {
            return Ok(());
        }
        take(Dumped::Lost {
            partition,
            name,
            offsets,
        })
    };
    scan_segment(work, place, base, limit, |batch, _| {
        if batch.base_offset() > expected {
            lose(take, expected..batch.base_offset()).map_err(told)?;
        }
        expected = batch.next_offset();
        for record in batch.records() {
            let is_wanted = wish.offsets.contains(&record.offset)
                && (record.purged || (wish.wanted)(record.topic));
            if !is_wanted {
                continue;
            }
            if wish.limit.is_some_and(|limit| *count >= limit) {
                *is_enough = true;
                return Err(ToolError::Interrupted);
            }
            *count += 1;
            take(Dumped::Record {
                partition,
                name,
                record: &record,
            })
            .map_err(told)?;
        }
        Ok(())
    })?;
    if let Some(limit) = limit.filter(|limit| expected < *limit) {
        lose(take, expected..limit).map_err(told)?;
    }
    Ok(())
}
