//! What follows from an append: records that became durable are acknowledged, and those that were refused are answered.

use headwater_log::{AppendError, Offset, failpoint};
use headwater_mqtt::ReasonCode;

use crate::engine::ConnKey;
use crate::engine::delivery::replies::Replies;
use crate::engine::effects::{Cause, Effect};
use crate::engine::ids::Commit;
use crate::engine::ingest::own::OwnRecords;
use crate::engine::ingest::stage::{Outcome, Refused};
use crate::engine::observe::Count;
use crate::engine::session::pauses::Pause;

use super::Acknowledging;

impl Acknowledging<'_> {
    /// Records were accepted or refused.
    pub fn appended(&mut self, outcome: Outcome) {
        let commit = outcome.commit;
        match outcome.result {
            Ok(base) => self.locate(commit, base),
            Err(refused) => self.refuse(commit, *refused),
        }
        if outcome.was_stalled {
            self.resume_publishers();
        }
    }

    /// Lets publishers go on for which there is room in the queue of their partition.
    fn resume_publishers(&mut self) {
        for (partition, key) in self.ingest.take_waiting() {
            self.clients.resume(key, Pause::Queue(partition), self.env);
        }
    }

    /// Tells publishers that asked for it the offsets of their records.
    fn locate(&mut self, commit: Commit, base: Offset) {
        for conn in self.ingest.publishers_of(commit) {
            if let Some(conn) = self.clients.conn_mut(*conn)
                && conn.stream_ack
            {
                conn.acks.locate(commit, base);
            }
        }
    }

    fn refuse(&mut self, commit: Commit, refused: Refused) {
        let reason = match refused.error {
            AppendError::TooLarge { .. } => ReasonCode::PacketTooLarge,
            AppendError::ReadOnly { .. } => ReasonCode::UnspecifiedError,
            _ => ReasonCode::QuotaExceeded,
        };
        let publishes = refused.publishes;
        self.observe.count(Count::PublishesRefused, publishes);
        self.observe.refuse_several("puback", reason, publishes);
        self.qos2
            .free_refused(commit, refused.exactly_once, self.clients);
        lend!(self => OwnRecords).unstage_receipts(commit, &refused.receipts);
        let mut conns = refused.conns;
        conns.sort_unstable();
        conns.dedup();
        for key in conns {
            let Some(conn) = self.clients.conn_mut(key) else {
                continue;
            };
            let can_refuse = conn.is_v5();
            conn.acks.refuse(commit, reason, can_refuse);
            lend!(self => Replies).send_ready(key);
        }
    }

    /// Sends the acknowledgements of what is durable.
    pub fn settle(&mut self) {
        let (conns, stopped) = self.ingest.settle(self.env);
        for (partition, waiting) in stopped {
            self.qos2
                .free_abandoned(partition, self.ingest, self.clients);
            self.close_each(waiting, ReasonCode::UnspecifiedError);
        }
        if !conns.is_empty() {
            failpoint!("before-ack");
        }
        self.send_ready_to(conns);
        self.settle_state();
        self.resume_publishers();
    }

    /// Lets everything go on that waited for state that is durable now.
    fn settle_state(&mut self) {
        let conns = self.ingest.settle_state(self.env);
        self.send_ready_to(conns);
        let sessions = self.store.settle(self.env);
        self.send_releases();
        for key in sessions {
            // Behind the wakes of the connections that settled before.
            self.effects.push(Effect::Wake(key));
            if let Some(conn) = self.clients.conn_of(key) {
                lend!(self => Replies).send_ready(conn);
            }
        }
        let in_vain = self.store.abandon_if_stopped(self.ingest, self.clients);
        self.close_each(in_vain, ReasonCode::UnspecifiedError);
    }

    fn send_ready_to(&mut self, conns: Vec<ConnKey>) {
        for key in conns {
            lend!(self => Replies).send_ready(key);
        }
    }

    fn close_each(&mut self, conns: Vec<ConnKey>, reason: ReasonCode) {
        for key in conns {
            let cause = Cause::Reason(reason);
            self.clients.close(key, cause, self.env, self.effects);
        }
    }

    /// Closes the connections whose records have waited too long for a full disk. The records may still be written, so
    /// neither an acknowledgement nor a refusal would be true; a client that reconnects learns the truth.
    pub fn close_waits_on_full(&mut self) {
        let conns = self.ingest.waits_on_full(self.env.now.mono_ms);
        self.close_each(conns, ReasonCode::QuotaExceeded);
    }
}
