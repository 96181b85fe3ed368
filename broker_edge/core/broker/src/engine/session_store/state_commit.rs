//! Commits of QoS 2 state: what has to be durable in the internal partition before a packet may be sent.
//!
//! The changes of a turn form one commit: at the end of the turn the new values of all changed sessions are appended
//! together, and packets that wait for the commit are sent once the append is durable. Sessions that end with their
//! connection wait for nothing. This file decides nothing about packets.

use headwater_log::{AppendError, Offset, PartitionState};
use headwater_mqtt::ReasonCode;

use crate::engine::delivery::replies::Replies;
use crate::engine::effects::Cause;
use crate::engine::ids::CommitSeq;
use crate::engine::session::Session;
use crate::engine::session::window::Inflight;
use crate::engine::stored::{self, KeyValue};
use crate::engine::{Engine, SessionKey};
use crate::state::StateError;

use super::Store;

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

impl Engine {
    pub(in crate::engine) fn change(&mut self, key: SessionKey) -> CommitSeq {
        let session = self.clients.session_mut(key);
        session.map_or_else(CommitSeq::default, |session| {
            self.store.change(key, session)
        })
    }

    /// Ends the commit of this turn: writes what changed in it. What finds no room stays in the open commit.
    pub(in crate::engine) fn write_state_commit(&mut self) {
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
                self.close_now(conn, Cause::Reason(ReasonCode::UnspecifiedError));
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
                    self.qos2_inbound_value(session),
                ));
            }
            // In one append: after a crash between the two, the whole replay would be delivered again as new.
            if session.outbound_changed && session.replay_forgotten {
                values.push(self.cursor_value(session));
            }
            if session.outbound_changed {
                values.push((
                    stored::sent::key(&session.client_id),
                    self.qos2_outbound_value(session),
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

    /// Resumes everything that waited for state that is durable now.
    pub(in crate::engine) fn settle_state(&mut self) {
        let conns = self.ingest.settle_state(&self.env);
        self.send_ready_to(conns);
        let mut sessions = Vec::new();
        let mark = self.store.state.durable();
        let durations = &self.env.metrics.detail.ack_latency;
        self.store.changes.settle(mark, &mut sessions, durations);
        self.send_releases();
        for key in sessions {
            self.wake_session(key);
            if let Some(conn) = self.clients.conn_of(key) {
                lend!(self => Replies).send_ready(conn);
                self.drain();
            }
        }
        self.abandon_if_state_stopped();
    }

    /// Closes the connections that wait for the internal partition if it has stopped: it accepted their changes and
    /// could not make them durable.
    fn abandon_if_state_stopped(&mut self) {
        if !self.ingest.is_state_waited_for() && !self.store.changes.is_waited_for() {
            return;
        }
        let PartitionState::Stopped(reason) = self.store.state.partition().state() else {
            return;
        };
        tracing::error!(
            reason,
            "connections that wait for state to be stored are closed"
        );
        let mut conns = self.ingest.abandon_state();
        for key in self.store.changes.abandon() {
            conns.extend(self.clients.conn_of(key));
        }
        self.close_each(conns, ReasonCode::UnspecifiedError);
    }
}
