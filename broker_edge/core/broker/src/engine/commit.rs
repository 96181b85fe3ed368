//! The end of a turn's protocol work: staged records go to the log, and records that became durable are acknowledged.

use headwater_log::{AppendError, Offset, failpoint};
use headwater_mqtt::ReasonCode;

use crate::engine::delivery::replies::Replies;
use crate::engine::effects::Cause;
use crate::engine::ingest::own::OwnRecords;
use crate::engine::ingest::stage::{Outcome, Refused};
use crate::engine::observe::Gauges;
use crate::engine::operate::sys::SysTopics;
use crate::engine::qos2::Acknowledging;
use crate::engine::session::pauses::Pause;
use crate::engine::session_store::checkpoint::Checkpointing;

use super::ids::Commit;
use super::{ConnKey, Engine};

impl Engine {
    /// The whole commit of a turn. Afterwards the connections hold what is to be sent.
    pub fn commit(&mut self) {
        self.commit_live();
        self.commit_late();
    }

    /// Appends, settles and dispatches: the work that publishers and the live stream wait for.
    pub fn commit_live(&mut self) {
        self.append_all();
        // As in Mosquitto, a publisher that also subscribes gets its message before the PUBACK of QoS 1, and after the
        // PUBREC of QoS 2.
        if self.ingest.look(&self.env) {
            self.settle();
            self.dispatch();
        } else {
            self.dispatch();
            self.settle();
        }
    }

    /// Lets sessions that are behind catch up, and does the rest of a turn's work.
    pub fn commit_late(&mut self) {
        self.catch_up();
        // Receipts and wills staged above need not wait for another turn.
        self.append_all();
        lend!(self => Acknowledging).release_receipted();
        self.drain();
        lend!(self => Checkpointing).write_state_commit();
        self.drain();
        self.clients.copy_held_payloads();
        self.clients.wake_budget_waits(&self.env);
        lend!(self => SysTopics).send_pending();
        self.protocol
            .drain_some(&mut self.clients, &self.env, &mut self.effects);
        self.drain();
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let present = Gauges {
            connections: count(self.clients.conns.len()),
            sessions: count(self.clients.sessions.len()),
            session_bytes: i64::try_from(self.quotas.session_bytes()).unwrap_or(i64::MAX),
            subscriptions: count(self.routing.subscriptions()),
            shared_groups: count(self.groups.len()),
            draining: i64::from(self.protocol.is_draining()),
        };
        self.observe.turn_metrics.shared_rights_checks += self.groups.take_looks();
        self.observe.publish(present);
    }

    /// Whether the loop should read more sockets first, because the commit would block it for several publishers.
    pub fn will_hold_up_several(&self) -> bool {
        self.ingest.will_hold_up_several(&self.env)
    }

    fn append_all(&mut self) {
        self.ingest.append_all(&self.env, &mut self.effects);
        self.drain();
    }

    /// Records were accepted or refused.
    pub(super) fn appended(&mut self, outcome: Outcome) {
        let commit = outcome.commit;
        match outcome.result {
            Ok(base) => self.locate(commit, base),
            Err(refused) => self.refuse(commit, *refused),
        }
        if outcome.was_stalled {
            let pause = Pause::Queue(commit.partition);
            self.clients.resume_all(pause, &self.env);
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
        let turn_metrics = &mut self.observe.turn_metrics;
        turn_metrics.publishes_refused += refused.publishes;
        turn_metrics.refuse_several("puback", reason, refused.publishes);
        self.qos2
            .free_refused(commit, refused.exactly_once, &mut self.clients);
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
    fn settle(&mut self) {
        let (conns, stopped) = self.ingest.settle(&self.env);
        for (partition, waiting) in stopped {
            self.qos2
                .free_abandoned(partition, &self.ingest, &mut self.clients);
            self.close_each(waiting, ReasonCode::UnspecifiedError);
        }
        if !conns.is_empty() {
            failpoint!("before-ack");
        }
        self.send_ready_to(conns);
        self.settle_state();
    }

    /// Lets everything go on that waited for state that is durable now.
    fn settle_state(&mut self) {
        let conns = self.ingest.settle_state(&self.env);
        self.send_ready_to(conns);
        let sessions = self.store.settle(&self.env);
        lend!(self => Acknowledging).send_releases();
        for key in sessions {
            self.wake_session(key);
            if let Some(conn) = self.clients.conn_of(key) {
                lend!(self => Replies).send_ready(conn);
                self.drain();
            }
        }
        let in_vain = self
            .store
            .abandon_if_stopped(&mut self.ingest, &self.clients);
        self.close_each(in_vain, ReasonCode::UnspecifiedError);
    }

    fn send_ready_to(&mut self, conns: Vec<ConnKey>) {
        for key in conns {
            lend!(self => Replies).send_ready(key);
            self.drain();
        }
    }

    pub(super) fn close_each(&mut self, conns: Vec<ConnKey>, reason: ReasonCode) {
        for key in conns {
            self.close_now(key, Cause::Reason(reason));
        }
    }

    /// Closes the connections whose records have waited too long for a full disk. The records may still be written, so
    /// neither an acknowledgement nor a refusal would be true; a client that reconnects learns the truth.
    pub(super) fn close_waits_on_full(&mut self) {
        let conns = self.ingest.waits_on_full(self.env.now.mono_ms);
        self.close_each(conns, ReasonCode::QuotaExceeded);
    }
}
