//! A value that most owners do not have: one word while it is blank.
//!
//! Reading sees a blank value; the first change makes room for one. So connections and sessions that use a part of the
//! protocol that few use pay for it, and the others do not.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

/// A value with a state that says nothing.
pub trait Blank: Default + 'static {
    const BLANK: &'static Self;

    fn is_blank(&self) -> bool;
}

impl<T: 'static> Blank for Vec<T> {
    const BLANK: &'static Self = &Self::new();

    fn is_blank(&self) -> bool {
        self.is_empty()
    }
}

impl<T: 'static> Blank for VecDeque<T> {
    const BLANK: &'static Self = &Self::new();

    fn is_blank(&self) -> bool {
        self.is_empty()
    }
}

#[derive(Debug, Clone)]
pub struct Seldom<T>(Option<Box<T>>);

impl<T> Default for Seldom<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Blank> Seldom<T> {
    /// The value to change, where there is one: nothing is to be done with a blank one.
    #[inline]
    pub fn present_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// The value, which is blank afterwards.
    #[inline]
    pub fn take(&mut self) -> T {
        self.0.take().map_or_else(T::default, |value| *value)
    }

    /// Gives the room back when the value is blank again.
    pub fn trim(&mut self) {
        if self.0.as_ref().is_some_and(|value| value.is_blank()) {
            self.0 = None;
        }
    }
}

impl<T: Blank> From<T> for Seldom<T> {
    fn from(value: T) -> Self {
        Self((!value.is_blank()).then(|| Box::new(value)))
    }
}

impl<T: Blank> Deref for Seldom<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::BLANK)
    }
}

impl<T: Blank> DerefMut for Seldom<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_one_word_reads_as_blank_and_gives_its_room_back() {
        let mut seldom: Seldom<Vec<u64>> = Seldom::default();
        assert_eq!(size_of_val(&seldom), size_of::<usize>());
        assert!(
            seldom.is_empty() && seldom.0.is_none(),
            "reading makes no room"
        );
        seldom.push(7);
        assert_eq!(*seldom, [7]);
        seldom.trim();
        assert_eq!(seldom.len(), 1);
        seldom.clear();
        seldom.trim();
        assert!(seldom.0.is_none());
        assert!(Seldom::from(Vec::<u64>::new()).0.is_none());
    }
}
