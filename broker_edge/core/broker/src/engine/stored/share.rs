//! `share/<name>`: the cursor of a shared group in each partition.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ByName;

pub const PREFIX: &str = "share/";

pub fn key(name: &str) -> String {
    format!("{PREFIX}{}", name.strip_prefix("$share/").unwrap_or(name))
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Group {
    /// By partition name.
    pub places: BTreeMap<String, Cursor>,
    /// The end of the history at which the group began.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub past: ByName,
}

/// Ranges stored per partition. Records done above the last range are delivered again after a crash.
const RANGES_MAX: usize = 4096;

/// Everything below `low` is done; `done` alternates between the number of following records that are not done and the
/// number that are.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Cursor {
    pub low: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<u64>,
}

impl Cursor {
    /// `pending` is ascending and below `next`; `skipped` is ascending and holds the done ranges above `next`.
    pub fn of(next: u64, pending: &[u64], skipped: &[(u64, u64)]) -> Self {
        let low = pending.first().copied().unwrap_or(next);
        let mut done = Vec::new();
        let mut at = low;
        let mut add = |from: u64, to: u64| {
            if from < to && done.len() < 2 * RANGES_MAX {
                done.extend([from - at, to - from]);
                at = to;
            }
        };
        for (index, offset) in pending.iter().enumerate() {
            let until = pending.get(index + 1).copied().unwrap_or(next);
            add(offset + 1, until);
        }
        for (from, to) in skipped {
            add((*from).max(next), *to);
        }
        Self { low, done }
    }

    /// The done ranges above the low watermark, ascending.
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        let mut at = self.low;
        let pairs = self.done.chunks_exact(2);
        pairs
            .map(|pair| {
                let from = at.saturating_add(pair[0]);
                at = from.saturating_add(pair[1]);
                (from, at)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_the_bound_counts_as_not_done() {
        let pending: Vec<u64> = (0..20_000).map(|n| 2 * n).collect();
        let stored = Cursor::of(40_000, &pending, &[]);
        assert_eq!(stored.ranges().len(), RANGES_MAX);
        assert_eq!(stored.ranges().last(), Some(&(8191, 8192)));
    }
}
