//! Readers that are not served by the live stream alone: sessions, their replays, and shared groups.
//!
//! Each reads from the log at its own offsets, a bounded amount per turn, and stops when there is no room for the next
//! record; an acknowledgement or a writable socket wakes it again. A reader that has reached the live offset in a
//! partition is live there. What a session sends besides is in `resend`, `replays` and `send_retained`.

use headwater_log::{Batch, Offset, ReadError};

use crate::engine::delivery::is_passing;
use crate::engine::ids::Waiter;
use crate::engine::observe::Count;
use crate::engine::retained::retained_cursor::STEP_RECORDS;
use crate::engine::session::Session;
use crate::engine::session::cursors::{Cursor, Cursors};
use crate::engine::{ConnKey, SessionKey};

use super::CatchingUp;
use super::candidate_cache::ReaderId;
use super::scheduler::Next;

/// Bytes of batches that one session reads at a time.
pub(super) const READ_BYTES: usize = 256 << 10;
/// The work of all sessions in a turn, in steps: one record is one step, a read from files takes more.
const TURN_STEPS: usize = 32;
/// This many bytes, read or sent, count as one more step.
pub(super) const STEP_BYTES: usize = 16 << 10;
pub(super) const READ_STEPS: usize = 8;

/// One reader at work in one partition.
pub(super) struct Reading {
    pub id: ReaderId,
    pub cursor: Cursor,
    /// Where it ends, if that is before the live stream.
    until: Offset,
}

impl Reading {
    fn progress(&self, until: Offset) -> Progress {
        if self.cursor.next >= until {
            Progress::Finished
        } else {
            Progress::Unfinished
        }
    }

    /// The index in a batch of the record that comes next.
    pub fn first_in(&self, batch: &Batch) -> usize {
        index_in(batch, self.cursor.next)
    }

    /// Moves past records that cannot be read.
    fn skip(&mut self, error: &ReadError, until: Offset) {
        tracing::warn!(%error, reader = ?self.id, from = self.cursor.next.0, "records that cannot be read are skipped");
        let after = self.cursor.next.plus(1);
        self.cursor.next = match error {
            ReadError::Damaged { range } => range.end.max(after),
            ReadError::OutOfRange { log_start, .. } => (*log_start).max(after),
            ReadError::Io { .. } => until,
        };
    }
}

/// The index of an offset in a batch; its length for an offset behind it.
pub(super) fn index_in(batch: &Batch, offset: Offset) -> usize {
    let index = offset.0.saturating_sub(batch.base_offset().0);
    usize::try_from(index).map_or(batch.len(), |index| index.min(batch.len()))
}

/// The result of one piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    Finished,
    /// There is more to do, and there is room.
    Unfinished,
    /// The window or the out buffer is full.
    NoRoom,
    /// A read was not granted yet, or has to be repeated later.
    Waits,
}

impl CatchingUp<'_> {
    /// Reads on, a bounded amount per turn.
    pub fn run(&mut self) {
        let mut steps = TURN_STEPS;
        for id in self.groups.take_deserted() {
            self.catch_up.forget(Waiter::Group(id));
        }
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
            let Some(key) = self.clients.pop_session(&mut self.catch_up.runnable) else {
                return;
            };
            self.run_awake(key, steps);
        }
    }

    pub(super) fn run_awake(&mut self, key: SessionKey, steps: &mut usize) {
        match self.run_session(key, steps) {
            Progress::Unfinished => self.wake(Waiter::Session(key)),
            // Whatever the session has to send before new records.
            Progress::Finished => {
                self.catch_up.forget(Waiter::Session(key));
                if let Some(session) = self.clients.session(key) {
                    self.groups.wake_for(key, session);
                }
            }
            Progress::NoRoom | Progress::Waits => {}
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
            Self::read_own,
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

    /// Reads the session's own records. Retained messages that need not wait for them go first: a narrow window may be
    /// full of records of another partition for long.
    fn read_own(&mut self, key: SessionKey, conn: ConnKey, steps: &mut usize) -> Progress {
        self.send_retained_early(key, conn, steps);
        let progress = self.run_cursors(Waiter::Session(key), None, steps);
        if progress == Progress::NoRoom {
            self.send_retained_early(key, conn, steps);
        }
        progress
    }

    /// Reads on in every partition where a reader is behind.
    pub(super) fn run_cursors(
        &mut self,
        waiter: Waiter,
        replay: Option<u16>,
        steps: &mut usize,
    ) -> Progress {
        let mut place = 0;
        let mut result = Progress::Finished;
        loop {
            let Some(mut reading) = self.reading_at(waiter, replay, place) else {
                return result;
            };
            let progress = self.read_on(&mut reading, steps);
            let Cursor {
                partition, next, ..
            } = reading.cursor;
            let is_live = next >= self.delivery.live_at(partition);
            let Some(cursors) = self.cursors(waiter, replay) else {
                return Progress::NoRoom;
            };
            if progress == Progress::Finished && is_live && replay.is_none() {
                cursors.remove(place);
                if let Waiter::Group(id) = waiter {
                    self.groups.end_skips(id, partition);
                }
                continue;
            }
            cursors.move_to(place, next);
            match progress {
                // The read is for this partition, so it goes first when the read is granted.
                Progress::Waits => {
                    cursors.begin_at(place);
                    return progress;
                }
                Progress::Unfinished if *steps > 0 => result = progress,
                // The next time another partition goes first, so that a narrow window serves all of them.
                Progress::NoRoom | Progress::Unfinished => {
                    cursors.begin_at(place.max(1));
                    return progress;
                }
                Progress::Finished => {}
            }
            place += 1;
        }
    }

    fn cursors(&mut self, waiter: Waiter, replay: Option<u16>) -> Option<&mut Cursors> {
        let session = match waiter {
            Waiter::Group(id) => return Some(&mut self.groups.get_mut(id)?.behind),
            Waiter::Session(key) => self.clients.session_mut(key)?,
        };
        let Some(number) = replay else {
            return Some(&mut session.behind);
        };
        let mut replays = session.extras.present_mut()?.replays.iter_mut();
        let replay = replays.find(|replay| replay.number == number)?;
        Some(&mut replay.cursors)
    }

    fn reading_at(&mut self, waiter: Waiter, replay: Option<u16>, place: usize) -> Option<Reading> {
        let cursor = self.cursors(waiter, replay)?.get(place)?;
        let partition = cursor.partition;
        let until = match waiter {
            Waiter::Group(_) => Offset(u64::MAX),
            Waiter::Session(key) => self.clients.session(key)?.ends_at(replay, partition),
        };
        let id = ReaderId {
            waiter,
            partition,
            replay,
        };
        Some(Reading { id, cursor, until })
    }

    /// Reads on from one position, with at most one read, and sends the records that are wanted.
    fn read_on(&mut self, reading: &mut Reading, steps: &mut usize) -> Progress {
        let ReaderId {
            waiter, partition, ..
        } = reading.id;
        let until = self.delivery.live_at(partition).min(reading.until);
        if reading.cursor.next >= until {
            return Progress::Finished;
        }
        if *steps == 0 {
            return Progress::Unfinished;
        }
        *steps -= 1;
        self.begin_at_log_start(reading);
        let batches = match self.read_for(reading, until, steps) {
            Ok(Next::Batches(batches)) => batches,
            Ok(Next::Nothing(below)) => {
                reading.cursor.next = reading.cursor.next.max(below);
                return reading.progress(until);
            }
            Ok(Next::Waits) => return Progress::Waits,
            Err(error) if is_passing(&error) => {
                self.retry_later(waiter, &error);
                // The other partitions go first meanwhile.
                return Progress::NoRoom;
            }
            Err(error) => {
                reading.skip(&error, until);
                return reading.progress(until);
            }
        };
        if matches!(waiter, Waiter::Group(_)) {
            // Giving costs more than delivering: rights are checked, and members may be full.
            *steps = steps.saturating_sub(READ_STEPS - 1);
        }
        let sent_before = self.observe.counted(Count::PublishSentBytes);
        let mut stopped = None;
        let is_due = |batch: &&Batch| batch.base_offset() < until;
        for batch in batches.iter().take_while(is_due) {
            *steps = steps.saturating_sub(batch.len() / STEP_RECORDS);
            stopped = match waiter {
                Waiter::Session(key) => self.deliver_batch(key, reading, (batch, until), steps),
                Waiter::Group(id) => self.give_batch(id, reading, (batch, until)),
            };
            if stopped.is_some() {
                break;
            }
        }
        let sent = self.observe.counted(Count::PublishSentBytes) - sent_before;
        *steps = steps.saturating_sub(usize::try_from(sent).unwrap_or(0) / STEP_BYTES);
        let (cache, now_ms) = (&mut self.catch_up.batch_cache, self.env.now.mono_ms);
        cache.note_sent(sent);
        match stopped {
            Some(_) => cache.stop(waiter, (partition, reading.cursor.next), now_ms),
            None => cache.resume_at(waiter, now_ms),
        }
        stopped.unwrap_or_else(|| reading.progress(until))
    }

    /// Retention does not wait for MQTT clients: a reader that is too far behind continues at the start of the log.
    fn begin_at_log_start(&self, reading: &mut Reading) {
        let partition = &self.env.partitions[reading.cursor.partition.index()];
        let log_start = partition.log_start();
        if reading.cursor.next < log_start {
            tracing::warn!(
                partition = partition.name(),
                from = reading.cursor.next.0,
                to = log_start.0,
                reader = ?reading.id,
                "a reader continues at the log start: retention removed records that it had not read"
            );
            let expired = log_start.0 - reading.cursor.next.0;
            self.env.metrics.mqtt.records_expired.inc_by(expired);
            reading.cursor.next = log_start;
        }
    }
}
