//! The entries of one filter. Most filters have one entry, some have very many: the cost of adding, finding and
//! removing an entry does not depend on their number.
//!
//! Disconnected sessions are counted and not listed: nothing is delivered to them, so however many exist, they must not
//! make a topic more expensive.

use rustc_hash::FxHashMap;

use crate::engine::containers::inline_vec::InlineVec;

/// With more entries, their indexes are kept in a map.
const SEARCHED_MAX: usize = 32;

/// What a filter leads to.
pub trait Entry: Copy {
    /// Identifies an entry: a new one replaces the one with the same number.
    fn number(&self) -> u64;
}

#[derive(Debug)]
pub struct Entries<E> {
    listed: InlineVec<E>,
    /// The index of each entry in the list, once there are many.
    indexes: Option<Box<FxHashMap<u64, u32>>>,
    away: u32,
}

impl<E> Default for Entries<E> {
    fn default() -> Self {
        Self {
            listed: InlineVec::None,
            indexes: None,
            away: 0,
        }
    }
}

impl<E> Entries<E> {
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty() && self.away == 0
    }

    pub fn has_away(&self) -> bool {
        self.away > 0
    }

    pub fn add_away(&mut self) {
        self.away += 1;
    }

    /// Returns whether there was one.
    pub fn remove_away(&mut self) -> bool {
        let is_there = self.away > 0;
        self.away -= u32::from(is_there);
        is_there
    }
}

impl<E: Entry> Entries<E> {
    pub fn iter(&self) -> std::slice::Iter<'_, E> {
        self.listed.iter()
    }

    fn index_of(&self, number: u64) -> Option<usize> {
        match &self.indexes {
            Some(indexes) => indexes.get(&number).map(|index| *index as usize),
            None => self.iter().position(|entry| entry.number() == number),
        }
    }

    /// Adds an entry, or replaces the one with its number. Returns whether it was added.
    pub fn insert(&mut self, entry: E) -> bool {
        if let Some(index) = self.index_of(entry.number()) {
            if let Some(old) = self.listed.iter_mut().nth(index) {
                *old = entry;
            }
            return false;
        }
        let index = self.listed.len() as u32;
        if let Some(indexes) = &mut self.indexes {
            indexes.insert(entry.number(), index);
        }
        self.listed.push(entry);
        if self.indexes.is_none() && self.listed.len() > SEARCHED_MAX {
            let numbers = self.listed.iter().map(Entry::number);
            self.indexes = Some(Box::new(numbers.zip(0..).collect()));
        }
        true
    }

    /// Returns whether it was there.
    pub fn remove(&mut self, number: u64) -> bool {
        let Some(index) = self.index_of(number) else {
            return false;
        };
        self.listed.swap_remove(index);
        if let Some(indexes) = &mut self.indexes {
            indexes.remove(&number);
            if let Some(moved) = self.listed.iter().nth(index) {
                indexes.insert(moved.number(), index as u32);
            }
            if self.listed.len() <= SEARCHED_MAX / 2 {
                self.indexes = None;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Debug, Clone, Copy, PartialEq)]
    struct One(u64, u8);

    impl Entry for One {
        fn number(&self) -> u64 {
            self.0
        }
    }

    proptest! {
        #[test]
        fn each_number_is_there_once_however_many_there_are(
            steps in prop::collection::vec((0u8..5, 0u64..60, any::<u8>()), 0..400),
        ) {
            let mut entries = Entries::default();
            let mut model = BTreeMap::new();
            for (act, number, value) in steps {
                if act < 3 {
                    let is_new = model.insert(number, value).is_none();
                    prop_assert_eq!(entries.insert(One(number, value)), is_new);
                } else {
                    prop_assert_eq!(entries.remove(number), model.remove(&number).is_some());
                }
                let mut held: Vec<(u64, u8)> = entries.iter().map(|one| (one.0, one.1)).collect();
                held.sort_unstable();
                prop_assert_eq!(held, model.iter().map(|(n, v)| (*n, *v)).collect::<Vec<_>>());
                prop_assert_eq!(entries.is_empty(), model.is_empty());
            }
        }
    }

    #[test]
    fn those_that_are_away_are_counted_and_not_listed() {
        let mut entries = Entries::<One>::default();
        assert!(entries.is_empty() && !entries.remove_away());
        entries.add_away();
        entries.add_away();
        assert!(entries.has_away() && !entries.is_empty() && entries.iter().next().is_none());
        assert!(entries.remove_away() && entries.remove_away() && !entries.remove_away());
        assert!(entries.is_empty() && !entries.has_away());
    }
}
