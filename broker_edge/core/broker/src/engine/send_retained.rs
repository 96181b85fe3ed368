//! Retained values on their way to a new subscriber: read where they are, sent with the retain flag.
//!
//! Which they are was decided at the SUBSCRIBE; a topic whose value has changed since is left out, because the new value
//! comes as a live record.

use std::sync::Arc;

use headwater_log::{Batch, Epoch, Headers, Offset, RecordView};

use crate::auth::Access;

use super::catch_up::Progress;
use super::deliver::{Delivered, Delivery};
use super::retained::{Place, StoredValue, from_hex, state_key};
use super::topics::Merged;
use super::unread::is_passing;
use super::window::Source;
use super::{ConnKey, Engine, SessionKey};

impl Engine {
    /// Works off the retained values that new subscriptions are owed.
    pub(super) fn send_retained(
        &mut self,
        key: SessionKey,
        conn: ConnKey,
        steps: &mut usize,
    ) -> Progress {
        if self
            .conns
            .get(conn)
            .is_none_or(|conn| conn.subacks_owed > 0)
        {
            return Progress::NoRoom;
        }
        let mut recent: Option<Batch> = None;
        loop {
            let Some(session) = self.sessions.get_mut(key) else {
                return Progress::NoRoom;
            };
            let Some(work) = session.extras.retained.front_mut() else {
                return Progress::Finished;
            };
            let Some(place) = work.values.front().cloned() else {
                session.extras.retained.pop_front();
                continue;
            };
            let options = session
                .subscription(&session.extras.retained[0].filter)
                .map(|held| held.options);
            let may_receive = session.may(Access::Receive, &place.topic);
            let merged = Merged {
                no_local: false,
                ..Merged::of(options.into_iter())
            };
            let unchanged = self
                .retained
                .lock()
                .get(&place.topic)
                .is_some_and(|now| now.offset == place.offset);
            if unchanged && options.is_some() && may_receive {
                if *steps == 0 {
                    return Progress::Unfinished;
                }
                if self.send_retained_value(key, conn, &place, &merged, &mut recent, steps)
                    == Delivered::NoRoom
                {
                    return Progress::NoRoom;
                }
            }
            if let Some(work) = self
                .sessions
                .get_mut(key)
                .and_then(|session| session.extras.retained.front_mut())
            {
                work.values.pop_front();
            }
        }
    }

    /// Reads one retained value, from the batch that was read last where it can, and delivers it.
    fn send_retained_value(
        &mut self,
        key: SessionKey,
        conn: ConnKey,
        place: &Place,
        merged: &Merged,
        recent: &mut Option<Batch>,
        steps: &mut usize,
    ) -> Delivered {
        let (partition, source) = (place.partition, Source::Retained);
        if place.stored {
            *steps = steps.saturating_sub(1);
            let Some(stored) = self.stored_retained(&place.topic) else {
                return Delivered::Skipped;
            };
            let record = stored.view();
            return self.deliver(
                key,
                conn,
                &Delivery {
                    record: &record,
                    batch: None,
                    partition,
                    merged,
                    source,
                    retain: true,
                },
            );
        }
        let within = |batch: &Batch| {
            batch.base_offset() <= place.offset && place.offset < batch.next_offset()
        };
        let batch = match recent.take().filter(within) {
            Some(batch) => batch,
            None => {
                *steps = steps.saturating_sub(1);
                match self.read_one(partition, place.offset) {
                    Ok(Some((batch, _))) => batch,
                    Err(error) if is_passing(&error) => return self.retry_later(key, &error),
                    Ok(None) | Err(_) => return Delivered::Skipped,
                }
            }
        };
        let index = (place.offset.0 - batch.base_offset().0) as usize;
        let record = batch.record(index);
        // Another partition may have a batch with the same offsets.
        let delivered = if *record.topic == *place.topic {
            self.deliver(
                key,
                conn,
                &Delivery {
                    record: &record,
                    batch: None,
                    partition,
                    merged,
                    source,
                    retain: true,
                },
            )
        } else {
            let (batch, index) = match self.read_one(partition, place.offset) {
                Ok(Some(found)) => found,
                Err(error) if is_passing(&error) => return self.retry_later(key, &error),
                Ok(None) | Err(_) => return Delivered::Skipped,
            };
            let record = batch.record(index);
            self.deliver(
                key,
                conn,
                &Delivery {
                    record: &record,
                    batch: None,
                    partition,
                    merged,
                    source,
                    retain: true,
                },
            )
        };
        *recent = Some(batch);
        delivered
    }

    pub(super) fn stored_retained(&self, topic: &Arc<str>) -> Option<OwnedRecord> {
        let text = self.state.get(&state_key(topic))?;
        let value: StoredValue = serde_json::from_slice(&text).ok()?;
        Some(OwnedRecord {
            topic: Arc::clone(topic),
            properties: from_hex(&value.properties)?,
            payload: from_hex(&value.payload)?,
            value,
        })
    }
}

/// A retained value that came from the state store.
pub(super) struct OwnedRecord {
    topic: Arc<str>,
    value: StoredValue,
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
