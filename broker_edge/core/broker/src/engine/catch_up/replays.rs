//! Subscriptions that begin at a position in the past: each reads with a cursor of its own until it has caught up.

use crate::engine::effects::Effect;
use crate::engine::ids::Waiter;
use crate::engine::routing::router::Subscriber;
use crate::engine::session::Session;
use crate::engine::{ConnKey, SessionKey};

use super::CatchingUp;
use super::readers::Progress;

impl CatchingUp<'_> {
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
        for at in 0.. {
            let session = self.clients.session(key);
            let Some(replay) = session.and_then(|session| session.extras.replays.get(at)) else {
                break;
            };
            if replay.joined {
                continue;
            }
            let (number, goes_on) = (replay.number, replay.until.is_empty());
            let progress = self.run_cursors(Waiter::Session(key), Some(number), steps);
            if progress != Progress::Finished {
                return progress;
            }
            self.join(key, at, goes_on);
        }
        if let Some(session) = self.clients.session_mut(key) {
            session.drop_finished_replays();
        }
        Progress::Finished
    }

    /// A replay has caught up in every partition. If it went on so far, from now on the session's own cursors serve the
    /// subscription.
    fn join(&mut self, key: SessionKey, at: usize, goes_on: bool) {
        let Some(session) = self.clients.session_mut(key) else {
            return;
        };
        let Some(replay) = session.extras.replays.get_mut(at) else {
            return;
        };
        replay.joined = true;
        let mut held = session.subscriptions.iter_mut();
        let Some(held) = held.find(|held| goes_on && held.filter == replay.filter) else {
            return;
        };
        held.since = self.delivery.live_in(&held.filter, self.env).into();
        let subscriber = Subscriber {
            session: key,
            options: held.options,
            replaying: false,
        };
        self.routing.insert(&held.filter, subscriber);
        if session.expiry_s > 0 {
            self.effects.push(Effect::Joined(key));
        }
    }
}
