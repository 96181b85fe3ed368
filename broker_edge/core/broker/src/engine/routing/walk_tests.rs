//! Walks that stop and go on while filters come and go.

use proptest::prelude::*;

use crate::engine::routing::entries::Entry;
use crate::engine::routing::index::Index;

#[derive(Debug, Clone, Copy)]
struct One(u64);

impl Entry for One {
    fn number(&self) -> u64 {
        self.0
    }
}

fn level() -> impl Strategy<Value = &'static str> {
    prop_oneof![3 => Just("a"), 1 => Just("b"), 3 => Just("+"), 1 => Just("$c"), 1 => Just("")]
}

fn filter() -> impl Strategy<Value = String> {
    (prop::collection::vec(level(), 1..6), any::<bool>()).prop_map(|(mut levels, has_rest)| {
        if has_rest {
            levels.push("#");
        }
        levels.join("/")
    })
}

fn topic() -> impl Strategy<Value = String> {
    let level = prop_oneof![4 => Just("a"), 1 => Just("b"), 1 => Just("$c"), 1 => Just("")];
    prop::collection::vec(level, 1..7).prop_map(|levels| levels.join("/"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_walk_in_parts_finds_once_what_was_there_all_the_time(
        stable in prop::collection::vec(filter(), 1..24),
        passing in prop::collection::vec(filter(), 1..12),
        turns in prop::collection::vec((1u32..5, any::<prop::sample::Index>()), 1..40),
        topic in topic(),
    ) {
        let mut index = Index::default();
        let filters: Vec<&String> = stable.iter().chain(&passing).collect();
        for (filter, number) in stable.iter().zip(0..) {
            index.entries_of(filter).insert(One(number));
        }
        let mut is_there = vec![false; passing.len()];
        let mut found = vec![0; filters.len()];
        let mut place = None;
        for (work_max, other) in turns.iter().cycle() {
            let (work, next) = index.match_from(&topic, place.as_ref(), *work_max, &mut |entries| {
                entries.iter().for_each(|one| found[one.0 as usize] += 1);
                0
            });
            // Edges that do not match count as well, and no more than two at each level are tried before a walk stops.
            prop_assert!(work <= work_max + 14, "{work} for at most {work_max}");
            place = next;
            if place.is_none() {
                break;
            }
            let at = other.index(passing.len());
            let number = (stable.len() + at) as u64;
            is_there[at] = !is_there[at];
            if is_there[at] {
                index.entries_of(&passing[at]).insert(One(number));
            } else {
                prop_assert!(index.remove(&passing[at], |entries| entries.remove(number)));
            }
        }
        for (number, filter) in filters.iter().enumerate() {
            let is_match = headwater_mqtt::filter_matches(filter, &topic);
            if number < stable.len() {
                prop_assert_eq!(found[number], u32::from(is_match), "{} on {}", filter, topic);
            } else {
                prop_assert!(found[number] <= u32::from(is_match), "{} on {}", filter, topic);
            }
        }
    }
}
