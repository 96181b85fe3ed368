//! A value that most owners do not use: it takes one word while it is blank.
//!
//! Reading gives a blank value; the first change allocates one. So only connections and sessions that use a rare part
//! of the protocol pay for it.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

/// A value with an empty state.
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
pub struct LazyBox<T>(Option<Box<T>>);

impl<T> Default for LazyBox<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Blank> LazyBox<T> {
    /// The value to change, if it is allocated; a blank value needs no change.
    #[inline]
    pub fn present_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// Takes the value and leaves it blank.
    #[inline]
    pub fn take(&mut self) -> T {
        self.0.take().map_or_else(T::default, |value| *value)
    }

    /// Frees the allocation if the value is blank again.
    pub fn trim(&mut self) {
        if self.0.as_ref().is_some_and(|value| value.is_blank()) {
            self.0 = None;
        }
    }
}

impl<T: Blank> From<T> for LazyBox<T> {
    fn from(value: T) -> Self {
        Self((!value.is_blank()).then(|| Box::new(value)))
    }
}

impl<T: Blank> Deref for LazyBox<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::BLANK)
    }
}

impl<T: Blank> DerefMut for LazyBox<T> {
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
        let mut lazy: LazyBox<Vec<u64>> = LazyBox::default();
        assert_eq!(size_of_val(&lazy), size_of::<usize>());
        assert!(lazy.is_empty() && lazy.0.is_none(), "reading makes no room");
        lazy.push(7);
        assert_eq!(*lazy, [7]);
        lazy.trim();
        assert_eq!(lazy.len(), 1);
        lazy.clear();
        lazy.trim();
        assert!(lazy.0.is_none());
        assert!(LazyBox::from(Vec::<u64>::new()).0.is_none());
    }
}
