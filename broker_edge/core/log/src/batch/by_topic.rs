//! The records of one batch by topic: who reads one topic of many need not look at every name and every record.

use crate::batch::by_name::name_hash;
use crate::batch::decode::Batch;

#[derive(Debug)]
pub(crate) struct ByTopic {
    /// Numbers of records, those of one topic together and ascending.
    records: Box<[u32]>,
    /// Where those of each place in the table of topics begin, and last where all end.
    begins: Box<[u32]>,
    /// A place in the table of topics plus one, at the hash of its name or behind it; 0 is free. At most half are taken.
    slots: Box<[u32]>,
}

impl ByTopic {
    pub fn new(batch: &Batch) -> Self {
        let topics = batch.topics().len();
        let mut begins = vec![0; topics + 1];
        for index in 0..batch.len() {
            begins[usize::from(batch.topic_index(index)) + 1] += 1;
        }
        for place in 0..topics {
            begins[place + 1] += begins[place];
        }
        let mut ends = begins.clone();
        let mut records = vec![0; batch.len()];
        for index in 0..batch.len() {
            let end = &mut ends[usize::from(batch.topic_index(index))];
            records[*end as usize] = index as u32;
            *end += 1;
        }
        let mut slots = vec![0; (topics * 2).next_power_of_two()];
        let mask = slots.len() - 1;
        for (place, view) in batch.topics().enumerate() {
            let mut at = slot_of(view.topic) & mask;
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

    /// The records of a topic: several stretches when it is in the table more than once, with other keys.
    pub fn find<'a>(&'a self, batch: &'a Batch, topic: &'a str) -> impl Iterator<Item = &'a [u32]> {
        let mask = self.slots.len() - 1;
        let first = slot_of(topic) & mask;
        (first..first + self.slots.len())
            .map(move |at| self.slots[at & mask])
            .take_while(|slot| *slot != 0)
            .map(|slot| slot as usize - 1)
            .filter(move |place| batch.topic(*place as u16).topic == topic)
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
