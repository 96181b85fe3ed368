//! Sessions that are not served by the live stream alone catch up here. Retransmissions, replays and retained values
//! are in `resend`, `replays` and `send_retained`.
//!
//! Each session reads from the log at its own offset, a bounded amount per turn, and stops when its window or its out
//! buffer is full; an acknowledgement or a writable socket wakes it again. A session that has reached `dispatched` is
//! live.

use std::rc::Rc;

use headwater_log::{Batch, Offset, ReadError};
use headwater_mqtt::{QoS, filter_matches};

use crate::auth::Access;
use crate::engine::delivery::deliver::{Delivered, Delivery};
use crate::engine::ids::PartitionIndex;
use crate::engine::routing::topics::EffectiveOptions;
use crate::engine::session::Session;
use crate::engine::session::window::Source;
use crate::engine::{ConnKey, Engine, SessionKey};

use super::candidate_cache;
use super::read_retry::is_passing;
use super::scheduler::Next;

/// Bytes of batches that one session reads at a time.
pub(in crate::engine) const READ_BYTES: usize = 256 << 10;
/// The work of all sessions in a turn, in steps: one record is one step, a read from files takes more.
const TURN_STEPS: usize = 32;
/// This many bytes, read or sent, count as one more step.
pub(super) const STEP_BYTES: usize = 16 << 10;
/// This many records examined count as one more step.
pub(in crate::engine) const STEP_RECORDS: usize = 1024;
/// QoS 0 messages delayed by retained values are sent late, up to this age; older ones are dropped when there is no
/// room.
const QOS0_LATE_US: i64 = 5_000_000;
/// With more subscriptions, the effective options for a topic are cached.
const LINEAR_MAX: usize = 8;
/// In a batch with more topics, names are looked up.
const SEARCHED_MIN: usize = 16;
pub(in crate::engine) const READ_STEPS: usize = 8;

/// The state of one reader.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Reading {
    pub partition: PartitionIndex,
    pub next: Offset,
    /// Where it ends, if that is before the live stream.
    pub until: Offset,
    pub source: Source,
    pub qos0_from: Offset,
    pub sheds_qos0: bool,
}

impl Reading {
    pub fn progress(&self, until: Offset) -> Progress {
        if self.next >= until {
            Progress::Finished
        } else {
            Progress::Unfinished
        }
    }

    /// Moves past records that cannot be read.
    pub fn skip(&mut self, error: &ReadError, until: Offset) {
        tracing::warn!(%error, from = self.next.0, "a session skips records that cannot be read");
        self.next = match error {
            ReadError::Damaged { range } => range.end.max(self.next.plus(1)),
            ReadError::OutOfRange { log_start, .. } => (*log_start).max(self.next.plus(1)),
            ReadError::Io { .. } => until,
        };
    }
}

/// The result of one piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    Finished,
    /// There is more to do, and there is room.
    Unfinished,
    /// The window or the out buffer is full.
    NoRoom,
}

impl Engine {
    pub(in crate::engine) fn catch_up(&mut self) {
        let mut steps = TURN_STEPS;
        loop {
            let before = steps;
            self.schedule_reads(&mut steps);
            // Half of the steps, so that groups do not starve sessions.
            let mut of_groups = steps.div_ceil(2);
            let of_sessions = steps - of_groups;
            self.run_groups(&mut of_groups);
            steps = of_sessions + of_groups;
            self.run_sessions(&mut steps);
            if steps == 0 || steps == before {
                return;
            }
        }
    }

    fn run_sessions(&mut self, steps: &mut usize) {
        for _ in 0..self.catch_up.runnable.len() {
            if *steps == 0 {
                return;
            }
            let Some(key) = self.catch_up.runnable.pop_front() else {
                return;
            };
            if let Some(session) = self.clients.session_mut(key) {
                session.queued = false;
            }
            self.run_awake(key, steps);
        }
    }

    pub(super) fn run_awake(&mut self, key: SessionKey, steps: &mut usize) {
        match self.run_session(key, steps) {
            Progress::Unfinished => self.wake_session(key),
            // Whatever the session has to send before new records.
            Progress::Finished => {
                self.end_catch_up_reads(key);
                self.wake_groups_of(key);
            }
            Progress::NoRoom => {}
        }
    }

    fn run_session(&mut self, key: SessionKey, steps: &mut usize) -> Progress {
        let Some(conn) = self.clients.session(key).and_then(Session::active_conn) else {
            return Progress::NoRoom;
        };
        let kinds = [
            Self::resend,
            Self::send_assigned,
            Self::end_replays,
            Self::catch_up_behind,
            Self::send_retained,
            Self::catch_up_replays,
        ];
        for kind in kinds {
            match kind(self, key, conn, steps) {
                Progress::Finished => {}
                other => return other,
            }
        }
        Progress::Finished
    }

    /// Reads on in the partitions where the session is behind. It reads up to the live position at the SUBSCRIBE of its
    /// first pending retained cursor. Without such a cursor it reads until it is live.
    fn catch_up_behind(&mut self, key: SessionKey, conn: ConnKey, steps: &mut usize) -> Progress {
        let mut index = 0;
        let mut unfinished = false;
        // The next time another partition goes first, so that a narrow window serves all of them.
        if let Some(session) = self.clients.session_mut(key)
            && session.behind.len() > 1
        {
            session.behind.rotate_left(1);
        }
        loop {
            let Some(session) = self.clients.session(key) else {
                return Progress::NoRoom;
            };
            let Some(behind) = session.behind.get(index).copied() else {
                return if unfinished {
                    Progress::Unfinished
                } else {
                    Progress::Finished
                };
            };
            let owed = session.extras.retained.front();
            let mut reading = Reading {
                partition: behind.partition,
                next: behind.next,
                until: owed.map_or(Offset(u64::MAX), |owed| owed.until(behind.partition)),
                source: Source::Cursor,
                qos0_from: behind.qos0_from,
                sheds_qos0: behind.sheds_qos0,
            };
            let progress = self.read_on(key, conn, &mut reading, None, steps);
            let live_at = self.delivery.dispatched[behind.partition.index()];
            let Some(session) = self.clients.session_mut(key) else {
                return Progress::NoRoom;
            };
            match progress {
                Progress::Finished if reading.next < live_at => {
                    session.behind[index].next = reading.next;
                    index += 1;
                }
                Progress::Finished => {
                    session.behind.swap_remove(index);
                }
                Progress::Unfinished | Progress::NoRoom => {
                    session.behind[index].next = reading.next;
                    if progress == Progress::NoRoom || *steps == 0 {
                        return progress;
                    }
                    index += 1;
                    unfinished = true;
                }
            }
        }
    }

    /// Reads on from one position, with at most one read, and delivers the records that match. `only` is the filter of
    /// a replaying subscription.
    pub(super) fn read_on(
        &mut self,
        key: SessionKey,
        conn: ConnKey,
        reading: &mut Reading,
        only: Option<&str>,
        steps: &mut usize,
    ) -> Progress {
        let until = self.delivery.dispatched[reading.partition.index()].min(reading.until);
        if reading.next >= until {
            return Progress::Finished;
        }
        if *steps == 0 {
            return Progress::Unfinished;
        }
        *steps -= 1;
        self.begin_at_log_start(reading);
        let batches = match self.read_for(key, reading, until, only, steps) {
            Ok(Next::Batches(batches)) => batches,
            Ok(Next::Nothing(below)) => {
                reading.next = reading.next.max(below);
                return reading.progress(until);
            }
            Ok(Next::Waits) => return Progress::NoRoom,
            Err(error) if is_passing(&error) => {
                self.retry_later(key, &error);
                return Progress::NoRoom;
            }
            Err(error) => {
                reading.skip(&error, until);
                return reading.progress(until);
            }
        };
        let sent_before = self.observe.turn_metrics.publish_sent_bytes;
        let mut progress = None;
        for batch in batches
            .iter()
            .take_while(|batch| batch.base_offset() < until)
        {
            *steps = steps.saturating_sub(batch.len() / STEP_RECORDS);
            if !self.deliver_batch(key, conn, reading, batch, only) {
                progress = Some(Progress::NoRoom);
                break;
            }
        }
        let sent = self.observe.turn_metrics.publish_sent_bytes - sent_before;
        *steps = steps.saturating_sub(usize::try_from(sent).unwrap_or(0) / STEP_BYTES);
        self.catch_up.batch_cache.note_sent(sent);
        if progress.is_some() {
            let at = (reading.partition, reading.next);
            self.catch_up
                .batch_cache
                .stop(key, at, self.env.now.mono_ms);
        } else {
            self.catch_up
                .batch_cache
                .resume_at(key, self.env.now.mono_ms);
        }
        progress.unwrap_or_else(|| reading.progress(until))
    }

    /// Retention does not wait for MQTT clients: a session that is too far behind continues at the start of the log.
    pub(in crate::engine) fn begin_at_log_start(&self, reading: &mut Reading) {
        let partition = &self.env.partitions[reading.partition.index()];
        let log_start = partition.log_start();
        if reading.next < log_start {
            tracing::warn!(
                partition = partition.name(),
                from = reading.next.0,
                to = log_start.0,
                "a session continues at the log start: retention removed records that it had not read"
            );
            let expired = log_start.0 - reading.next.0;
            self.env.metrics.mqtt.records_expired.inc_by(expired);
            reading.next = log_start;
        }
    }

    /// Delivers the matching records of a batch from the reader's offset on. Returns false when there is no room for
    /// the record at which the reader then stands.
    fn deliver_batch(
        &mut self,
        key: SessionKey,
        conn: ConnKey,
        reading: &mut Reading,
        batch: &Batch,
        only: Option<&str>,
    ) -> bool {
        let first =
            usize::try_from(reading.next.0.saturating_sub(batch.base_offset().0)).unwrap_or(0);
        let Some(session) = self.clients.session(key) else {
            return true;
        };
        let names = (batch.topics().len() > SEARCHED_MIN)
            .then(|| candidate_cache::names_of(session, only))
            .flatten()
            .filter(|names| names.len() <= LINEAR_MAX);
        let has_room = if let Some(names) = names {
            let found = named_records(session, reading.partition, batch, &names, first, only);
            found.iter().all(|(index, effective)| {
                self.deliver_record(key, conn, reading, batch, *index, effective)
            })
        } else {
            let wanted = self.wanted_topics(key, reading.partition, batch, only);
            !wanted.iter().any(Option::is_some)
                || (first..batch.len()).all(|index| {
                    let Some(Some(effective)) = wanted.get(usize::from(batch.topic_index(index)))
                    else {
                        return true;
                    };
                    self.deliver_record(key, conn, reading, batch, index, effective)
                })
        };
        if has_room {
            reading.next = batch.next_offset();
        }
        has_room
    }

    /// The effective options of the session for each topic in a batch's table.
    fn wanted_topics(
        &mut self,
        key: SessionKey,
        partition: PartitionIndex,
        batch: &Batch,
        only: Option<&str>,
    ) -> Vec<Option<Rc<EffectiveOptions>>> {
        let Some(session) = self.clients.session(key) else {
            return Vec::new();
        };
        // Subscriptions begin at the ends of batches, so a decision for a batch's base offset holds for all its
        // records.
        let base = batch.base_offset();
        let may_keep = only.is_none() && session.subscriptions.len() > LINEAR_MAX && {
            let mut held = session.subscriptions.iter();
            held.all(|held| held.begins_at(partition) <= base)
        };
        if may_keep {
            self.catch_up
                .options_cache
                .begin(self.routing.router.epoch());
            let ids = batch
                .topics()
                .map(|topic| self.routing.topics.intern(topic.topic, &self.env.log));
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
        let names = candidate_cache::names_of(session, only);
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
        key: SessionKey,
        conn: ConnKey,
        reading: &mut Reading,
        batch: &Batch,
        index: usize,
        effective: &Rc<EffectiveOptions>,
    ) -> bool {
        let record = batch.record(index);
        let qos0 = record.qos == 0 || effective.qos == QoS::AtMostOnce;
        if qos0 && record.offset < reading.qos0_from {
            return true;
        }
        let delivery = Delivery {
            record: &record,
            batch: Some(batch),
            partition: reading.partition,
            effective,
            source: reading.source,
            retain: false,
        };
        if self.deliver(key, conn, &delivery) != Delivered::NoRoom {
            return true;
        }
        let late_us = self.env.now.wall_us - record.time_us;
        if qos0 && reading.sheds_qos0 && late_us > QOS0_LATE_US {
            self.observe.turn_metrics.deliveries_dropped += 1;
            return true;
        }
        reading.next = record.offset;
        false
    }
}

/// The records of a batch from index `first` on, in order, whose topics are among the names that a session reads.
fn named_records(
    session: &Session,
    partition: PartitionIndex,
    batch: &Batch,
    names: &[&str],
    first: usize,
    only: Option<&str>,
) -> Vec<(usize, Rc<EffectiveOptions>)> {
    let mut found = Vec::new();
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            continue;
        }
        let Some(effective) = effective_for(session, name, partition, batch.base_offset(), only)
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

/// The effective options of the session's subscriptions for a topic at an offset; `None` if no subscription wants it
/// there.
pub(super) fn effective_for(
    session: &Session,
    topic: &str,
    partition: PartitionIndex,
    at: Offset,
    only: Option<&str>,
) -> Option<EffectiveOptions> {
    let access = only.map_or(Access::Receive, |_| Access::Replay);
    let mut wanted = session
        .subscriptions
        .iter()
        .filter(|held| match only {
            Some(filter) => &*held.filter == filter,
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
