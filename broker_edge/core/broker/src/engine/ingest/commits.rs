//! The appends to one partition that are not durable yet, by number, and who waits for them.
//!
//! It sends nothing; it reports who may go on.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use headwater_log::Offset;

use crate::engine::ids::CommitSeq;
use crate::metrics::Durations;

/// The publishes of clients in an append.
#[derive(Debug, Clone, Copy)]
pub struct Published {
    pub count: u64,
    /// When their turn began.
    pub since: Instant,
    /// Some of them are of QoS 2.
    pub has_qos2: bool,
}

/// An accepted append whose records are not durable yet.
#[derive(Debug)]
struct Appended<W> {
    seq: CommitSeq,
    base: Offset,
    end: Offset,
    published: Option<Published>,
    waiting: Vec<W>,
}

/// Connections or sessions wait for them; one may be there more than once.
#[derive(Debug)]
pub struct Commits<W> {
    /// The number of the next append: what is staged now waits for it.
    open: CommitSeq,
    settled: CommitSeq,
    appended: VecDeque<Appended<W>>,
    /// Who waits for the next append.
    waiting: Vec<W>,
}

impl<W: Copy + PartialEq> Commits<W> {
    pub fn new(open: CommitSeq) -> Self {
        Self {
            open,
            settled: CommitSeq(0),
            appended: VecDeque::new(),
            waiting: Vec::new(),
        }
    }

    #[inline]
    pub fn open(&self) -> CommitSeq {
        self.open
    }

    /// What waits for a number up to this one is durable.
    #[inline]
    pub fn settled(&self) -> CommitSeq {
        self.settled
    }

    /// Who waits for the next append.
    pub fn waiting(&self) -> &[W] {
        &self.waiting
    }

    /// Who waits for an accepted append; the newest ones are found first.
    pub fn waiting_for(&self, seq: CommitSeq) -> &[W] {
        let mut newest_first = self.appended.iter().rev();
        let found = newest_first.find(|appended| appended.seq == seq);
        found.map_or(&[], |appended| &appended.waiting)
    }

    /// Waits for the next append.
    #[inline]
    pub fn wait(&mut self, who: W) {
        if self.waiting.last() != Some(&who) {
            self.waiting.push(who);
        }
    }

    /// Waits for a number given to others.
    pub fn watch(&mut self, seq: CommitSeq, who: W) {
        if seq >= self.open {
            self.waiting.push(who);
        } else if let Some(last) = self.appended.back_mut() {
            last.waiting.push(who);
        }
    }

    /// The open append was accepted; `next` is the number of the one behind it.
    pub fn accept(
        &mut self,
        offsets: Range<Offset>,
        published: Option<Published>,
        next: CommitSeq,
    ) {
        self.appended.push_back(Appended {
            seq: std::mem::replace(&mut self.open, next),
            base: offsets.start,
            end: offsets.end,
            published,
            waiting: std::mem::take(&mut self.waiting),
        });
    }

    /// The open append was refused. It is not settled by that: what waits for its number must not leave before it was
    /// turned into a refusal, and nothing waits for the number afterwards.
    pub fn refuse(&mut self, next: CommitSeq) -> Vec<W> {
        self.open = next;
        std::mem::take(&mut self.waiting)
    }

    /// The number of the newest accepted append and its end, if it still waits.
    pub fn newest(&self) -> Option<(CommitSeq, Offset)> {
        self.appended.back().map(|last| (last.seq, last.end))
    }

    /// Whether [`Commits::settle`] would settle anything.
    pub fn is_settleable(&self, mark: Offset) -> bool {
        self.appended.front().is_some_and(|front| front.end <= mark)
    }

    /// Whether the next records to settle include QoS 2 publishes.
    pub fn settles_qos2(&self) -> bool {
        let front = self.appended.front().and_then(|front| front.published);
        front.is_some_and(|published| published.has_qos2)
    }

    /// Whether accepted records wait for the mark.
    pub fn waits(&self) -> bool {
        !self.appended.is_empty()
    }

    /// Whether anything waits, for the open append or for an accepted one.
    pub fn is_waited_for(&self) -> bool {
        self.waits() || !self.waiting.is_empty()
    }

    /// Every append with an offset below this one is settled; `mark` is the log's own mark.
    pub fn settled_below(&self, mark: Offset) -> Offset {
        let first = self.appended.front().map(|appended| appended.base);
        first.map_or(mark, |base| base.min(mark))
    }

    /// Settles the appends below `mark` and adds who waited for them to `waiting`; `durations` gets how long the
    /// publishes took. Returns whether there were any.
    pub fn settle(&mut self, mark: Offset, waiting: &mut Vec<W>, durations: &Durations) -> bool {
        let before = self.settled;
        while self.is_settleable(mark)
            && let Some(front) = self.appended.pop_front()
        {
            self.settled = front.seq;
            if let Some(Published { count, since, .. }) = front.published {
                durations.observe_many(since.elapsed(), count);
            }
            waiting.extend(front.waiting);
        }
        self.settled > before
    }

    /// Lets everybody go who waits, and leaves the appends to be settled.
    pub fn release(&mut self) -> Vec<W> {
        let mut waiting = std::mem::take(&mut self.waiting);
        for appended in &mut self.appended {
            waiting.append(&mut appended.waiting);
        }
        waiting
    }

    /// The same when the partition has stopped for good: nothing more is settled.
    pub fn abandon(&mut self) -> Vec<W> {
        let waiting = self.release();
        self.appended.clear();
        waiting
    }

    /// Appends that are not durable yet.
    #[cfg(test)]
    pub fn unsettled(&self) -> usize {
        self.appended.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commits(ends: &[u64], published: Option<Published>) -> Commits<u8> {
        let mut commits = Commits::new(CommitSeq(1));
        for (next, end) in (2..).zip(ends) {
            commits.accept(Offset(end - 1)..Offset(*end), published, CommitSeq(next));
        }
        commits
    }

    #[test]
    fn a_commit_is_durable_with_the_last_record_that_was_written_in_it_and_no_other_before_its_own()
    {
        let mut commits = commits(&[10, 12, 12, 20], None);
        let durations = Durations::default();
        let cases = [
            (0, 0),
            (9, 0),
            (10, 1),
            (11, 1),
            (12, 3),
            (19, 3),
            (20, 4),
            (21, 4),
        ];
        for (mark, settled) in cases {
            let before = commits.settled();
            let mark = Offset(mark);
            let moves = CommitSeq(settled) > before;
            assert_eq!(commits.is_settleable(mark), moves, "{mark}");
            let moved = commits.settle(mark, &mut Vec::new(), &durations);
            assert_eq!(moved, moves, "{mark}");
            assert_eq!(commits.settled(), CommitSeq(settled), "{mark}");
            assert!(!commits.is_settleable(mark), "{mark}: that is done");
        }
        assert_eq!(commits.unsettled(), 0);
        assert_eq!(durations.count(), 0, "no client published anything");
    }

    #[test]
    fn every_publish_of_an_append_counts_once_when_it_is_settled() {
        let published = Published {
            count: 5,
            since: Instant::now(),
            has_qos2: false,
        };
        let mut commits = commits(&[10, 12], Some(published));
        let durations = Durations::default();
        for (mark, count) in [(9, 0), (10, 5), (99, 10), (99, 10)] {
            commits.settle(Offset(mark), &mut Vec::new(), &durations);
            assert_eq!(durations.count(), count, "{mark}");
        }
    }
}
