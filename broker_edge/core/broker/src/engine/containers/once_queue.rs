//! Keys of values in a slab, each at most once. The slot of a value remembers whether its key is listed, so a value
//! needs no flag for it, and what removes a value need not search the list.

use std::collections::VecDeque;

use super::slab::{Key, Marks, Slab};

/// `MARK` is the bit of the slot; each list of a slab has its own.
#[derive(Debug)]
pub struct OnceQueue<T, const MARK: u8> {
    keys: VecDeque<Key<T>>,
}

impl<T, const MARK: u8> Default for OnceQueue<T, MARK> {
    fn default() -> Self {
        Self {
            keys: VecDeque::new(),
        }
    }
}

impl<T, const MARK: u8> OnceQueue<T, MARK> {
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Adds a key, given the marks of its slot. Returns whether it is new.
    #[inline]
    pub fn push(&mut self, key: Key<T>, marks: &mut Marks) -> bool {
        let is_new = marks.set(MARK);
        if is_new {
            self.keys.push_back(key);
        }
        is_new
    }

    /// Takes the first key that still has a value.
    pub fn pop(&mut self, slab: &mut Slab<T>) -> Option<Key<T>> {
        loop {
            let key = self.keys.pop_front()?;
            if let Some((_, marks)) = slab.get_marked(key) {
                marks.clear(MARK);
                return Some(key);
            }
        }
    }

    /// Drops the keys that are no longer wanted, and those without a value.
    pub fn retain(&mut self, slab: &mut Slab<T>, mut is_wanted: impl FnMut(&mut T) -> bool) {
        self.keys.retain(|key| {
            let Some((value, marks)) = slab.get_marked(*key) else {
                return false;
            };
            let stays = is_wanted(value);
            if !stays {
                marks.clear(MARK);
            }
            stays
        });
    }

    /// Takes all keys. Each counts as listed until its caller takes it up: [`OnceQueue::take_up`].
    pub fn take(&mut self) -> Vec<Key<T>> {
        std::mem::take(&mut self.keys).into()
    }

    /// Puts keys that [`OnceQueue::take`] returned back in front, or only their memory.
    pub fn put_back(&mut self, mut keys: Vec<Key<T>>) {
        keys.extend(self.keys.drain(..));
        self.keys = keys.into();
    }

    /// The value of a key that [`OnceQueue::take`] returned; the key may be listed again.
    pub fn take_up<'a>(&self, key: Key<T>, slab: &'a mut Slab<T>) -> Option<&'a mut T> {
        let (value, marks) = slab.get_marked(key)?;
        marks.clear(MARK);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Queue = OnceQueue<&'static str, 3>;

    #[test]
    fn a_key_is_listed_once_and_again_after_it_was_taken() {
        let (mut slab, mut queue) = (Slab::default(), Queue::default());
        let keys = ["a", "b"].map(|name| slab.insert(name));
        for (key, is_new) in [(keys[0], true), (keys[1], true), (keys[0], false)] {
            let (_, marks) = slab.get_marked(key).expect("it is there");
            assert_eq!(queue.push(key, marks), is_new);
        }
        assert_eq!(queue.pop(&mut slab), Some(keys[0]));
        let (_, marks) = slab.get_marked(keys[0]).expect("it is there");
        assert!(queue.push(keys[0], marks));
        queue.retain(&mut slab, |name| *name != "b");
        let (_, marks) = slab.get_marked(keys[1]).expect("it is there");
        assert!(queue.push(keys[1], marks));
        let taken = queue.take();
        assert_eq!(taken, keys);
        let (_, marks) = slab.get_marked(keys[0]).expect("it is there");
        assert!(!queue.push(keys[0], marks), "nobody has taken it up");
        assert_eq!(queue.take_up(keys[0], &mut slab), Some(&mut "a"));
        let (_, marks) = slab.get_marked(keys[0]).expect("it is there");
        assert!(queue.push(keys[0], marks));
        queue.put_back(vec![keys[1]]);
        assert_eq!(queue.take(), [keys[1], keys[0]]);
    }

    #[test]
    fn a_removed_value_leaves_no_mark_to_the_next_one_in_its_slot() {
        let (mut slab, mut queue) = (Slab::default(), Queue::default());
        let old = slab.insert("a");
        let (_, marks) = slab.get_marked(old).expect("it is there");
        queue.push(old, marks);
        slab.remove(old);
        let new = slab.insert("b");
        let (_, marks) = slab.get_marked(new).expect("it is there");
        assert!(queue.push(new, marks));
        assert_eq!(queue.len(), 2);
        assert_eq!(queue.pop(&mut slab), Some(new), "the old key is stale");
        assert_eq!(queue.pop(&mut slab), None);
    }
}
