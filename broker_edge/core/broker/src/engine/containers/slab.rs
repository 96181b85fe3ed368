//! Slots for connections and sessions. Their keys become stale when the slot is reused.
//!
//! Not a general container: it does not iterate in insertion order and never shrinks.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::num::NonZeroU32;

/// Which of the values of its slot a key means. Never zero, so that an optional key is as small as a key.
pub type Generation = NonZeroU32;

/// The address of a value. A key whose value was removed finds nothing, even after the slot is reused.
pub struct Key<T> {
    index: u32,
    generation: Generation,
    of: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
    /// Finds nothing: there are never that many slots.
    pub const NONE: Self = Self {
        index: u32::MAX,
        generation: Generation::MAX,
        of: PhantomData,
    };

    /// The slot's number, for tables next to the slab.
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// Tells the key from earlier and later ones of the same slot.
    pub fn generation(self) -> Generation {
        self.generation
    }

    /// The key as one number and back, for tokens of the poll.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation.get() - 1) << 32 | u64::from(self.index)
    }

    pub fn from_bits(bits: u64) -> Self {
        Self {
            index: bits as u32,
            generation: Generation::MIN.saturating_add((bits >> 32) as u32),
            of: PhantomData,
        }
    }
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Key<T> {}
impl<T> PartialEq for Key<T> {
    fn eq(&self, other: &Self) -> bool {
        self.to_bits() == other.to_bits()
    }
}
impl<T> Eq for Key<T> {}
impl<T> PartialOrd for Key<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Key<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.to_bits().cmp(&other.to_bits())
    }
}
impl<T> Hash for Key<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.to_bits().hash(state);
    }
}
impl<T> fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}v{}", self.index, self.generation)
    }
}

/// Bits that say in which lists the key of a slot is; they fill bytes that the generation leaves unused.
#[derive(Debug, Default)]
pub struct Marks(u8);

impl Marks {
    /// Returns whether the bit was clear.
    #[inline]
    pub fn set(&mut self, bit: u8) -> bool {
        let was_clear = self.0 & 1 << bit == 0;
        self.0 |= 1 << bit;
        was_clear
    }

    #[inline]
    pub fn clear(&mut self, bit: u8) {
        self.0 &= !(1 << bit);
    }
}

struct Slot<T> {
    generation: Generation,
    marks: Marks,
    value: Option<T>,
}

/// Slots are allocated in blocks, so that growing copies nothing and wastes at most one block.
const BLOCK: usize = 128;

/// Values in reusable slots.
pub struct Slab<T> {
    blocks: Vec<Box<[Slot<T>]>>,
    /// Slots that were ever used.
    used: usize,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            blocks: Vec::new(),
            used: 0,
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    pub fn len(&self) -> usize {
        self.used - self.free.len()
    }

    #[inline]
    fn slot(&self, index: usize) -> Option<&Slot<T>> {
        self.blocks.get(index / BLOCK)?.get(index % BLOCK)
    }

    #[inline]
    fn slot_mut(&mut self, index: usize) -> Option<&mut Slot<T>> {
        self.blocks.get_mut(index / BLOCK)?.get_mut(index % BLOCK)
    }

    pub fn insert(&mut self, value: T) -> Key<T> {
        let index = self.free.pop().unwrap_or_else(|| {
            if self.used == self.blocks.len() * BLOCK {
                let empty = || Slot {
                    generation: Generation::MIN,
                    marks: Marks::default(),
                    value: None,
                };
                self.blocks
                    .push(std::iter::repeat_with(empty).take(BLOCK).collect());
            }
            self.used += 1;
            u32::try_from(self.used - 1).expect("connections are limited far below 2^32")
        });
        let slot = self
            .slot_mut(index as usize)
            .expect("its block was just made, or it was used before");
        slot.value = Some(value);
        let generation = slot.generation;
        Key {
            index,
            generation,
            of: PhantomData,
        }
    }

    pub fn remove(&mut self, key: Key<T>) -> Option<T> {
        let slot = self.slot_mut(key.index())?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.checked_add(1).unwrap_or(Generation::MIN);
        slot.marks = Marks::default();
        self.free.push(key.index);
        Some(value)
    }

    #[inline]
    pub fn get(&self, key: Key<T>) -> Option<&T> {
        let slot = self.slot(key.index())?;
        if slot.generation == key.generation {
            slot.value.as_ref()
        } else {
            None
        }
    }

    #[inline]
    pub fn get_mut(&mut self, key: Key<T>) -> Option<&mut T> {
        self.get_marked(key).map(|(value, _)| value)
    }

    /// The value, and the marks of its slot.
    #[inline]
    pub fn get_marked(&mut self, key: Key<T>) -> Option<(&mut T, &mut Marks)> {
        let slot = self.slot_mut(key.index())?;
        if slot.generation == key.generation {
            Some((slot.value.as_mut()?, &mut slot.marks))
        } else {
            None
        }
    }

    pub fn keys(&self) -> impl Iterator<Item = Key<T>> + '_ {
        self.iter().map(|(key, _)| key)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Key<T>, &T)> {
        let slots = self.blocks.iter().flatten().enumerate();
        slots.filter_map(|(index, slot)| {
            let key = Key {
                index: index as u32,
                generation: slot.generation,
                of: PhantomData,
            };
            slot.value.as_ref().map(|value| (key, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_and_the_absence_of_a_key_take_no_memory() {
        assert_eq!(size_of::<Slot<Box<u8>>>(), 16);
        assert_eq!(size_of::<Option<Key<u8>>>(), 8);
    }

    #[test]
    fn a_key_of_a_removed_value_finds_nothing_in_the_reused_slot() {
        let mut slab = Slab::default();
        let old = slab.insert("a");
        assert_eq!(slab.remove(old), Some("a"));
        let new = slab.insert("b");
        assert_eq!(new.index(), old.index());
        assert_eq!(slab.get(old), None);
        assert_eq!(slab.remove(old), None);
        assert_eq!(slab.get(Key::from_bits(new.to_bits())), Some(&"b"));
        assert_eq!(slab.get(Key::NONE), None);
        assert_eq!(slab.len(), 1);
    }
}
