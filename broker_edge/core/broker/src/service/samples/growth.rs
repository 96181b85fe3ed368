//! How fast each partition grows: bytes a second over the last minutes, to tell when retention will remove a record.

use std::time::Duration;

use headwater_log::Partition;

use super::marks::Marks;

/// A quarter of an hour.
const MARKS: usize = 15;

/// Bytes written of each partition at some moments.
pub struct Growth(Marks<Vec<u64>>);

impl Default for Growth {
    fn default() -> Self {
        Self(Marks::new(MARKS))
    }
}

impl Growth {
    /// Makes a mark if it is time for one. `now`: time since the start.
    pub fn note(&mut self, now: Duration, partitions: &[Partition]) {
        self.0
            .note(now, || partitions.iter().map(written).collect());
    }

    /// Bytes a second of a partition since the oldest mark; None in the first minute.
    pub fn bytes_per_s(&self, now: Duration, partition: &Partition) -> Option<f64> {
        self.rate(now, partition.id().0 as usize, written(partition))
    }

    fn rate(&self, now: Duration, number: usize, written: u64) -> Option<f64> {
        let (age, before) = self.0.oldest(now)?;
        let before = before.get(number).copied().unwrap_or(written);
        Some(written.saturating_sub(before) as f64 / age.as_secs_f64())
    }
}

fn written(partition: &Partition) -> u64 {
    partition.stats().batch_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_marks_once_they_span_a_minute() {
        let mut growth = Growth::default();
        let at = |minutes: u64| Duration::from_secs(60 * minutes);
        assert_eq!(growth.rate(at(1), 0, 100), None);
        growth.0.note(at(0), || vec![0]);
        // What clients have kept while the broker was down.
        assert_eq!(growth.rate(Duration::from_secs(59), 0, 100_000), None);
        assert_eq!(growth.rate(at(1), 0, 600), Some(10.0));
        for minute in 1..=15 {
            growth.0.note(at(minute), || vec![60 * minute]);
        }
        // The first mark is gone: one byte a second since the second.
        assert_eq!(growth.rate(at(16), 0, 60 * 16), Some(1.0));
        // A partition that is younger than the mark.
        assert_eq!(growth.rate(at(16), 7, 60), Some(0.0));
    }
}
