//! The records of one batch by topic, so that a reader of one topic skips the other names and records.

use crate::batch::by_name::name_hash;

#[derive(Debug)]
pub(crate) struct ByTopic {
    /// Numbers of records, grouped by topic and ascending in each group.
    records: Box<[u32]>,
    /// Where the group of each topic begins, in the order of the table of topics, and last the end of all.
    begins: Box<[u32]>,
    /// Open hash table by name: index in the table of topics plus one; 0 is free. At most half of the slots are used.
    slots: Box<[u32]>,
}

impl ByTopic {
    /// Of the names of the table of topics, and the place in it of each record's topic.
    pub fn new<'a>(
        names: impl ExactSizeIterator<Item = &'a str>,
        topics: impl ExactSizeIterator<Item = u16> + Clone,
    ) -> Self {
        let mut begins = vec![0; names.len() + 1];
        for topic in topics.clone() {
            begins[usize::from(topic) + 1] += 1;
        }
        for place in 0..names.len() {
            begins[place + 1] += begins[place];
        }
        let mut ends = begins.clone();
        let mut records = vec![0; topics.len()];
        for (index, topic) in topics.enumerate() {
            let end = &mut ends[usize::from(topic)];
            records[*end as usize] = index as u32;
            *end += 1;
        }
        let mut slots = vec![0; (names.len() * 2).next_power_of_two()];
        let mask = slots.len() - 1;
        for (place, name) in names.enumerate() {
            let mut at = slot_of(name) & mask;
            while slots[at] != 0 {
                at = (at + 1) & mask;
            }
            slots[at] = place as u32 + 1;
        }
        Self {
            records: records.into(),
            begins: begins.into(),
            slots: slots.into(),
        }
    }

    /// The records of a topic: several slices when it is in the table more than once, with other keys.
    pub fn find<'a, 'b>(
        &'a self,
        topic: &'b str,
        name_at: impl Fn(u16) -> &'b str,
    ) -> impl Iterator<Item = &'a [u32]> {
        let mask = self.slots.len() - 1;
        let first = slot_of(topic) & mask;
        (first..first + self.slots.len())
            .map(move |at| self.slots[at & mask])
            .take_while(|slot| *slot != 0)
            .map(|slot| slot as usize - 1)
            .filter(move |place| name_at(*place as u16) == topic)
            .map(|place| {
                let (begin, end) = (self.begins[place], self.begins[place + 1]);
                &self.records[begin as usize..end as usize]
            })
    }
}

fn slot_of(topic: &str) -> usize {
    // A 32-bit machine keeps the low half.
    name_hash(topic) as usize
}
