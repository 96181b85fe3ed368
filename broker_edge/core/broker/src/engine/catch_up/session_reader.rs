//! What a session that catches up gets of a batch.

use std::ops::Range;
use std::rc::Rc;

use headwater_log::{Batch, Offset};
use headwater_mqtt::QoS;

use crate::engine::delivery::matches::effective_for;
use crate::engine::delivery::sender::{Delivered, Packet, Sender};
use crate::engine::ids::PartitionIndex;
use crate::engine::observe::Count;
use crate::engine::routing::topics::EffectiveOptions;
use crate::engine::session::Session;
use crate::engine::{ConnKey, SessionKey};

use super::CatchingUp;
use super::candidate_cache::{ReaderId, Wanted};
use super::readers::{Progress, Reading, index_in};

/// QoS 0 messages delayed by retained values are sent late, up to this age; older ones are dropped when there is no
/// room.
const QOS0_LATE_US: i64 = 5_000_000;
/// With more subscriptions, the effective options for a topic are found in an index, and cached.
const LINEAR_MAX: usize = 8;
/// So many visited nodes of the index of a session's filters are one step.
const WORK_PER_STEP: usize = 64;
/// In a batch with more topics, names are looked up.
const SEARCHED_MIN: usize = 16;

/// A part of a batch in which no subscription of the session begins, so that a decision for its first offset holds for
/// all its records.
struct Part {
    at: Offset,
    indexes: Range<usize>,
    /// No subscription begins after it.
    is_last: bool,
}

impl CatchingUp<'_> {
    /// Delivers the matching records of a batch from the reader's offset up to `until`. If there is no room for one, or
    /// the turn has done enough, the reader stays at it.
    pub(super) fn deliver_batch(
        &mut self,
        key: SessionKey,
        reading: &mut Reading,
        (batch, until): (&Batch, Offset),
        steps: &mut usize,
    ) -> Option<Progress> {
        let until = until.min(batch.next_offset());
        while reading.cursor.next < until {
            let session = self.clients.session(key)?;
            let part = part_of(session, reading, batch, until);
            let end = batch.base_offset().plus(part.indexes.end as u64);
            let stopped = self.deliver_part(key, reading, (batch, part), steps);
            if stopped.is_some() {
                return stopped;
            }
            reading.cursor.next = end;
        }
        None
    }

    fn deliver_part(
        &mut self,
        key: SessionKey,
        reading: &mut Reading,
        (batch, part): (&Batch, Part),
        steps: &mut usize,
    ) -> Option<Progress> {
        let session = self.clients.session(key)?;
        let conn = session.active_conn()?;
        let only = reading.id.replay;
        let names = (batch.topics().len() > SEARCHED_MIN)
            .then(|| Wanted::of(session, only)?.names())
            .flatten()
            .filter(|names| names.len() <= LINEAR_MAX);
        if let Some(names) = names {
            let found = named_records(session, reading.id, (batch, part), &names);
            let has_room = found.iter().all(|(index, effective)| {
                self.deliver_record((key, conn), reading, batch, *index, effective)
            });
            return (!has_room).then_some(Progress::NoRoom);
        }
        if only.is_none() && session.subscriptions.len() > LINEAR_MAX {
            return self.deliver_to_many((key, conn), reading, (batch, part), steps);
        }
        // Looking up a name is much faster than matching a filter, and most sessions have no wildcards.
        let names = Wanted::of(session, only).and_then(Wanted::names);
        let is_named = |topic| names.as_ref().is_none_or(|names| names.contains(&topic));
        let effective =
            |topic| effective_for(session, topic, reading.id.partition, part.at, only).map(Rc::new);
        let topics = batch.topics().map(|topic| topic.topic);
        let wanted: Vec<Option<Rc<EffectiveOptions>>> = topics
            .map(|topic| is_named(topic).then(|| effective(topic)).flatten())
            .collect();
        if !wanted.iter().any(Option::is_some) {
            return None;
        }
        let mut indexes = part.indexes;
        let has_room = indexes.all(|index| {
            let wanted = wanted.get(usize::from(batch.topic_index(index)));
            let Some(Some(effective)) = wanted else {
                return true;
            };
            self.deliver_record((key, conn), reading, batch, index, effective)
        });
        (!has_room).then_some(Progress::NoRoom)
    }

    /// The same for a session with many filters: each topic is matched when its first record comes, until that has been
    /// enough work for the turn.
    fn deliver_to_many(
        &mut self,
        (key, conn): (SessionKey, ConnKey),
        reading: &mut Reading,
        (batch, part): (&Batch, Part),
        steps: &mut usize,
    ) -> Option<Progress> {
        if part.is_last {
            self.catch_up.options_cache.begin(self.routing.epoch());
        }
        // At least one topic is matched, or a reader of many filters would never go on.
        let work_max = (*steps + 1) * WORK_PER_STEP;
        let mut work = 0;
        let mut known: Vec<Option<Option<Rc<EffectiveOptions>>>> = vec![None; batch.topics().len()];
        let mut stopped = None;
        for index in part.indexes.clone() {
            let known = known.get_mut(usize::from(batch.topic_index(index)))?;
            if known.is_none() && work >= work_max {
                reading.cursor.next = batch.base_offset().plus(index as u64);
                stopped = Some(Progress::Unfinished);
                break;
            }
            let effective = known.get_or_insert_with(|| {
                let topic = batch.record(index).topic;
                self.options_of(key, reading.id.partition, topic, &part, &mut work)
            });
            if let Some(effective) = effective
                && !self.deliver_record((key, conn), reading, batch, index, effective)
            {
                stopped = Some(Progress::NoRoom);
                break;
            }
        }
        *steps = steps.saturating_sub(work / WORK_PER_STEP);
        stopped
    }

    /// The effective options of a session with many filters for a topic, from the cache if possible.
    fn options_of(
        &mut self,
        key: SessionKey,
        partition: PartitionIndex,
        topic: &str,
        part: &Part,
        work: &mut usize,
    ) -> Option<Rc<EffectiveOptions>> {
        let session = self.clients.session(key)?;
        let epoch = self.routing.epoch();
        let own_filters = &mut self.catch_up.own_filters;
        *work += 1;
        let mut find = || {
            *work += own_filters.take((key, epoch), session);
            let (found, more) = own_filters.effective_for(session, topic, (partition, part.at));
            *work += more;
            found.map(Rc::new)
        };
        if !part.is_last {
            return find();
        }
        let id = self.routing.intern(topic, &self.env.log);
        self.catch_up.options_cache.get_or(key, id, find)
    }

    /// Delivers one record. Returns false when there is no room; then the reader stays at the record.
    fn deliver_record(
        &mut self,
        (key, conn): (SessionKey, ConnKey),
        reading: &mut Reading,
        batch: &Batch,
        index: usize,
        effective: &Rc<EffectiveOptions>,
    ) -> bool {
        let record = batch.record(index);
        let qos0 = record.qos == 0 || effective.qos == QoS::AtMostOnce;
        if qos0 && record.offset < reading.cursor.qos0_from {
            return true;
        }
        let packet = Packet {
            record: &record,
            batch: Some(batch),
            partition: reading.id.partition,
            effective,
            source: reading.id.source(),
            retain: false,
        };
        if lend!(self => Sender).deliver(key, conn, &packet) != Delivered::NoRoom {
            return true;
        }
        let late_us = self.env.now.wall_us - record.time_us;
        if qos0 && reading.cursor.sheds_qos0 && late_us > QOS0_LATE_US {
            self.observe.count(Count::DeliveriesDropped, 1);
            return true;
        }
        reading.cursor.next = record.offset;
        false
    }
}

/// The part of a batch that comes next.
fn part_of(session: &Session, reading: &Reading, batch: &Batch, until: Offset) -> Part {
    let at = reading.cursor.next.max(batch.base_offset());
    let mut begins = None;
    if reading.id.replay.is_none() {
        let held = session.subscriptions.iter();
        let begin = held.map(|held| held.begins_at(reading.id.partition));
        begins = begin.filter(|begin| *begin > at).min();
    }
    let end = begins.map_or(until, |begins| begins.min(until));
    Part {
        at,
        indexes: reading.first_in(batch)..index_in(batch, end),
        is_last: begins.is_none(),
    }
}

/// The records of a part of a batch, in order, whose topics are among the names that a session reads.
fn named_records(
    session: &Session,
    id: ReaderId,
    (batch, part): (&Batch, Part),
    names: &[&str],
) -> Vec<(usize, Rc<EffectiveOptions>)> {
    let mut found = Vec::new();
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            continue;
        }
        let Some(effective) = effective_for(session, name, id.partition, part.at, id.replay) else {
            continue;
        };
        let effective = Rc::new(effective);
        let records = batch.records_of(name, part.indexes.start);
        let records = records.filter(|index| *index < part.indexes.end);
        found.extend(records.map(|index| (index, Rc::clone(&effective))));
    }
    found.sort_unstable_by_key(|(index, _)| *index);
    found
}
