//! Subscriptions that begin at a position in the past: each reads with cursors of its own until it has caught up.

use headwater_log::Offset;

use crate::engine::ids::PartitionIndex;

use super::Session;
use super::cursors::Cursors;
use super::window::Source;

#[derive(Debug)]
pub struct Replay {
    /// Identifies it in the window; unique in the session while it exists.
    pub number: u16,
    pub filter: Box<str>,
    /// They stay until the replay is dropped.
    pub cursors: Cursors,
    /// Where it ends, if it had caught up before a restart: later records came from the session's own cursor. Empty for
    /// a replay that continues until it has caught up.
    pub until: Vec<(PartitionIndex, Offset)>,
    /// It has caught up in all partitions and only waits for acknowledgements; the subscription is part of the live
    /// stream.
    pub joined: bool,
}

impl Session {
    pub fn replay(&self, number: u16) -> Option<&Replay> {
        self.extras
            .replays
            .iter()
            .find(|replay| replay.number == number)
    }

    /// Where a replay ends in a partition, or the session's own cursor: that reads up to the live position at the
    /// SUBSCRIBE of the first pending retained cursor.
    pub fn ends_at(&self, replay: Option<u16>, partition: PartitionIndex) -> Offset {
        const NEVER: Offset = Offset(u64::MAX);
        let Some(replay) = replay.and_then(|number| self.replay(number)) else {
            let owed = self.extras.retained.front();
            return owed.map_or(NEVER, |owed| owed.until(partition));
        };
        let mut ends = replay.until.iter();
        match ends.find(|(of, _)| *of == partition) {
            Some((_, end)) => *end,
            None if replay.until.is_empty() => NEVER,
            None => Offset(0),
        }
    }

    /// Whether a replay that had caught up before a restart still has to catch up again.
    pub fn ends_replays(&self) -> bool {
        self.extras
            .replays
            .iter()
            .any(|replay| !replay.joined && !replay.until.is_empty())
    }

    pub fn is_replaying(&self, filter: &str) -> bool {
        self.extras
            .replays
            .iter()
            .any(|replay| !replay.joined && replay.until.is_empty() && &*replay.filter == filter)
    }

    /// Per partition, the first offset that a replay still needs.
    pub fn replay_cursors(
        &self,
        replay: &Replay,
    ) -> impl Iterator<Item = (PartitionIndex, Offset)> {
        let source = Source::Replay(replay.number);
        replay.cursors.iter().map(move |cursor| {
            let unacked = self.window.oldest(cursor.partition, source);
            let next = unacked.map_or(cursor.next, |offset| offset.min(cursor.next));
            (cursor.partition, next)
        })
    }

    /// Forgets replays that have caught up and whose deliveries are all acknowledged.
    pub fn drop_finished_replays(&mut self) {
        if self.extras.replays.is_empty() {
            return;
        }
        let window = &self.window;
        self.extras
            .replays
            .retain(|replay| !replay.joined || window.holds(Source::Replay(replay.number)));
        self.forget_assigned();
    }

    /// Forgets the records assigned for finished replays.
    pub fn forget_assigned(&mut self) {
        let Some(extras) = self.extras.present_mut() else {
            return;
        };
        let replays = &extras.replays;
        let before = extras.assigned.len();
        extras.assigned.retain(|range| match range.source {
            Source::Replay(number) => replays.iter().any(|replay| replay.number == number),
            _ => true,
        });
        self.replay_forgotten |= extras.assigned.len() < before;
    }
}
