//! What was seen at some moments, a minute apart. What changed since then is a rate only after a whole minute: in the
//! first seconds after a start, clients send what they have kept.

use std::collections::VecDeque;
use std::time::Duration;

/// How often a mark is made, and the least time between two moments that are compared.
pub const EVERY: Duration = Duration::from_secs(60);

/// The newest last.
pub struct Marks<T> {
    marks: VecDeque<(Duration, T)>,
    most: usize,
}

impl<T> Marks<T> {
    pub fn new(most: usize) -> Self {
        Self {
            marks: VecDeque::new(),
            most,
        }
    }

    /// Makes a mark if it is time for one. `now`: time since the start.
    pub fn note(&mut self, now: Duration, see: impl FnOnce() -> T) {
        let newest = self.marks.back();
        if newest.is_some_and(|(at, _)| now.saturating_sub(*at) < EVERY) {
            return;
        }
        if self.marks.len() == self.most {
            self.marks.pop_front();
        }
        self.marks.push_back((now, see()));
    }

    /// The marks with their age, the newest first.
    pub fn newest_first(&self, now: Duration) -> impl Iterator<Item = (Duration, &T)> {
        let marks = self.marks.iter().rev();
        marks.map(move |(at, seen)| (now.saturating_sub(*at), seen))
    }

    /// The oldest mark with its age, once that is a minute.
    pub fn oldest(&self, now: Duration) -> Option<(Duration, &T)> {
        let (at, seen) = self.marks.front()?;
        let age = now.saturating_sub(*at);
        (age >= EVERY).then_some((age, seen))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn marks_are_a_minute_apart_and_the_oldest_make_room() {
        let mut marks = Marks::new(3);
        for second in 0..=270 {
            marks.note(at(second), || second);
        }
        let found: Vec<_> = marks.newest_first(at(270)).collect();
        assert_eq!(found, [(at(30), &240), (at(90), &180), (at(150), &120)]);
    }

    #[test]
    fn nothing_is_compared_before_a_minute_is_over() {
        let mut marks = Marks::new(3);
        assert_eq!(marks.oldest(at(0)), None);
        marks.note(at(1), || 'a');
        assert_eq!(marks.oldest(at(60)), None);
        assert_eq!(marks.oldest(at(61)), Some((at(60), &'a')));
    }
}
