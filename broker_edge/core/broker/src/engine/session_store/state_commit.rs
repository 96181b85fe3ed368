//! Commits of QoS 2 state: what has to be durable in the internal partition before a packet may be sent.
//!
//! The changes of a turn form one commit: at the end of the turn the new values of all changed sessions are appended
//! together, and packets that wait for the commit are sent once the append is durable. Sessions that end with their
//! connection wait for nothing. The values are defined in `qos2_inbound` and `qos2_outbound`; this file decides nothing
//! about packets.

use std::collections::VecDeque;

use headwater_log::{AppendError, Offset, Partition, PartitionState};
use headwater_mqtt::ReasonCode;

use crate::engine::effects::Cause;
use crate::engine::ids::CommitSeq;
use crate::engine::qos2::inbound::qos2_inbound_key;
use crate::engine::qos2::outbound::qos2_outbound_key;
use crate::engine::{ConnKey, Engine, SessionKey};
use crate::state::{Change, StateError};

/// Values per append.
const CHUNK: usize = 512;

#[derive(Debug)]
pub struct StateCommits {
    /// The commit of the current changes.
    current: CommitSeq,
    settled: CommitSeq,
    /// Written and not durable yet.
    written: VecDeque<(CommitSeq, Offset)>,
    /// Sessions to write in the current commit, each at most once.
    changed: Vec<SessionKey>,
    /// Sessions that wait for a commit, in order of commits.
    waiting: VecDeque<(CommitSeq, SessionKey)>,
    /// Sessions with records that their stored value does not cover, each at most once.
    pub unmarked: Vec<SessionKey>,
}

impl Default for StateCommits {
    fn default() -> Self {
        Self {
            current: CommitSeq(1),
            settled: CommitSeq(0),
            written: VecDeque::new(),
            changed: Vec::new(),
            waiting: VecDeque::new(),
            unmarked: Vec::new(),
        }
    }
}

impl StateCommits {
    /// Everything up to this commit is durable.
    #[inline]
    pub fn settled(&self) -> CommitSeq {
        self.settled
    }

    /// Whether [`Engine::settle_state_commits`] would settle any.
    pub fn is_settleable(&self, mark: Offset) -> bool {
        self.written.front().is_some_and(|(_, end)| *end <= mark)
    }

    /// Commits that are not durable yet.
    #[cfg(test)]
    pub fn unsettled(&self) -> usize {
        self.written.len()
    }

    fn settle(&mut self, mark: Offset) -> bool {
        let before = self.settled;
        while let Some((commit_seq, end)) = self.written.front().copied()
            && end <= mark
        {
            self.settled = commit_seq;
            self.written.pop_front();
        }
        self.settled > before
    }
}

impl Engine {
    /// The session's QoS 2 state changed. Returns the commit to wait for.
    pub(in crate::engine) fn change(&mut self, key: SessionKey) -> CommitSeq {
        let Some(session) = self
            .clients
            .session_mut(key)
            .filter(|session| session.stored)
        else {
            return CommitSeq::default();
        };
        if !session.in_state_commit {
            session.in_state_commit = true;
            self.store.state_commits.changed.push(key);
        }
        self.store.state_commits.current
    }

    /// Ends the commit of this turn: writes what changed in it.
    pub(in crate::engine) fn write_state_commit(&mut self) {
        while !self.store.state_commits.changed.is_empty() {
            let from = self.store.state_commits.changed.len().saturating_sub(CHUNK);
            let keys = self.store.state_commits.changed.split_off(from);
            match self.write_sessions(&keys) {
                Ok(end) => {
                    let commit_seq = self.store.state_commits.current;
                    self.store
                        .state_commits
                        .waiting
                        .extend(keys.iter().map(|key| (commit_seq, *key)));
                    for key in keys {
                        if let Some(session) = self.clients.session_mut(key) {
                            session.in_state_commit = false;
                        }
                    }
                    if self.store.state_commits.changed.is_empty() {
                        self.store
                            .state_commits
                            .written
                            .push_back((commit_seq, end));
                        self.store.state_commits.current.0 += 1;
                    }
                }
                Err(error) => {
                    self.store.state_commits.changed.extend(keys);
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
        for key in std::mem::take(&mut self.store.state_commits.changed) {
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
        let mut values: Vec<(String, Vec<u8>)> = Vec::with_capacity(keys.len());
        for key in keys {
            let Some(session) = self.clients.session(*key).filter(|session| session.stored) else {
                continue;
            };
            if session.qos2_inbound.is_changed {
                values.push((
                    qos2_inbound_key(&session.client_id),
                    self.qos2_inbound_value(session),
                ));
            }
            // In one append: after a crash between the two, the whole replay would be delivered again as new.
            if session.outbound_changed && session.replay_forgotten {
                values.push(self.cursor_value(session));
            }
            if session.outbound_changed {
                values.push((
                    qos2_outbound_key(&session.client_id),
                    self.qos2_outbound_value(session),
                ));
            }
        }
        let groups = self.group_values_with(keys);
        let ids: Vec<_> = groups.iter().map(|(id, _, _)| *id).collect();
        values.extend(groups.into_iter().map(|(_, key, value)| (key, value)));
        let end = self.write_values(&values)?;
        self.groups_stored(ids.into_iter());
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

    pub(in crate::engine) fn write_values(
        &self,
        values: &[(String, Vec<u8>)],
    ) -> Result<Offset, StateError> {
        let changes: Vec<Change<'_>> = values
            .iter()
            .map(|(key, value)| Change {
                key,
                value: (!value.is_empty()).then_some(value),
            })
            .collect();
        self.store.state.write(&changes)
    }

    /// Resumes everything that waited for commits that are durable now.
    pub(in crate::engine) fn settle_state_commits(&mut self) {
        let mark = self.state_mark();
        if !self.store.state_commits.settle(mark) {
            return;
        }
        let settled = self.store.state_commits.settled;
        while let Some((commit_seq, key)) = self.store.state_commits.waiting.front().copied()
            && commit_seq <= settled
        {
            self.store.state_commits.waiting.pop_front();
            self.send_releases(key);
            self.wake_session(key);
            if let Some(conn) = self.clients.conn_of(key) {
                self.send_ready(conn);
                self.drain();
            }
        }
    }

    /// Closes the connections that wait for the internal partition if it has stopped: it accepted their changes and
    /// could not make them durable.
    pub(in crate::engine) fn abandon_if_state_stopped(&mut self) {
        if self.ingest.state_waits.is_empty() && self.store.state_commits.waiting.is_empty() {
            return;
        }
        let Some(PartitionState::Stopped(reason)) = self.state_partition().map(Partition::state)
        else {
            return;
        };
        tracing::error!(
            reason,
            "connections that wait for state to be stored are closed"
        );
        let mut waiting: Vec<ConnKey> = self
            .ingest
            .state_waits
            .drain(..)
            .map(|(_, key)| key)
            .collect();
        for (_, key) in std::mem::take(&mut self.store.state_commits.waiting) {
            waiting.extend(self.clients.conn_of(key));
        }
        for key in waiting {
            self.close_now(key, Cause::Reason(ReasonCode::UnspecifiedError));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_durable_with_the_last_record_that_was_written_in_it_and_no_other_before_its_own()
    {
        let mut state_commits = StateCommits::default();
        for (commit_seq, end) in [(1, 10), (2, 12), (3, 12), (4, 20)] {
            state_commits
                .written
                .push_back((CommitSeq(commit_seq), Offset(end)));
        }
        for (mark, settled) in [
            (0, 0),
            (9, 0),
            (10, 1),
            (11, 1),
            (12, 3),
            (19, 3),
            (20, 4),
            (21, 4),
        ] {
            let before = state_commits.settled();
            let mark = Offset(mark);
            let moves = CommitSeq(settled) > before;
            assert_eq!(state_commits.is_settleable(mark), moves, "{mark}");
            assert_eq!(state_commits.settle(mark), moves, "{mark}");
            assert_eq!(state_commits.settled(), CommitSeq(settled), "{mark}");
            assert!(!state_commits.is_settleable(mark), "{mark}: that is done");
        }
        assert_eq!(state_commits.unsettled(), 0);
    }
}
