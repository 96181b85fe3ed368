//! The retained messages that a new subscription still has to get: a position among the retained records, so that a
//! client that does not read costs no list of them.
//!
//! The subscription gets the messages that were retained at the SUBSCRIBE and are still retained when they are sent. A
//! message changed since arrives as a live record, and a removed one is not sent. The records are visited in log order,
//! which is one pass through the log for any topics. Only a short list is kept as such, because looking it up by topic
//! is faster.
//!
//! Only retained records are visited. What it keeps for a session is in `session::Extras`.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use headwater_log::Offset;
use headwater_mqtt::filter_matches;

use crate::engine::ids::PartitionIndex;

use super::{RecordRef, Retained, look_cost};

/// So many records or topics examined cost one step of a reader.
pub(in crate::engine) const STEP_RECORDS: usize = 1024;
/// With more values for one filter, or more topics to examine, all retained records are visited instead.
pub(in crate::engine) const LISTED_MAX: usize = 1024;
const LOOKED_MAX: usize = 8 * STEP_RECORDS;
/// Examining this many topics is free.
const LOOKED_FREE: usize = 64;
/// Refused values that cost one step.
const REFUSED_PER_STEP: usize = 64;

/// The retained messages that one new subscription has to send.
#[derive(Debug)]
pub struct RetainedCursor {
    pub filter: Box<str>,
    /// Per partition, the live offset at the SUBSCRIBE: records from there on arrive as live records.
    as_of: Rc<[Offset]>,
    rest: Remaining,
}

/// The part that has not been sent.
#[derive(Debug)]
enum Remaining {
    /// Not looked up yet.
    Unknown,
    /// These records, if they are still retained.
    Listed(VecDeque<RecordRef>),
    /// All from this record on.
    From(RecordRef),
}

/// The retained message of a topic, as found for a subscriber.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::engine) struct Value {
    pub topic: Arc<str>,
    pub at: RecordRef,
    /// The state store has the value.
    pub stored: bool,
}

/// The next value to send.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::engine) enum NextValue {
    Value(Value),
    Nothing,
    /// The turn's limit on examined records is reached.
    Unfinished,
}

impl RetainedCursor {
    pub fn new(filter: &str, as_of: Rc<[Offset]>) -> Self {
        Self {
            filter: filter.into(),
            as_of,
            rest: Remaining::Unknown,
        }
    }

    /// The current live offsets, shared with the previous subscription if they are the same.
    pub fn as_of(before: Option<&Self>, dispatched: &[Offset]) -> Rc<[Offset]> {
        match before {
            Some(before) if *before.as_of == *dispatched => Rc::clone(&before.as_of),
            _ => dispatched.into(),
        }
    }

    /// Records of a partition below this offset are sent before these values.
    pub fn until(&self, partition: PartitionIndex) -> Offset {
        self.as_of[partition.index()]
    }

    /// The number of records listed in memory.
    #[cfg(test)]
    pub fn listed(&self) -> usize {
        match &self.rest {
            Remaining::Listed(records) => records.capacity(),
            Remaining::Unknown | Remaining::From(_) => 0,
        }
    }

    /// The next value that the client may receive; it stays the next until [`RetainedCursor::pass`]. Looking costs
    /// steps.
    pub(in crate::engine) fn find(
        &mut self,
        retained: &Retained,
        may: impl Fn(&str) -> bool,
        steps: &mut usize,
    ) -> NextValue {
        if matches!(self.rest, Remaining::Unknown) {
            let (looked, records) = retained.list(&self.filter, (LISTED_MAX, LOOKED_MAX));
            // A short list is cheap; many filters that each find a few values are not free.
            let cost = (looked + STEP_RECORDS - LOOKED_FREE) / STEP_RECORDS;
            *steps = steps.saturating_sub(cost);
            self.rest = records.map_or(Remaining::From(RecordRef::default()), |records| {
                Remaining::Listed(records.into())
            });
        }
        match &mut self.rest {
            Remaining::Unknown => NextValue::Nothing,
            Remaining::Listed(records) => {
                let mut refused = 0;
                while let Some(at) = records.front() {
                    let end = self.as_of.get(at.partition.index());
                    let is_old = end.is_some_and(|end| at.offset < *end);
                    match retained.at(*at) {
                        Some(_)
                            if refused > 0 && refused % REFUSED_PER_STEP == 0 && *steps == 0 =>
                        {
                            return NextValue::Unfinished;
                        }
                        Some((topic, place)) if is_old && may(topic) => {
                            return NextValue::Value(Value {
                                topic: topic.clone(),
                                at: *at,
                                stored: place.stored,
                            });
                        }
                        _ => {
                            refused += 1;
                            if refused % REFUSED_PER_STEP == 0 {
                                *steps = steps.saturating_sub(1);
                            }
                            records.pop_front()
                        }
                    };
                }
                NextValue::Nothing
            }
            Remaining::From(from) => go_on(from, &self.as_of, retained, steps, |topic| {
                filter_matches(&self.filter, topic) && may(topic)
            }),
        }
    }

    /// The value found has been sent, or cannot be sent.
    pub fn pass(&mut self) {
        match &mut self.rest {
            Remaining::Unknown => {}
            Remaining::Listed(records) => {
                records.pop_front();
            }
            Remaining::From(at) => at.offset = at.offset.plus(1),
        }
    }
}

/// Visits the retained records up to the next wanted one.
fn go_on(
    from: &mut RecordRef,
    as_of: &[Offset],
    retained: &Retained,
    steps: &mut usize,
    wanted: impl Fn(&str) -> bool,
) -> NextValue {
    let mut looked = 0;
    while let Some(end) = as_of.get(from.partition.index()) {
        for (at, topic) in retained.between(*from, RecordRef::new(from.partition, *end)) {
            *from = at;
            if wanted(topic)
                && let Some((topic, place)) = retained.at(at)
            {
                return NextValue::Value(Value {
                    topic: topic.clone(),
                    at,
                    stored: place.stored,
                });
            }
            looked += look_cost(topic);
            if looked >= STEP_RECORDS {
                if *steps == 0 {
                    return NextValue::Unfinished;
                }
                looked = 0;
                *steps -= 1;
            }
        }
        *from = RecordRef::new(PartitionIndex(from.partition.0 + 1), Offset(0));
    }
    NextValue::Nothing
}

#[cfg(test)]
mod tests {
    use headwater_log::RetainedOffset;

    use super::*;

    const PARTITIONS: u16 = 3;
    const P: PartitionIndex = PartitionIndex(1);

    /// One value in each of `count` topics, spread over the partitions.
    fn retained_of(count: u64) -> Retained {
        let mut retained = Retained::default();
        retained.limit(usize::MAX, u64::MAX);
        for n in 0..count {
            let partition = PartitionIndex((n % u64::from(PARTITIONS)) as u16);
            put(&mut retained, &format!("t/{n}"), partition, n, false);
        }
        retained
    }

    fn put(
        retained: &mut Retained,
        topic: &str,
        partition: PartitionIndex,
        offset: u64,
        is_cleared: bool,
    ) {
        let place = RetainedOffset {
            offset: Offset(offset),
            is_cleared,
        };
        retained.apply_entry(topic, partition, place, 1);
    }

    fn cursor(filter: &str, as_of: u64) -> RetainedCursor {
        RetainedCursor::new(filter, vec![Offset(as_of); usize::from(PARTITIONS)].into())
    }

    /// The topics of at most `count` values found, each passed.
    fn take(cursor: &mut RetainedCursor, retained: &Retained, count: usize) -> Vec<String> {
        let mut topics = Vec::new();
        while topics.len() < count {
            match cursor.find(retained, |_| true, &mut usize::MAX.clone()) {
                NextValue::Value(value) => topics.push(value.topic.to_string()),
                NextValue::Nothing => break,
                NextValue::Unfinished => panic!("there were steps enough"),
            }
            cursor.pass();
        }
        topics
    }

    #[test]
    fn few_values_are_listed_and_many_gone_through_each_once_and_in_order_of_place() {
        for count in [1, 30, LISTED_MAX as u64, LISTED_MAX as u64 + 1, 3000] {
            let retained = retained_of(count);
            let mut cursor = cursor("#", count);
            let got = take(&mut cursor, &retained, usize::MAX);
            let partitions = (0..u64::from(PARTITIONS)).flat_map(|partition| {
                let all = partition..count;
                all.step_by(usize::from(PARTITIONS))
            });
            let wanted: Vec<String> = partitions.map(|n| format!("t/{n}")).collect();
            assert_eq!(got, wanted, "{count}");
            assert!(cursor.listed() <= LISTED_MAX);
            assert_eq!(cursor.listed() > 0, count <= LISTED_MAX as u64, "{count}");
        }
    }

    #[test]
    fn what_changed_since_the_subscribe_is_not_owed() {
        for count in [30, 3000] {
            let mut retained = retained_of(count);
            let mut cursor = cursor("t/#", count);
            assert_eq!(take(&mut cursor, &retained, 2), ["t/0", "t/3"]);
            for (topic, is_cleared) in [("t/1", false), ("t/2", true), ("t/3", false)] {
                put(&mut retained, topic, P, count + 7, is_cleared);
            }
            put(&mut retained, "t/new", P, count + 8, false);
            let got = take(&mut cursor, &retained, usize::MAX);
            assert_eq!(got.len() as u64, count - 4, "{count}");
            for topic in ["t/1", "t/2", "t/3", "t/new"] {
                assert!(!got.iter().any(|of| of == topic), "{topic} of {count}");
            }
        }
    }

    #[test]
    fn a_value_whose_segment_went_meanwhile_is_found_where_it_is_now() {
        let mut retained = retained_of(3);
        let mut cursor = cursor("t/+", 3);
        assert_eq!(take(&mut cursor, &retained, 1), ["t/0"]);
        retained.mark_stored("t/1", RecordRef::new(P, Offset(1)), 1);
        let found = cursor.find(&retained, |_| true, &mut 9);
        let NextValue::Value(value) = found else {
            panic!("{found:?}")
        };
        assert!(value.stored && *value.topic == *"t/1");
    }

    #[test]
    fn looking_through_much_for_little_takes_many_turns() {
        let retained = retained_of(20_000);
        let mut cursor = cursor("+/19999", 20_000);
        let mut turns = 0;
        let found = loop {
            // Slightly more than a turn's budget: the first lookup costs more.
            match cursor.find(&retained, |_| true, &mut 2) {
                NextValue::Unfinished => turns += 1,
                found => break found,
            }
        };
        assert!(matches!(found, NextValue::Value(_)), "{found:?}");
        assert!((3..20).contains(&turns), "{turns}");
        let mut cursor = RetainedCursor::new("#", vec![Offset(20_000); 3].into());
        let nothing_allowed = cursor.find(&retained, |_| false, &mut 2);
        assert_eq!(nothing_allowed, NextValue::Unfinished);
    }

    #[test]
    fn subscriptions_of_one_moment_share_what_it_was() {
        let now = [Offset(3), Offset(5)];
        let first = RetainedCursor::new("a", RetainedCursor::as_of(None, &now));
        assert!(Rc::ptr_eq(
            &RetainedCursor::as_of(Some(&first), &now),
            &first.as_of
        ));
        let later = RetainedCursor::as_of(Some(&first), &[Offset(3), Offset(6)]);
        assert_eq!(later[1], Offset(6));
    }
}
