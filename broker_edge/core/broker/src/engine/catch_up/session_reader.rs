//! What a session that catches up gets of a batch.

use std::rc::Rc;

use headwater_log::{Batch, Offset};
use headwater_mqtt::{QoS, filter_matches};

use crate::auth::Access;
use crate::engine::delivery::sender::{Delivered, Packet, Sender};
use crate::engine::ids::PartitionIndex;
use crate::engine::observe::Count;
use crate::engine::routing::topics::EffectiveOptions;
use crate::engine::session::Session;
use crate::engine::{ConnKey, SessionKey};

use super::CatchingUp;
use super::candidate_cache::{ReaderId, Wanted};
use super::readers::{Progress, Reading};

/// QoS 0 messages delayed by retained values are sent late, up to this age; older ones are dropped when there is no
/// room.
const QOS0_LATE_US: i64 = 5_000_000;
/// With more subscriptions, the effective options for a topic are cached.
const LINEAR_MAX: usize = 8;
/// In a batch with more topics, names are looked up.
const SEARCHED_MIN: usize = 16;

impl CatchingUp<'_> {
    /// Delivers the matching records of a batch from the reader's offset on. If there is no room for one, the reader
    /// stays at it.
    pub(super) fn deliver_batch(
        &mut self,
        key: SessionKey,
        reading: &mut Reading,
        batch: &Batch,
    ) -> Option<Progress> {
        let first = reading.first_in(batch);
        let session = self.clients.session(key)?;
        let conn = session.active_conn()?;
        let only = reading.id.replay;
        let names = (batch.topics().len() > SEARCHED_MIN)
            .then(|| Wanted::of(session, only)?.names())
            .flatten()
            .filter(|names| names.len() <= LINEAR_MAX);
        let has_room = if let Some(names) = names {
            let found = named_records(session, reading.id, batch, &names, first);
            found.iter().all(|(index, effective)| {
                self.deliver_record((key, conn), reading, batch, *index, effective)
            })
        } else {
            let wanted = self.wanted_topics(key, reading.id, batch);
            !wanted.iter().any(Option::is_some)
                || (first..batch.len()).all(|index| {
                    let Some(Some(effective)) = wanted.get(usize::from(batch.topic_index(index)))
                    else {
                        return true;
                    };
                    self.deliver_record((key, conn), reading, batch, index, effective)
                })
        };
        if !has_room {
            return Some(Progress::NoRoom);
        }
        reading.cursor.next = batch.next_offset();
        None
    }

    /// The effective options of the session for each topic in a batch's table.
    fn wanted_topics(
        &mut self,
        key: SessionKey,
        id: ReaderId,
        batch: &Batch,
    ) -> Vec<Option<Rc<EffectiveOptions>>> {
        let Some(session) = self.clients.session(key) else {
            return Vec::new();
        };
        // Subscriptions begin at the ends of batches, so a decision for a batch's base offset holds for all its
        // records.
        let base = batch.base_offset();
        let (only, partition) = (id.replay, id.partition);
        let may_keep = only.is_none() && session.subscriptions.len() > LINEAR_MAX && {
            let mut held = session.subscriptions.iter();
            held.all(|held| held.begins_at(partition) <= base)
        };
        if may_keep {
            self.catch_up.options_cache.begin(self.routing.epoch());
            let ids = batch
                .topics()
                .map(|topic| self.routing.intern(topic.topic, &self.env.log));
            return ids
                .zip(batch.topics())
                .map(|(id, topic)| {
                    self.catch_up.options_cache.get_or(key, id, || {
                        effective_for(session, topic.topic, partition, base, None).map(Rc::new)
                    })
                })
                .collect();
        }
        // Looking up names is much faster than matching filters, and most sessions have no wildcards.
        let names = Wanted::of(session, only).and_then(Wanted::names);
        let is_named = |topic| names.as_ref().is_none_or(|names| names.contains(&topic));
        let effective = |topic| effective_for(session, topic, partition, base, only).map(Rc::new);
        let topics = batch.topics().map(|topic| topic.topic);
        topics
            .map(|topic| is_named(topic).then(|| effective(topic)).flatten())
            .collect()
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

/// The records of a batch from index `first` on, in order, whose topics are among the names that a session reads.
fn named_records(
    session: &Session,
    id: ReaderId,
    batch: &Batch,
    names: &[&str],
    first: usize,
) -> Vec<(usize, Rc<EffectiveOptions>)> {
    let mut found = Vec::new();
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            continue;
        }
        let Some(effective) =
            effective_for(session, name, id.partition, batch.base_offset(), id.replay)
        else {
            continue;
        };
        let effective = Rc::new(effective);
        let records = batch.records_of(name, first);
        found.extend(records.map(|index| (index, Rc::clone(&effective))));
    }
    found.sort_unstable_by_key(|(index, _)| *index);
    found
}

/// The effective options of the session's subscriptions for a topic at an offset, or of one replay; `None` if no
/// subscription wants it there.
pub(super) fn effective_for(
    session: &Session,
    topic: &str,
    partition: PartitionIndex,
    at: Offset,
    replay: Option<u16>,
) -> Option<EffectiveOptions> {
    let access = replay.map_or(Access::Receive, |_| Access::Replay);
    let only = replay.and_then(|number| session.replay(number));
    let mut wanted = session
        .subscriptions
        .iter()
        .filter(|held| match replay {
            Some(_) => only.is_some_and(|replay| replay.filter == held.filter),
            None => !session.is_replaying(&held.filter) && held.begins_at(partition) <= at,
        })
        .filter(|held| filter_matches(&held.filter, topic))
        .map(|held| held.options)
        .peekable();
    wanted.peek()?;
    session
        .may(access, topic)
        .then(|| EffectiveOptions::of(wanted))
}
