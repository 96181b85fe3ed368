//! Subscriptions that begin at a position in the past: each reads with a cursor of its own until it has caught up.

use headwater_log::Offset;

use crate::engine::ids::PartitionIndex;
use crate::engine::routing::router::Subscriber;
use crate::engine::session::Session;
use crate::engine::session::window::Source;
use crate::engine::{ConnKey, Engine, SessionKey};

use super::readers::{Progress, Reading};

impl Engine {
    /// Replays that had caught up before a restart go first: the records after them come from the session's own cursor.
    pub(super) fn end_replays(
        &mut self,
        key: SessionKey,
        conn: ConnKey,
        steps: &mut usize,
    ) -> Progress {
        if self.clients.session(key).is_some_and(Session::ends_replays) {
            return self.catch_up_replays(key, conn, steps);
        }
        Progress::Finished
    }

    pub(super) fn catch_up_replays(
        &mut self,
        key: SessionKey,
        conn: ConnKey,
        steps: &mut usize,
    ) -> Progress {
        if self
            .clients
            .conn(conn)
            .is_none_or(|conn| conn.subacks_pending > 0)
        {
            return Progress::NoRoom;
        }
        let count = self
            .clients
            .session(key)
            .map_or(0, |session| session.replays.len());
        for at in 0..count {
            let progress = self.run_replay(key, conn, at, steps);
            if progress != Progress::Finished {
                return progress;
            }
        }
        if let Some(session) = self.clients.session_mut(key) {
            session.drop_finished_replays();
        }
        Progress::Finished
    }

    fn run_replay(
        &mut self,
        key: SessionKey,
        conn: ConnKey,
        at: usize,
        steps: &mut usize,
    ) -> Progress {
        let Some(replay) = self
            .clients
            .session(key)
            .and_then(|session| session.replays.get(at))
        else {
            return Progress::Finished;
        };
        if replay.joined {
            return Progress::Finished;
        }
        let (number, filter, cursors) =
            (replay.number, replay.filter.clone(), replay.cursors.clone());
        let until = replay.until.clone();
        let mut unfinished = false;
        for (place, (partition, next)) in cursors.into_iter().enumerate() {
            let source = Source::Replay(number);
            let mut reading = Reading {
                partition,
                next,
                until: ends_at(&until, partition),
                source,
                qos0_from: Offset(0),
                sheds_qos0: false,
            };
            let progress = self.read_on(key, conn, &mut reading, Some(&filter), steps);
            let Some(session) = self.clients.session_mut(key) else {
                return Progress::NoRoom;
            };
            if let Some(cursor) = session
                .replays
                .get_mut(at)
                .and_then(|replay| replay.cursors.get_mut(place))
            {
                cursor.1 = reading.next;
            }
            match progress {
                Progress::NoRoom => return Progress::NoRoom,
                Progress::Unfinished => unfinished = true,
                Progress::Finished => {}
            }
        }
        if unfinished {
            return Progress::Unfinished;
        }
        if until.is_empty() {
            self.join(key, at, &filter);
        } else if let Some(session) = self.clients.session_mut(key)
            && let Some(replay) = session.replays.get_mut(at)
        {
            replay.joined = true;
        }
        Progress::Finished
    }

    /// A replay has caught up in every partition: from now on the session's own cursors serve the subscription.
    fn join(&mut self, key: SessionKey, at: usize, filter: &str) {
        let live_at = self.live_at(filter);
        let Some(session) = self.clients.session_mut(key) else {
            return;
        };
        if let Some(replay) = session.replays.get_mut(at) {
            replay.joined = true;
        }
        let Some(subscription) = session
            .subscriptions
            .iter_mut()
            .find(|held| &*held.filter == filter)
        else {
            return;
        };
        subscription.since = live_at.into();
        let options = subscription.options;
        let persistent = session.expiry_s > 0;
        self.routing.router.insert(
            filter,
            Subscriber {
                session: key,
                options,
                replaying: false,
            },
        );
        if persistent {
            self.store_session(key);
        }
    }
}

/// Where a replay ends in a partition; without an entry it goes on.
fn ends_at(until: &[(PartitionIndex, Offset)], partition: PartitionIndex) -> Offset {
    let end = until.iter().find(|(of, _)| *of == partition);
    match end {
        Some((_, end)) => *end,
        None if until.is_empty() => Offset(u64::MAX),
        None => Offset(0),
    }
}
