//! Delayed wills in the state store: written with their sessions, and removed once their records are durable.

use std::rc::Rc;
use std::sync::Arc;

use headwater_log::Offset;

use crate::engine::SessionKey;
use crate::engine::clients::Clients;
use crate::engine::clients::timers::Timer;
use crate::engine::env::Env;
use crate::engine::ids::PartitionIndex;
use crate::engine::session::Session;
use crate::engine::session::connection::Will;
use crate::engine::stored::{self, KeyValue, decode, encode, from_hex, to_hex};

use super::Store;
use super::checkpoint::Checkpointing;

/// A stored will that is done with: it was published, or refused.
#[derive(Debug)]
pub struct SettledWill {
    pub client_id: Rc<str>,
    /// The will stays stored until this record is durable; `None` for a refused one.
    pub record: Option<(PartitionIndex, Offset)>,
}

/// The value of the session's will for the state store, if it has changed; an empty value removes it.
pub fn will_change(session: &Session) -> Option<KeyValue> {
    let away = session.offline.as_ref();
    let waiting = away
        .and_then(|away| away.will.as_ref())
        .and_then(|(_, will)| {
            let (due_us, token) = will.waits.as_ref()?;
            Some(stored::will::Will {
                due_us: *due_us,
                token: token.to_string(),
                topic: will.topic.to_string(),
                qos: will.qos,
                retain: will.retain,
                is_by_files: will.is_by_files,
                properties: to_hex(&will.properties),
                payload: to_hex(&will.payload),
            })
        });
    match (waiting, session.will_stored) {
        (Some(will), false) => Some((stored::will::key(&session.client_id), encode(&will))),
        (None, true) => Some((stored::will::key(&session.client_id), Vec::new())),
        _ => None,
    }
}

impl Store {
    /// A stored will is done with: it is removed once its record, if any, is durable.
    pub fn note_settled(&mut self, will: SettledWill) {
        self.settled_wills.push(will);
    }

    /// Removes the stored wills that are refused, or whose records are durable. Called with each checkpoint and at the
    /// clean stop.
    pub fn forget_settled_wills(&mut self, clients: &Clients, env: &Env) {
        let is_durable = |settled: &SettledWill| {
            settled.record.is_none_or(|(partition, offset)| {
                env.partitions[partition.index()].high_watermark() > offset
            })
        };
        if !self.settled_wills.iter().any(is_durable) {
            return;
        }
        let all = std::mem::take(&mut self.settled_wills);
        let (durable, waiting): (Vec<_>, Vec<_>) = all.into_iter().partition(is_durable);
        self.settled_wills = waiting;
        let mut removed: Vec<KeyValue> = Vec::new();
        for settled in &durable {
            let session = clients.by_id(&settled.client_id);
            // The client may have left another will since, which has replaced it.
            if session.is_none_or(|session| !session.will_stored) {
                removed.push((stored::will::key(&settled.client_id), Vec::new()));
            }
        }
        let failure = "wills that are done with cannot be removed from the state store now";
        if !self.try_write(&removed, failure) {
            self.settled_wills.extend(durable);
        }
    }

    /// The wills of sessions that ended together with the broker, by client id.
    pub fn left_wills(&self, clients: &Clients) -> Vec<(Rc<str>, Will)> {
        let mut left = Vec::new();
        self.state
            .for_each_prefix(stored::will::PREFIX, |key, value| {
                let client_id = &key[stored::will::PREFIX.len()..];
                if clients.key_by_id(client_id).is_none() {
                    left.push((Rc::<str>::from(client_id), Arc::clone(value)));
                }
            });
        let read = |(client_id, value): (Rc<str>, Arc<[u8]>)| {
            let (_, will) = read_will(&value, &client_id)?;
            Some((client_id, will))
        };
        left.into_iter().filter_map(read).collect()
    }
}

impl Checkpointing<'_> {
    /// The delayed will of a restored session.
    pub(super) fn restore_will(&mut self, key: SessionKey) {
        let now = self.env.now;
        let Some(session) = self.clients.session_mut(key) else {
            return;
        };
        let Some(value) = self.store.get(&stored::will::key(&session.client_id)) else {
            return;
        };
        session.will_stored = true;
        let Some((due_us, will)) = read_will(&value, &session.client_id) else {
            return;
        };
        let left_ms = u64::try_from(due_us.saturating_sub(now.wall_us)).unwrap_or(0) / 1000;
        let due_ms = now.mono_ms + left_ms;
        if let Some(away) = &mut session.offline {
            away.will = Some((due_ms, Box::new(will)));
        }
        self.clients.set_timer(due_ms, Timer::Will(key));
    }
}

/// A stored will, and when it is due.
fn read_will(value: &[u8], client_id: &str) -> Option<(i64, Will)> {
    let read = decode::<stored::will::Will>(value).ok().and_then(|stored| {
        Some(Will {
            topic: stored.topic.into(),
            payload: from_hex(&stored.payload)?.into(),
            properties: from_hex(&stored.properties)?.into(),
            qos: stored.qos,
            retain: stored.retain,
            delay_s: 0,
            waits: Some((stored.due_us, stored.token.into())),
            is_restored: true,
            is_by_files: stored.is_by_files,
        })
    });
    let Some(will) = read else {
        tracing::error!(client_id, "a stored will cannot be read and is lost");
        return None;
    };
    Some((will.waits.as_ref()?.0, will))
}
