//! Measures how long acknowledgements take, once per append and not once per publish.
//!
//! For each append it remembers when its turn began and its last ticket; when that ticket is settled, all publishes of
//! the append count with that time. The number of pending appends is bounded; appends beyond the bound are not
//! measured.

use std::collections::VecDeque;
use std::time::Instant;

use crate::metrics::Durations;

/// Limit on pending appends of one partition.
const PENDING_APPENDS_MAX: usize = 256;

#[derive(Debug, Clone, Copy)]
struct PendingAppend {
    end: u64,
    count: u64,
    since: Instant,
}

#[derive(Debug, Default)]
pub struct Latency {
    /// By partition.
    waiting: Vec<VecDeque<PendingAppend>>,
    ends: Vec<u64>,
}

impl Latency {
    /// The partition issued tickets up to `end`; the new ones came in a turn that began at `since`.
    pub fn appended(&mut self, partition: usize, end: u64, since: Instant) {
        if self.ends.len() <= partition {
            self.ends.resize(partition + 1, 0);
            self.waiting.resize_with(partition + 1, VecDeque::new);
        }
        let count = end.saturating_sub(self.ends[partition]);
        self.ends[partition] = end;
        let waiting = &mut self.waiting[partition];
        if count > 0 && waiting.len() < PENDING_APPENDS_MAX {
            waiting.push_back(PendingAppend { end, count, since });
        }
    }

    /// The partition's tickets below `settled` are acknowledged.
    pub fn settled(&mut self, partition: usize, settled: u64, durations: &Durations) {
        let Some(waiting) = self.waiting.get_mut(partition) else {
            return;
        };
        while let Some(front) = waiting.front()
            && front.end <= settled
        {
            durations.observe_many(front.since.elapsed(), front.count);
            waiting.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_publish_of_an_append_counts_once_when_it_is_settled() {
        let (mut latency, durations) = (Latency::default(), Durations::default());
        let since = Instant::now();
        latency.appended(3, 10, since);
        latency.appended(3, 10, since);
        latency.appended(3, 15, since);
        latency.settled(3, 9, &durations);
        assert_eq!(durations.count(), 0);
        latency.settled(3, 10, &durations);
        assert_eq!(durations.count(), 10);
        latency.settled(3, 99, &durations);
        latency.settled(7, 99, &durations);
        assert_eq!(durations.count(), 15);
    }
}
