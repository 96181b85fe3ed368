//! `headwaterd log compare`: whether the copies of a cluster's log hold the same records at the same offsets, below what
//! the cluster is known to have committed. Above it copies may differ: the end of one may have to go again.

use std::collections::BTreeMap;
use std::path::Path;

use headwater_cluster::replica_file::{BYTES_MAX, FILE_NAME, ReplicaFile};
use headwater_log::Offset;
use headwater_log::tools::{self, Access, DumpWish, ToolError, VerifyReport, Work};
use serde::Serialize;
use xxhash_rust::xxh3::Xxh3;

use super::shown::dumped;
use crate::regular_file;

/// Records of this many offsets are compared at once.
const BLOCK: u64 = 1024;

/// What a comparison has found.
#[derive(Debug, Default, Serialize, PartialEq, Eq)]
pub struct Comparison {
    pub log_id: String,
    pub partitions: Vec<Compared>,
    /// Folders with damage, which `log verify` describes.
    pub damaged: Vec<String>,
}

#[derive(Debug, Serialize, PartialEq, Eq)]
pub struct Compared {
    pub name: String,
    /// Offsets that were compared: all copies have them, and they are committed.
    pub start: u64,
    pub end: u64,
    pub committed: u64,
    /// Copies that end below `committed`.
    pub behind: Vec<Behind>,
    /// Where a copy first differs from that of the first folder.
    pub different: Vec<Different>,
}

#[derive(Debug, Serialize, PartialEq, Eq)]
pub struct Behind {
    pub dir: String,
    pub end: u64,
}

#[derive(Debug, Serialize, PartialEq, Eq)]
pub struct Different {
    pub dir: String,
    /// The first difference is in these offsets.
    pub from: u64,
    pub until: u64,
}

impl Comparison {
    pub fn is_equal(&self) -> bool {
        self.damaged.is_empty() && self.partitions.iter().all(|one| one.different.is_empty())
    }
}

/// A copy, before its records are compared.
struct Copied<'a> {
    dir: &'a Path,
    report: VerifyReport,
    /// By partition: high watermark, as its node has last written it down.
    committed: BTreeMap<u32, u64>,
}

/// Compares the copies in these folders.
///
/// # Errors
/// A folder is no copy of a cluster's log, or they are not of one log.
pub fn compare(dirs: &[&Path], work: Work<'_>) -> Result<Comparison, ToolError> {
    let copies: Result<Vec<_>, _> = dirs.iter().map(|dir| look(dir, work)).collect();
    let copies = copies?;
    let Some(first) = copies.first() else {
        return Ok(Comparison::default());
    };
    let log_id = &first.report.log_id;
    if let Some(other) = copies.iter().find(|copy| copy.report.log_id != *log_id) {
        return Err(ToolError::Refused(format!(
            "{} has log {log_id} and {} has log {}: name copies of one log",
            first.dir.display(),
            other.dir.display(),
            other.report.log_id
        )));
    }
    let damaged = copies.iter().filter(|copy| copy.report.is_damaged());
    let damaged = damaged.map(|copy| copy.dir.display().to_string()).collect();
    let names = first.report.partitions.iter();
    let partitions: Result<_, _> = names
        .map(|one| compare_partition(&one.name, &copies, work))
        .collect();
    Ok(Comparison {
        log_id: log_id.clone(),
        partitions: partitions?,
        damaged,
    })
}

fn look<'a>(dir: &'a Path, work: Work<'_>) -> Result<Copied<'a>, ToolError> {
    let report = tools::verify(dir, Access::Alone, work)?;
    let path = dir.join(FILE_NAME);
    let refused = |reason: String| {
        ToolError::Refused(format!(
            "{}: {reason}; name the data folder of a node that is stopped",
            path.display()
        ))
    };
    let bytes = regular_file::read(&path, BYTES_MAX as u64);
    let bytes = bytes.map_err(|error| refused(error.to_string()))?;
    let file = ReplicaFile::decode(&bytes).map_err(|error| refused(error.to_string()))?;
    let hints = file.hints.iter();
    Ok(Copied {
        dir,
        report,
        committed: hints
            .map(|(partition, hint)| (partition.0, hint.0))
            .collect(),
    })
}

fn compare_partition(
    name: &str,
    copies: &[Copied<'_>],
    work: Work<'_>,
) -> Result<Compared, ToolError> {
    let found: Result<Vec<_>, _> = copies
        .iter()
        .map(|copy| {
            let check = copy.report.partitions.iter().find(|one| one.name == name);
            check.map(|check| (copy, check)).ok_or_else(|| {
                ToolError::Refused(format!("{} has no partition {name}", copy.dir.display()))
            })
        })
        .collect();
    let found = found?;
    let committed = found
        .iter()
        .filter_map(|(copy, check)| copy.committed.get(&check.partition));
    let committed = committed.copied().max().unwrap_or(0);
    let start = found
        .iter()
        .map(|(_, check)| check.log_start)
        .max()
        .unwrap_or(0);
    let end = found
        .iter()
        .map(|(_, check)| check.next_offset)
        .min()
        .unwrap_or(0);
    let end = end.min(committed);
    let behind = found
        .iter()
        .filter(|(_, check)| check.next_offset < committed);
    let behind = behind.map(|(copy, check)| Behind {
        dir: copy.dir.display().to_string(),
        end: check.next_offset,
    });
    let behind = behind.collect();
    let mut different = Vec::new();
    if start < end {
        let sums: Result<Vec<_>, _> = copies
            .iter()
            .map(|copy| sums(copy.dir, name, start, end, work))
            .collect();
        let sums = sums?;
        different = copies
            .iter()
            .zip(&sums)
            .filter_map(|(copy, own)| {
                let from = start + first_difference(&sums[0], own)? * BLOCK;
                let dir = copy.dir.display().to_string();
                let until = end.min(from + BLOCK);
                Some(Different { dir, from, until })
            })
            .collect();
    }
    Ok(Compared {
        name: name.to_owned(),
        start,
        end: end.max(start),
        committed,
        behind,
        different,
    })
}

/// A checksum of what is in each block of offsets, and of what is missing there.
fn sums(
    dir: &Path,
    name: &str,
    start: u64,
    end: u64,
    work: Work<'_>,
) -> Result<BTreeMap<u64, u64>, ToolError> {
    let mut blocks: BTreeMap<u64, Xxh3> = BTreeMap::new();
    let wish = DumpWish {
        partitions: vec![name.to_owned()],
        offsets: Offset(start)..Offset(end),
        wanted: &|_| true,
        limit: None,
    };
    tools::dump(dir, Access::Alone, &wish, work, &mut |line| {
        let line = dumped(&line);
        let at = line["offset"]
            .as_u64()
            .or_else(|| line["lost"]["start"].as_u64());
        let block = (at.unwrap_or(start) - start) / BLOCK;
        let text = serde_json::to_vec(&line)?;
        blocks.entry(block).or_default().update(&text);
        Ok(())
    })?;
    Ok(blocks
        .into_iter()
        .map(|(block, sum)| (block, sum.digest()))
        .collect())
}

fn first_difference(one: &BTreeMap<u64, u64>, two: &BTreeMap<u64, u64>) -> Option<u64> {
    let blocks = one.keys().chain(two.keys());
    blocks
        .filter(|block| one.get(block) != two.get(block))
        .min()
        .copied()
}

/// The comparison for people.
pub fn text(found: &Comparison) -> String {
    let mut text = String::new();
    for one in &found.partitions {
        let (name, start, end) = (&one.name, one.start, one.end);
        let verdict = if one.different.is_empty() {
            "equal"
        } else {
            "DIFFERENT"
        };
        text.push_str(&format!("{name}: offsets [{start}, {end}) are {verdict}\n"));
        for Different { dir, from, until } in &one.different {
            text.push_str(&format!("  {dir} first differs in [{from}, {until})\n"));
        }
        for Behind { dir, end } in &one.behind {
            let committed = one.committed;
            text.push_str(&format!(
                "  {dir} ends at {end}, and {committed} is committed\n"
            ));
        }
    }
    for dir in &found.damaged {
        text.push_str(&format!("{dir} is damaged: headwater log verify {dir}\n"));
    }
    text
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
