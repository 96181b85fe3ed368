//! A set that usually has one member, which is stored inline without an allocation.

use std::slice;

#[derive(Debug, Clone, Default)]
pub enum InlineVec<T> {
    #[default]
    None,
    One(T),
    /// More than one member, now or earlier.
    // One word, where the vector itself would take three: every owner holds this enum.
    #[expect(clippy::box_collection)]
    Many(Box<Vec<T>>),
}

impl<T> InlineVec<T> {
    pub fn len(&self) -> usize {
        self.iter().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn iter(&self) -> slice::Iter<'_, T> {
        match self {
            Self::None => [].iter(),
            Self::One(one) => slice::from_ref(one).iter(),
            Self::Many(many) => many.iter(),
        }
    }

    pub fn iter_mut(&mut self) -> slice::IterMut<'_, T> {
        match self {
            Self::None => [].iter_mut(),
            Self::One(one) => slice::from_mut(one).iter_mut(),
            Self::Many(many) => many.iter_mut(),
        }
    }

    pub fn push(&mut self, member: T) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(member),
            Self::One(first) => Self::Many(Box::new(vec![first, member])),
            Self::Many(mut many) => {
                many.push(member);
                Self::Many(many)
            }
        };
    }

    /// Keeps the members for which `keeps` is true, in their order.
    pub fn retain(&mut self, keeps: impl Fn(&T) -> bool) {
        match self {
            Self::None => {}
            Self::One(one) if keeps(one) => {}
            Self::One(_) => *self = Self::None,
            Self::Many(many) => many.retain(keeps),
        }
    }

    /// Removes the member at an index; the last member takes its index.
    pub fn swap_remove(&mut self, index: usize) {
        match self {
            Self::Many(many) if many.len() > 1 => {
                many.swap_remove(index);
            }
            _ => *self = Self::None,
        }
    }
}

impl<'a, T> IntoIterator for &'a InlineVec<T> {
    type Item = &'a T;
    type IntoIter = slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T> FromIterator<T> for InlineVec<T> {
    fn from_iter<I: IntoIterator<Item = T>>(members: I) -> Self {
        let mut vec = Self::default();
        members.into_iter().for_each(|member| vec.push(member));
        vec
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::routing::router::Subscriber;

    #[test]
    fn members_come_and_go_and_a_single_one_takes_no_room_of_its_own() {
        let mut vec = InlineVec::default();
        assert!(vec.is_empty());
        for n in 0..4 {
            vec.push(n);
        }
        vec.iter_mut().for_each(|n| *n *= 10);
        vec.swap_remove(1);
        let mut left: Vec<i32> = vec.iter().copied().collect();
        left.sort_unstable();
        assert_eq!(left, [0, 20, 30]);
        for n in left {
            let index = vec.iter().position(|held| *held == n);
            vec.swap_remove(index.expect("it is there"));
        }
        assert!(vec.is_empty());
        vec = [1, 2, 3, 4].into_iter().collect();
        vec.retain(|n| n % 2 == 0);
        assert_eq!((vec.len(), vec.iter().sum::<i32>()), (2, 6));
        vec.retain(|_| false);
        assert!(vec.is_empty());
        assert_eq!(size_of::<InlineVec<Subscriber>>(), size_of::<Subscriber>());
    }
}
