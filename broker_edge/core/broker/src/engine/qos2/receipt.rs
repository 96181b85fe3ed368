//! Receipts: when the device named by a control topic acknowledges a command, a record is published to `$receipts`.
//!
//! A receipt is an ordinary record. The session's cursor does not pass the command before the receipt is durable, so
//! after a crash in between the command is delivered and acknowledged once more.

use std::rc::Rc;

use headwater_log::RecordView;
use headwater_mqtt::{PacketId, ReasonCode};
use serde::Serialize;

use crate::engine::effects::Cause;
use crate::engine::ids::{PartitionIndex, Ticket};
use crate::engine::protocol::publish::OwnRecord;
use crate::engine::session::window::Inflight;
use crate::engine::session::{Command, PendingReceipt};
use crate::engine::{ConnKey, Engine, SessionKey};

const TOPIC: &str = "$receipts";

/// The value of a receipt.
#[derive(Debug, Serialize)]
struct Receipt<'a> {
    client_id: &'a str,
    topic: &'a str,
    key: String,
    idempotency_key: Option<&'a str>,
    partition: u16,
    name: &'a str,
    offset: u64,
    time_us: i64,
}

/// The device that a control topic names.
#[inline]
pub fn device_of(topic: &str) -> Option<&str> {
    let device = topic.strip_prefix("devices/")?.strip_suffix("/actions")?;
    (!device.is_empty() && !device.contains('/')).then_some(device)
}

impl Command {
    pub fn of(packet_id: u16, record: &RecordView<'_>) -> Self {
        Self {
            packet_id,
            topic: record.topic.into(),
            key: record.key.into(),
            idempotency_key: record.idempotency_key.map(Into::into),
        }
    }
}

impl Engine {
    /// A client acknowledged a delivery.
    #[inline]
    pub(in crate::engine) fn handle_puback(&mut self, key: ConnKey, packet_id: PacketId) {
        let Some((session_key, session)) = self.clients.attached(key) else {
            return;
        };
        let Some(sent) = session.window.ack(packet_id.get()) else {
            if session.window.flight(packet_id.get()).is_some() {
                self.close(key, Cause::Reason(ReasonCode::ProtocolError));
            }
            return;
        };
        if !session.replays.is_empty() {
            session.drop_finished_replays();
        }
        if (session.stored || sent.receipt) && !session.dirty {
            session.dirty = true;
            self.store.dirty.push(session_key);
        }
        let wakes = session.has_work() || session.is_member();
        if sent.receipt {
            self.append_receipt(session_key, packet_id.get(), sent);
        }
        if wakes {
            self.settle_shared(sent, false);
            self.wake_session(session_key);
        }
    }

    pub(super) fn append_receipt(&mut self, key: SessionKey, packet_id: u16, sent: Inflight) {
        let time_us = self.env.now.wall_us;
        let Some(session) = self.clients.session_mut(key) else {
            return;
        };
        let Some(at) = session
            .extras
            .commands
            .iter()
            .position(|command| command.packet_id == packet_id)
        else {
            return;
        };
        let command = session.extras.commands.swap_remove(at);
        let receipt = Receipt {
            client_id: &session.client_id,
            topic: &command.topic,
            key: String::from_utf8_lossy(&command.key).into_owned(),
            idempotency_key: command.idempotency_key.as_deref(),
            partition: sent.partition.0,
            name: self.env.partitions[sent.partition.index()].name(),
            offset: sent.offset.0,
            time_us,
        };
        let value = serde_json::to_vec(&receipt).expect("a plain structure becomes JSON");
        session.extras.receipts.push(PendingReceipt {
            partition: sent.partition,
            offset: sent.offset,
            value: value.into(),
            staged: None,
        });
        self.observe.turn_metrics.receipts += 1;
        self.stage_receipts(key);
    }

    /// The log refused the tickets from `first` on: the receipts among them are staged again at the next checkpoint.
    pub(in crate::engine) fn unstage_receipts(&mut self, partition: PartitionIndex, first: Ticket) {
        for key in self.store.dirty.clone() {
            let Some(session) = self.clients.session_mut(key) else {
                continue;
            };
            let receipts = session
                .extras
                .present_mut()
                .map(|extras| &mut extras.receipts);
            for receipt in receipts.into_iter().flatten() {
                if receipt
                    .staged
                    .is_some_and(|(of, ticket)| of == partition && ticket >= first)
                {
                    receipt.staged = None;
                }
            }
        }
    }

    /// Stages receipts that are not staged yet, and forgets those that are durable.
    pub(in crate::engine) fn stage_receipts(&mut self, key: SessionKey) {
        let Some(session) = self.clients.session_mut(key) else {
            return;
        };
        if session.extras.receipts.is_empty() {
            return;
        }
        let stages = &self.ingest.stages;
        session.extras.receipts.retain(|receipt| {
            receipt
                .staged
                .is_none_or(|(partition, ticket)| stages[partition.index()].settled() <= ticket)
        });
        let client_id = Rc::clone(&session.client_id);
        for index in 0.. {
            let Some(receipt) = self
                .clients
                .session(key)
                .and_then(|session| session.extras.receipts.get(index))
            else {
                return;
            };
            if receipt.staged.is_some() {
                continue;
            }
            let value = receipt.value.clone();
            let staged = self.stage_own(&OwnRecord {
                topic: TOPIC,
                client_id: &client_id,
                key: Some(client_id.as_bytes()),
                qos: 1,
                retain: false,
                properties: &[],
                payload: &value,
            });
            if let Some(receipt) = self
                .clients
                .session_mut(key)
                .and_then(|session| session.extras.receipts.get_mut(index))
            {
                receipt.staged = staged;
            }
            self.effects.more = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_actions_topic_names_a_device() {
        assert_eq!(device_of("devices/d1/actions"), Some("d1"));
        for topic in [
            "devices/d1/status",
            "devices//actions",
            "devices/a/b/actions",
            "x/devices/d/actions",
            "devices/actions",
        ] {
            assert_eq!(device_of(topic), None, "{topic}");
        }
    }
}
