//! Where a follower must cut so that its log is a prefix of its leader's (R3).
//!
//! Each replica keeps at which offset each epoch began. The largest epoch that both have was written by one leader, so
//! both have a prefix of its batches; behind the shorter one they may differ.

use crate::marks::{Epoch, Offset};

/// Epochs of a partition and their first offsets, both strictly growing: the newest [`History::LENGTH_MAX`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct History(Vec<(Epoch, Offset)>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    #[error("the history names epoch {0} at offset {1} out of order")]
    Order(Epoch, Offset),
    #[error("the history names {found} epochs; at most {max} are kept", max = History::LENGTH_MAX)]
    Length { found: usize },
}

impl History {
    pub const LENGTH_MAX: usize = 128;

    /// # Errors
    /// Entries that do not grow, or too many.
    pub fn new(entries: Vec<(Epoch, Offset)>) -> Result<Self, HistoryError> {
        if entries.len() > Self::LENGTH_MAX {
            return Err(HistoryError::Length {
                found: entries.len(),
            });
        }
        match entries
            .windows(2)
            .find(|two| two[0].0 >= two[1].0 || two[0].1 >= two[1].1)
        {
            Some(two) => Err(HistoryError::Order(two[1].0, two[1].1)),
            None => Ok(Self(entries)),
        }
    }

    #[must_use]
    pub fn entries(&self) -> &[(Epoch, Offset)] {
        &self.0
    }

    /// Epoch of the last batch.
    #[must_use]
    pub fn last(&self) -> Option<Epoch> {
        self.0.last().map(|entry| entry.0)
    }

    /// A batch of this epoch was appended at this offset.
    ///
    /// # Errors
    /// An epoch below the last, or a new one at an offset that is not above that of the last.
    pub fn appended(&mut self, epoch: Epoch, at: Offset) -> Result<(), HistoryError> {
        match self.0.last() {
            Some((last, _)) if *last == epoch => return Ok(()),
            Some((last, first)) if *last > epoch || *first >= at => {
                return Err(HistoryError::Order(epoch, at));
            }
            _ => {}
        }
        if self.0.len() == Self::LENGTH_MAX {
            self.0.remove(0);
        }
        self.0.push((epoch, at));
        Ok(())
    }

    /// Everything from `to` on was removed.
    pub fn cut(&mut self, to: Offset) {
        self.0.retain(|(_, first)| *first < to);
    }

    /// Everything was removed.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    fn end_of(&self, epoch: Epoch, end: Offset) -> Option<Offset> {
        let at = self.0.iter().position(|entry| entry.0 == epoch)?;
        Some(self.0.get(at + 1).map_or(end, |next| next.1))
    }
}

/// What one replica has of a partition.
#[derive(Debug, Clone, Copy)]
pub struct Held<'a> {
    pub history: &'a History,
    pub log_start: Offset,
    pub end: Offset,
}

/// What a follower does before its first batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cut {
    /// Keep what is below, remove the rest.
    To(Offset),
    /// Remove everything; the next batch begins here.
    Restart(Offset),
    /// The follower dropped, as committed, offsets that this leader does not have. It stops and raises an alarm.
    Impossible,
}

/// The cut of a follower against its leader.
#[must_use]
pub fn cut(follower: Held<'_>, leader: Held<'_>) -> Cut {
    let common = follower
        .history
        .entries()
        .iter()
        .rev()
        .find_map(|(epoch, _)| {
            let ours = follower.history.end_of(*epoch, follower.end)?;
            let theirs = leader.history.end_of(*epoch, leader.end)?;
            Some(ours.min(theirs))
        });
    match common {
        Some(to) if to >= leader.log_start && to >= follower.log_start => Cut::To(to),
        _ => {
            let begin = follower.log_start.max(leader.log_start);
            if begin > leader.end {
                Cut::Impossible
            } else {
                Cut::Restart(begin)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn history(entries: &[(u64, u64)]) -> History {
        History::new(
            entries
                .iter()
                .map(|(e, o)| (Epoch(*e), Offset(*o)))
                .collect(),
        )
        .expect("in order")
    }

    fn of(follower: (&[(u64, u64)], u64, u64), leader: (&[(u64, u64)], u64, u64)) -> Cut {
        let (ours, theirs) = (history(follower.0), history(leader.0));
        let held = |history, log_start, end| Held {
            history,
            log_start: Offset(log_start),
            end: Offset(end),
        };
        cut(
            held(&ours, follower.1, follower.2),
            held(&theirs, leader.1, leader.2),
        )
    }

    #[test]
    fn the_cut_is_the_shorter_end_of_the_largest_common_epoch() {
        assert_eq!(
            of((&[(1, 0)], 0, 7), (&[(1, 0), (2, 5)], 0, 9)),
            Cut::To(Offset(5))
        );
        assert_eq!(
            of((&[(1, 0)], 0, 3), (&[(1, 0), (2, 5)], 0, 9)),
            Cut::To(Offset(3))
        );
        assert_eq!(
            of((&[(1, 0), (2, 4)], 0, 6), (&[(1, 0), (3, 5)], 0, 9)),
            Cut::To(Offset(4))
        );
    }

    #[test]
    fn without_a_common_epoch_everything_goes() {
        assert_eq!(of((&[], 0, 0), (&[(1, 0)], 0, 9)), Cut::Restart(Offset(0)));
        assert_eq!(
            of((&[(2, 0)], 0, 4), (&[(1, 0), (3, 2)], 0, 9)),
            Cut::Restart(Offset(0))
        );
        assert_eq!(
            of((&[(2, 6)], 6, 8), (&[(3, 4)], 4, 9)),
            Cut::Restart(Offset(6))
        );
        assert_eq!(of((&[(2, 6)], 6, 8), (&[(3, 4)], 4, 5)), Cut::Impossible);
    }

    #[test]
    fn an_end_below_the_leaders_log_start_begins_there() {
        assert_eq!(
            of((&[(1, 0)], 0, 3), (&[(1, 4), (2, 6)], 4, 9)),
            Cut::Restart(Offset(4))
        );
        assert_eq!(
            of((&[(1, 0)], 0, 4), (&[(1, 4), (2, 6)], 4, 9)),
            Cut::To(Offset(4))
        );
    }

    #[test]
    fn a_history_refuses_disorder_and_keeps_the_newest() {
        assert!(History::new(vec![(Epoch(2), Offset(0)), (Epoch(1), Offset(3))]).is_err());
        assert!(History::new(vec![(Epoch(1), Offset(3)), (Epoch(2), Offset(3))]).is_err());
        let mut long = History::default();
        for n in 0..200 {
            long.appended(Epoch(n), Offset(n * 2)).expect("in order");
        }
        assert_eq!(long.entries().len(), History::LENGTH_MAX);
        assert_eq!(long.last(), Some(Epoch(199)));
        assert!(long.appended(Epoch(198), Offset(1000)).is_err());
        long.cut(Offset(398));
        assert_eq!(long.last(), Some(Epoch(198)));
    }

    /// Three logs of epochs per record, made as leaders and followers make them: a new leader has a prefix of some log,
    /// and appends in a new epoch.
    fn grow(steps: &[(u8, u8, u8)]) -> Vec<Vec<u64>> {
        let mut logs = vec![Vec::new(); 3];
        for (epoch, (leader, appends, took)) in steps.iter().enumerate() {
            let leader = usize::from(leader % 3);
            for _ in 0..appends % 4 {
                logs[leader].push(epoch as u64 + 1);
            }
            let follower = (leader + 1 + usize::from(took % 2)) % 3;
            let to = align(&logs[follower], &logs[leader]);
            logs[follower].truncate(to);
            let more = usize::from(took / 2 % 4).min(logs[leader].len() - to);
            let taken = logs[leader][to..to + more].to_vec();
            logs[follower].extend(taken);
        }
        logs
    }

    fn align(follower: &[u64], leader: &[u64]) -> usize {
        let list = |log: &[u64]| {
            let mut list = History::default();
            for (at, epoch) in log.iter().enumerate() {
                list.appended(Epoch(*epoch), Offset(at as u64))
                    .expect("in order");
            }
            list
        };
        let (ours, theirs) = (list(follower), list(leader));
        let held = |history, log: &[u64]| Held {
            history,
            log_start: Offset(0),
            end: Offset(log.len() as u64),
        };
        match cut(held(&ours, follower), held(&theirs, leader)) {
            Cut::To(to) | Cut::Restart(to) => to.0 as usize,
            Cut::Impossible => panic!("nothing was dropped"),
        }
    }

    proptest! {
        #[test]
        fn after_the_cut_the_follower_has_a_prefix(steps in proptest::collection::vec(any::<(u8, u8, u8)>(), 1..30)) {
            let logs = grow(&steps);
            for follower in &logs {
                for leader in &logs {
                    let to = align(follower, leader);
                    prop_assert!(to <= leader.len() && to <= follower.len());
                    prop_assert_eq!(&follower[..to], &leader[..to]);
                }
            }
        }
    }
}
