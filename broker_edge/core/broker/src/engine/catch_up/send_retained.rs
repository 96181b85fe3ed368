//! Sends retained messages to new subscribers: read from the log or the state store, sent with the retain flag.
//!
//! No client gets an older value of a topic after a newer one: a retained message goes behind the records of its
//! partition that precede it, and before those published after the SUBSCRIBE. It need not wait for other partitions.

use std::sync::Arc;

use headwater_log::{Epoch, Headers, Offset, RecordView};

use crate::auth::Access;
use crate::engine::delivery::is_passing;
use crate::engine::delivery::sender::{Delivered, Packet, Sender};
use crate::engine::ids::Waiter;
use crate::engine::retained::RecordRef;
use crate::engine::retained::retained_cursor::{NextValue, RetainedCursor, Value};
use crate::engine::routing::topics::EffectiveOptions;
use crate::engine::session::window::Source;
use crate::engine::stored::{self, decode, from_hex};
use crate::engine::{ConnKey, SessionKey};

use super::CatchingUp;
use super::read_retry::Recent;
use super::readers::Progress;

/// So many of the subscriptions that wait are looked at for messages that can go early.
const EARLY_MAX: usize = 8;

/// Which messages are sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    All,
    /// Up to the first whose partition the session has not read that far.
    Early,
}

impl CatchingUp<'_> {
    /// Sends retained messages whose partitions the session has read up to them, while it is behind in others.
    pub(super) fn send_retained_early(
        &mut self,
        key: SessionKey,
        conn: ConnKey,
        steps: &mut usize,
    ) {
        let is_answered = self
            .clients
            .conn(conn)
            .is_some_and(|conn| conn.subacks_pending == 0);
        let mut place = 0;
        while is_answered && place < EARLY_MAX && *steps > 0 {
            let Some(mut cursor) = self.take_retained_cursor(key, place) else {
                return;
            };
            let progress = self.send_from_cursor(key, conn, &mut cursor, Which::Early, steps);
            let Some(session) = self
                .clients
                .session_mut(key)
                .filter(|of| of.conn == Some(conn))
            else {
                return;
            };
            match progress {
                Progress::Finished => session.extras.trim(),
                Progress::Waits | Progress::NoRoom | Progress::Unfinished => {
                    session.extras.retained.insert(place, cursor);
                    place += 1;
                }
            }
            if matches!(progress, Progress::NoRoom | Progress::Unfinished) {
                return;
            }
        }
    }

    /// Sends the retained messages that new subscriptions wait for.
    pub(super) fn send_retained(
        &mut self,
        key: SessionKey,
        conn: ConnKey,
        steps: &mut usize,
    ) -> Progress {
        let Some(session) = self.clients.session(key) else {
            return Progress::NoRoom;
        };
        if !session.has_pending_retained() {
            return Progress::Finished;
        }
        let is_answered = |this: &Self| Some(this.clients.conn(conn)?.subacks_pending == 0);
        if is_answered(self) != Some(true) {
            return Progress::NoRoom;
        }
        loop {
            let Some(mut cursor) = self.take_retained_cursor(key, 0) else {
                return Progress::Finished;
            };
            let progress = self.send_from_cursor(key, conn, &mut cursor, Which::All, steps);
            let Some(session) = self.clients.session_mut(key) else {
                return Progress::NoRoom;
            };
            if progress != Progress::Finished {
                // After a lost connection nothing more is sent.
                if session.conn == Some(conn) {
                    session.extras.retained.push_front(cursor);
                }
                return progress;
            }
            session.extras.trim();
            if !session.behind.is_empty() {
                // Records published in between, up to the next SUBSCRIBE.
                *steps = steps.saturating_sub(1);
                return Progress::Unfinished;
            }
            // The next one may be long in finding nothing.
            if *steps == 0 {
                return Progress::Unfinished;
            }
        }
    }

    fn take_retained_cursor(&mut self, key: SessionKey, place: usize) -> Option<RetainedCursor> {
        let session = self.clients.session_mut(key)?;
        session.extras.present_mut()?.retained.remove(place)
    }

    fn send_from_cursor(
        &mut self,
        key: SessionKey,
        conn: ConnKey,
        cursor: &mut RetainedCursor,
        which: Which,
        steps: &mut usize,
    ) -> Progress {
        let session = self.clients.session(key);
        let Some(held) = session.and_then(|session| session.subscription(&cursor.filter)) else {
            return Progress::Finished;
        };
        let effective = EffectiveOptions {
            no_local: false,
            ..EffectiveOptions::of(std::iter::once(held.options))
        };
        let mut recent = Recent::default();
        loop {
            let Some(session) = self.clients.session(key) else {
                return Progress::NoRoom;
            };
            let may = |topic: &str| session.may(Access::Receive, topic);
            let value = match cursor.find(&self.retained.lock(), may, steps) {
                NextValue::Value(value) => value,
                NextValue::Nothing => return Progress::Finished,
                NextValue::Unfinished => return Progress::Unfinished,
            };
            if *steps == 0 {
                return Progress::Unfinished;
            }
            if which == Which::Early && self.is_early(key, value.at) != Some(true) {
                return Progress::Waits;
            }
            let sent = self.send_retained_value(key, conn, &value, &effective, &mut recent, steps);
            if sent == Delivered::NoRoom {
                return Progress::NoRoom;
            }
            cursor.pass();
        }
    }

    /// Whether the session has read the partition of a retained message up to it. If not, it reads that one next.
    fn is_early(&mut self, key: SessionKey, at: RecordRef) -> Option<bool> {
        let behind = &mut self.clients.session_mut(key)?.behind;
        let is_read = behind
            .next(at.partition)
            .is_none_or(|next| next > at.offset);
        if !is_read {
            behind.begin_with(at.partition);
        }
        Some(is_read)
    }

    /// Reads one retained message, from the batch read last if possible, and delivers it.
    fn send_retained_value(
        &mut self,
        key: SessionKey,
        conn: ConnKey,
        value: &Value,
        effective: &EffectiveOptions,
        recent: &mut Recent,
        steps: &mut usize,
    ) -> Delivered {
        let RecordRef { partition, offset } = value.at;
        let packet_of = |record| Packet {
            record,
            batch: None,
            partition,
            effective,
            source: Source::Retained,
            retain: true,
        };
        if value.stored {
            *steps = steps.saturating_sub(1);
            let Some(stored) = self.stored_retained(&value.topic) else {
                return Delivered::Skipped;
            };
            return lend!(self => Sender).deliver(key, conn, &packet_of(&stored.view()));
        }
        *steps = steps.saturating_sub(usize::from(!recent.holds((partition, offset))));
        let batch = match self.read_one((partition, offset), recent) {
            Ok(Some(batch)) => batch,
            Err(error) if is_passing(&error) => {
                return self.retry_later(Waiter::Session(key), &error);
            }
            Ok(None) | Err(_) => return Delivered::Skipped,
        };
        let record = batch.record((offset.0 - batch.base_offset().0) as usize);
        lend!(self => Sender).deliver(key, conn, &packet_of(&record))
    }

    pub(super) fn stored_retained(&self, topic: &Arc<str>) -> Option<OwnedRecord> {
        let value = self.store.get(&stored::retained::key(topic))?;
        let value: stored::retained::Value = decode(&value).ok()?;
        Some(OwnedRecord {
            topic: Arc::clone(topic),
            properties: from_hex(&value.properties)?,
            payload: from_hex(&value.payload)?,
            value,
        })
    }
}

/// A retained message read from the state store.
pub(super) struct OwnedRecord {
    topic: Arc<str>,
    value: stored::retained::Value,
    properties: Vec<u8>,
    payload: Vec<u8>,
}

impl OwnedRecord {
    pub(super) fn view(&self) -> RecordView<'_> {
        RecordView {
            offset: Offset(self.value.offset),
            epoch: Epoch(0),
            time_us: self.value.time_us,
            topic_index: 0,
            topic: &self.topic,
            key: self.topic.as_bytes(),
            client_id: &self.value.client_id,
            qos: self.value.qos,
            retain: true,
            purged: false,
            idempotency_key: None,
            properties: &self.properties,
            headers: Headers::default(),
            publish_id: None,
            payload: &self.payload,
        }
    }
}
