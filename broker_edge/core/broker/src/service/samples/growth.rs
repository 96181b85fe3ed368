//! How fast each partition grows: bytes a second over the last minutes, to tell when retention will remove a record.

use std::collections::VecDeque;
use std::time::Duration;

use headwater_log::Partition;

/// How often a mark is made, and how many are kept.
const EVERY: Duration = Duration::from_secs(60);
const MARKS: usize = 15;

/// Bytes written of each partition at some moments, the newest last.
#[derive(Default)]
pub struct Growth {
    marks: VecDeque<(Duration, Vec<u64>)>,
}

impl Growth {
    /// Makes a mark if it is time for one. `now`: time since the start.
    pub fn note(&mut self, now: Duration, partitions: &[Partition]) {
        let is_due = self
            .marks
            .back()
            .is_none_or(|(at, _)| now.saturating_sub(*at) >= EVERY);
        if is_due {
            self.mark(now, partitions.iter().map(written).collect());
        }
    }

    fn mark(&mut self, now: Duration, written: Vec<u64>) {
        if self.marks.len() == MARKS {
            self.marks.pop_front();
        }
        self.marks.push_back((now, written));
    }

    /// Bytes a second of a partition since the oldest mark.
    pub fn bytes_per_s(&self, now: Duration, partition: &Partition) -> f64 {
        self.rate(now, partition.id().0 as usize, written(partition))
    }

    fn rate(&self, now: Duration, number: usize, written: u64) -> f64 {
        let Some((at, before)) = self.marks.front() else {
            return 0.0;
        };
        let seconds = now.saturating_sub(*at).as_secs_f64();
        let before = before.get(number).copied().unwrap_or(written);
        if seconds > 0.0 {
            written.saturating_sub(before) as f64 / seconds
        } else {
            0.0
        }
    }
}

fn written(partition: &Partition) -> u64 {
    partition.stats().batch_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_marks() {
        let mut growth = Growth::default();
        let at = |minutes: u64| Duration::from_secs(60 * minutes);
        assert_eq!(growth.rate(at(1), 0, 100), 0.0);
        growth.mark(at(0), vec![0]);
        assert_eq!(growth.rate(at(0), 0, 100), 0.0);
        assert_eq!(growth.rate(at(1), 0, 600), 10.0);
        for minute in 1..=15 {
            growth.mark(at(minute), vec![60 * minute]);
        }
        // The first mark is gone: one byte a second since the second.
        assert_eq!(growth.rate(at(16), 0, 60 * 16), 1.0);
        // A partition that is younger than the mark.
        assert_eq!(growth.rate(at(16), 7, 60), 0.0);
    }
}
