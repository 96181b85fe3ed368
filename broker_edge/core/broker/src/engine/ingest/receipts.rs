//! Receipts: when the device named by a control topic acknowledges a command, a record is published to `$receipts`.
//!
//! A receipt is an ordinary record. The session's cursor does not pass the command before the receipt is durable, so
//! after a crash in between the command is delivered and acknowledged once more.

use std::rc::Rc;

use serde::Serialize;

use crate::engine::SessionKey;
use crate::engine::ids::Commit;
use crate::engine::observe::Count;
use crate::engine::session::PendingReceipt;
use crate::engine::session::window::Inflight;

use super::own::{OwnRecord, OwnRecords};

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

impl OwnRecords<'_> {
    /// Stages the receipt of a command that the client acknowledged under this packet id.
    pub fn append_receipt(&mut self, key: SessionKey, packet_id: u16, sent: Inflight) {
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
        self.observe.count(Count::Receipts, 1);
        self.stage_receipts(key);
    }

    /// The log refused an append: the receipts in it are staged again at the next checkpoint.
    pub fn unstage_receipts(&mut self, commit: Commit, sessions: &[SessionKey]) {
        for key in sessions {
            let session = self.clients.session_mut(*key);
            let extras = session.and_then(|session| session.extras.present_mut());
            for receipt in extras.into_iter().flat_map(|extras| &mut extras.receipts) {
                receipt.staged.take_if(|staged| *staged == commit);
            }
        }
    }

    /// Stages receipts that are not staged yet, and forgets those that are durable.
    pub fn stage_receipts(&mut self, key: SessionKey) {
        let Some(session) = self.clients.session_mut(key) else {
            return;
        };
        if session.extras.receipts.is_empty() {
            return;
        }
        let ingest = &*self.ingest;
        session.extras.receipts.retain(|receipt| {
            receipt
                .staged
                .is_none_or(|staged| !ingest.is_settled(staged))
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
            if let Some(staged) = staged {
                self.ingest.note_receipt(staged, key);
            }
            if let Some(receipt) = self
                .clients
                .session_mut(key)
                .and_then(|session| session.extras.receipts.get_mut(index))
            {
                receipt.staged = staged;
            }
            self.effects.note_more(true);
        }
    }
}
