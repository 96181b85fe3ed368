//! Commits of QoS 2 state: what has to be durable in the internal partition before a packet may be sent.
//!
//! The changes of a turn form one commit: at the end of the turn the new values of all changed sessions are appended
//! together, and packets that wait for the commit are sent once the append is durable. Sessions that end with their
//! connection wait for nothing. This file decides nothing about packets.

use headwater_log::{AppendError, Offset, PartitionState};
use headwater_mqtt::ReasonCode;

use crate::engine::clients::Clients;
use crate::engine::effects::Cause;
use crate::engine::env::Env;
use crate::engine::ids::CommitSeq;
use crate::engine::ingest::Ingest;
use crate::engine::session::Session;
use crate::engine::session::window::Inflight;
use crate::engine::stored::{self, KeyValue};
use crate::engine::{ConnKey, SessionKey};
use crate::state::StateError;

use super::Store;
use super::checkpoint::Checkpointing;

/// Values per append.
const CHUNK: usize = 512;

impl Store {
    /// The session's QoS 2 state changed. Returns the commit to wait for.
    pub fn change(&mut self, key: SessionKey, session: &mut Session) -> CommitSeq {
        if !session.stored {
            return CommitSeq::default();
        }
        if !session.in_state_commit {
            session.in_state_commit = true;
            self.changed.push(key);
        }
        self.changes.open()
    }

    /// Assigns a packet id to a record. The record is sent once that is durable.
    pub fn assign(&mut self, key: SessionKey, session: &mut Session, sent: Inflight) -> u16 {
        let after = self.change(key, session);
        session.outbound_changed = true;
        session.note_assigned(sent.source, sent.partition, sent.offset);
        session.window.assign(sent, after)
    }

    /// Settles the changes that are durable. Returns the sessions that waited for them.
    pub fn settle(&mut self, env: &Env) -> Vec<SessionKey> {
        let mut waiting = Vec::new();
        let durations = &env.metrics.detail.ack_latency;
        self.changes
            .settle(self.state.durable(), &mut waiting, durations);
        waiting
    }

    /// If the internal partition has stopped, it cannot make durable what it accepted. Returns the connections that
    /// wait for that in vain.
    pub fn abandon_if_stopped(&mut self, ingest: &mut Ingest, clients: &Clients) -> Vec<ConnKey> {
        if !ingest.is_state_waited_for() && !self.changes.is_waited_for() {
            return Vec::new();
        }
        let PartitionState::Stopped(reason) = self.state.partition().state() else {
            return Vec::new();
        };
        tracing::error!(
            reason,
            "connections that wait for state to be stored are closed"
        );
        let mut conns = ingest.abandon_state();
        let sessions = self.changes.abandon();
        conns.extend(sessions.into_iter().filter_map(|key| clients.conn_of(key)));
        conns
    }

    /// Whether changes are durable that somebody waits for.
    pub fn is_settleable(&self) -> bool {
        self.changes.is_settleable(self.state.durable())
    }

    /// Whether the changes up to this commit are durable.
    #[inline]
    pub fn is_settled(&self, seq: CommitSeq) -> bool {
        self.changes.settled() >= seq
    }
}

impl Checkpointing<'_> {
    /// Ends the commit of this turn: writes what changed in it. What finds no room stays in the open commit.
    pub fn write_state_commit(&mut self) {
        while !self.store.changed.is_empty() {
            let from = self.store.changed.len().saturating_sub(CHUNK);
            let keys = self.store.changed.split_off(from);
            match self.write_sessions(&keys) {
                Ok(end) => {
                    for key in keys {
                        self.store.changes.wait(key);
                        if let Some(session) = self.clients.session_mut(key) {
                            session.in_state_commit = false;
                        }
                    }
                    if self.store.changed.is_empty() {
                        let next = CommitSeq(self.store.changes.open().0 + 1);
                        self.store.changes.accept(end..end, None, next);
                    }
                }
                Err(error) => {
                    self.store.changed.extend(keys);
                    return self.state_commit_failed(&error);
                }
            }
        }
    }

    /// If there was no room, the next turn tries again. A partition that has stopped accepts nothing until a restart;
    /// connections that wait for it are closed.
    fn state_commit_failed(&mut self, error: &StateError) {
        let passes = matches!(
            error,
            StateError::Append(AppendError::QueueFull { .. } | AppendError::Full { .. })
        );
        if passes {
            tracing::debug!(%error, "QoS 2 state waits to be stored");
            return;
        }
        tracing::error!(%error, "QoS 2 state cannot be stored, connections that wait for it are closed");
        for key in std::mem::take(&mut self.store.changed) {
            let Some(session) = self.clients.session_mut(key) else {
                continue;
            };
            session.in_state_commit = false;
            if let Some(conn) = session.conn {
                let cause = Cause::Reason(ReasonCode::UnspecifiedError);
                self.clients.close(conn, cause, self.env, self.effects);
            }
        }
    }

    fn write_sessions(&mut self, keys: &[SessionKey]) -> Result<Offset, StateError> {
        let mut values: Vec<KeyValue> = Vec::with_capacity(keys.len());
        for key in keys {
            let Some(session) = self.clients.session(*key).filter(|session| session.stored) else {
                continue;
            };
            if session.qos2_inbound.is_changed {
                values.push((
                    stored::received::key(&session.client_id),
                    self.received_value(session),
                ));
            }
            // In one append: after a crash between the two, the whole replay would be delivered again as new.
            if session.outbound_changed && session.replay_forgotten {
                values.push(self.cursor_value(session));
            }
            if session.outbound_changed {
                values.push((
                    stored::sent::key(&session.client_id),
                    self.sent_value(session),
                ));
            }
        }
        let end = self.write_with_groups(values, keys)?;
        for key in keys {
            if let Some(session) = self.clients.session_mut(*key) {
                session.qos2_inbound.is_stored |=
                    std::mem::take(&mut session.qos2_inbound.is_changed);
                if std::mem::take(&mut session.outbound_changed) {
                    session.outbound_stored = true;
                    session.replay_forgotten = false;
                }
            }
        }
        Ok(end)
    }
}
