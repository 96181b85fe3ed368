//! How fast each consumer group goes on: what it has read in the last minutes as a share of what its partition has grown
//! by, to tell whether it keeps up.
//!
//! Groups commit in steps, so moments of a minute and more are compared. A group that was moved (`reset_group`), or removed
//! and made anew, starts anew here too.

use std::collections::HashMap;
use std::time::Duration;

use super::marks::{EVERY, Marks};

/// Five minutes: a group that stands still is known as such after that time.
const MARKS: usize = 5;

/// A group's place in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where the group began. It changes only when the group is moved or made anew.
    pub initial: Option<u64>,
    /// How far it has looked.
    pub reached: u64,
    /// The high watermark of the partition.
    pub end: u64,
}

/// The places of a group, in the order of the numbers of the partitions.
pub type Places = Vec<(u32, Place)>;

/// Places of all groups at some moments.
pub struct Paces(Marks<HashMap<String, Places>>);

impl Default for Paces {
    fn default() -> Self {
        Self(Marks::new(MARKS))
    }
}

impl Paces {
    /// Makes a mark if it is time for one. `now`: time since the start.
    pub fn note(&mut self, now: Duration, places: impl FnOnce() -> Vec<(String, Places)>) {
        self.0.note(now, || places().into_iter().collect());
    }

    /// What the group has read of what was appended: 1 where it keeps up, 0 where it stands still, more than 1 where it
    /// catches up. None before it has been seen for a minute.
    pub fn of(&self, now: Duration, group: &str, number: u32, place: Place) -> Option<f64> {
        let mut since: Option<(Duration, Place)> = None;
        for (age, groups) in self.0.newest_first(now) {
            let places = groups.get(group);
            let before = places.and_then(|places| {
                let at = places.binary_search_by_key(&number, |(of, _)| *of);
                Some(&places[at.ok()?])
            });
            let later = since.map_or(place, |(_, later)| later);
            match before {
                Some((_, before))
                    if before.initial == place.initial && before.reached <= later.reached =>
                {
                    since = Some((age, *before));
                }
                _ => break,
            }
        }
        let (_, before) = since.filter(|(age, _)| *age >= EVERY)?;
        let read = (place.reached - before.reached) as f64;
        let appended = place.end.saturating_sub(before.end) as f64;
        Some(if appended > 0.0 {
            read / appended
        } else {
            f64::from(u8::from(read > 0.0))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: u64) -> Duration {
        Duration::from_secs(60 * minutes)
    }

    fn place(initial: u64, reached: u64, end: u64) -> Place {
        Place {
            initial: Some(initial),
            reached,
            end,
        }
    }

    /// A mark each minute of one group in partition 3, and its pace a minute after the last.
    fn pace(marks: &[Option<Place>], now: Place) -> Option<f64> {
        let mut paces = Paces::default();
        for (minute, mark) in (0..).zip(marks) {
            let groups = mark.map(|place| ("g".to_owned(), vec![(3, place)]));
            paces.note(at(minute), || groups.into_iter().collect());
        }
        let pace = |group, number| paces.of(at(marks.len() as u64), group, number, now);
        assert_eq!((pace("other", 3), pace("g", 4)), (None, None));
        pace("g", 3)
    }

    #[test]
    fn a_pace_is_the_share_that_was_read_of_what_was_appended() {
        let mark = Some(place(0, 100, 1_000));
        for (name, now, expected) in [
            ("stands still", place(0, 100, 2_000), 0.0),
            ("half as fast", place(0, 600, 2_000), 0.5),
            ("keeps up", place(0, 1_100, 2_000), 1.0),
            ("catches up", place(0, 2_000, 2_000), 1.9),
            ("nothing is appended, it reads", place(0, 200, 1_000), 1.0),
            ("nothing happens", place(0, 100, 1_000), 0.0),
        ] {
            assert_eq!(pace(&[mark], now), Some(expected), "{name}");
        }
    }

    #[test]
    fn a_group_that_has_stopped_stands_still_when_its_last_step_is_five_minutes_old() {
        let minutes = |still: u64| -> Vec<_> {
            let moving = (0..6).map(|minute| minute * 100);
            let places = moving.chain((0..still).map(|_| 600));
            let with_end = places.zip(0..).map(|(at, minute)| (at, minute * 100));
            with_end.map(|(at, end)| Some(place(0, at, end))).collect()
        };
        let now = |still: u64| place(0, 600, (6 + still) * 100);
        assert_eq!(pace(&minutes(0), now(0)), Some(1.0));
        assert_eq!(pace(&minutes(2), now(2)), Some(0.6));
        assert_eq!(pace(&minutes(5), now(5)), Some(0.0));
    }

    #[test]
    fn a_group_that_is_new_or_was_moved_has_no_pace_for_a_minute() {
        let old = Some(place(0, 900, 1_000));
        assert_eq!(pace(&[], place(0, 900, 1_000)), None);
        assert_eq!(pace(&[None], place(0, 900, 1_000)), None);
        assert_eq!(pace(&[old], place(100, 100, 1_100)), None, "moved back");
        assert_eq!(pace(&[old], place(950, 950, 1_100)), None, "moved on");
        assert_eq!(pace(&[old], place(0, 100, 1_100)), None, "commits less");
        // What was seen since then counts.
        let moved = Some(place(100, 100, 1_000));
        assert_eq!(pace(&[old, moved], place(100, 200, 1_100)), Some(1.0));
    }
}
