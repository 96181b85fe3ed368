//! A replica after a start, and what others may look at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Effect, Found, Held, Place, Role, Shard, Timer};
use crate::key::ShardKey;
use crate::marks::{Epoch, Member, Offset, Trust};
use crate::rules::Rule;
#[cfg(test)]
use crate::{key::Revision, shard::electing::Round};

impl Shard {
    /// A replica after a start. Its effects come first.
    #[must_use]
    pub fn start(place: Arc<Place>, found: Found) -> (Self, Vec<Effect>) {
        let file = found.file.as_ref();
        let file = file.filter(|file| file.disk == place.disk() && file.log_id == place.log_id);
        let is_short = file.is_some_and(|file| {
            let ends = place.partitions.iter().zip(&found.partitions);
            ends.into_iter().any(|(partition, held)| {
                let hint = file.hints.iter().find(|hint| hint.0 == *partition);
                hint.is_some_and(|hint| held.end < hint.1)
            })
        });
        let written = found.partitions.iter().filter_map(|one| one.history.last());
        let epoch = written
            .chain(file.map(|file| file.epoch))
            .max()
            .unwrap_or_default();
        let is_unproven = !found.stopped_cleanly && place.rules.holds(Rule::UnprovenAfterCrash);
        let trust = match file {
            None => Trust::Suspect,
            Some(_) if found.is_damaged || is_short => Trust::Suspect,
            Some(file) if is_unproven => file.trust.max(Trust::Unproven),
            Some(file) => file.trust,
        };
        let shard = Self {
            counter: place.starts.0 << 32,
            place,
            epoch,
            trust,
            partitions: found.partitions,
            role: Role::Looking,
            key: None,
            cas: None,
            reading_in: Some(epoch),
            is_unclear: false,
            tried: None,
            round: None,
            waited_long: false,
            links: BTreeMap::new(),
            standing: None,
            asked: BTreeMap::new(),
            has_room: true,
        };
        let mut out = vec![Effect::LeaderIs(None)];
        shard.write_file(&mut out);
        out.extend([Effect::Arm(Timer::Hints), Effect::ReadKey]);
        (shard, out)
    }

    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    #[must_use]
    pub fn trust(&self) -> Trust {
        self.trust
    }

    /// Where a partition's high watermark, synced and end are.
    #[must_use]
    pub fn partition(&self, at: usize) -> &Held {
        &self.partitions[at]
    }

    /// The newest value of the key that was seen.
    #[must_use]
    pub fn key(&self) -> Option<&ShardKey> {
        self.key.as_ref().map(|(_, key)| key)
    }

    #[must_use]
    pub fn is_leading(&self) -> bool {
        matches!(self.role, Role::Leading(_))
    }

    /// Whether this replica follows a leader, has cut what that does not have, and takes its batches.
    #[must_use]
    pub fn is_aligned(&self) -> bool {
        matches!(&self.role, Role::Following(following) if following.is_aligned())
    }

    /// Ends of all partitions.
    #[must_use]
    pub fn ends(&self) -> Vec<Offset> {
        self.partitions.iter().map(|held| held.end).collect()
    }

    /// Of a leader: the members that a record waits for, without itself. Else nobody.
    #[must_use]
    pub fn waits_for(&self) -> BTreeSet<Member> {
        match &self.role {
            Role::Leading(leading) => leading.commit.waits_for_all().clone(),
            _ => BTreeSet::new(),
        }
    }

    /// Of a leader: how many records this follower has not synced, as far as it has said.
    #[must_use]
    pub fn lag(&self, member: &Member) -> Option<u64> {
        let Role::Leading(leading) = &self.role else {
            return None;
        };
        let partitions = self.partitions.iter().enumerate();
        let behind = |(at, held): (usize, &Held)| {
            let synced = leading
                .commit
                .synced_of(member, at)
                .unwrap_or(held.log_start);
            held.end.0.saturating_sub(synced.0)
        };
        Some(partitions.map(behind).sum())
    }

    /// Of a leader: the member has synced everything below these ends.
    #[must_use]
    pub fn has_all_below(&self, member: &Member, ends: &[Offset]) -> bool {
        matches!(&self.role, Role::Leading(leading) if leading.commit.has_all_below(member, ends))
    }
}

/// What the model may look at to know which deadlines are set.
#[cfg(test)]
impl Shard {
    pub(crate) fn revision(&self) -> Revision {
        self.key
            .as_ref()
            .map_or(Revision(0), |(revision, _)| *revision)
    }

    /// The leader that is heard.
    pub(crate) fn hears(&self) -> Option<&Member> {
        match &self.role {
            Role::Following(following) if following.is_led => Some(&following.leader),
            _ => None,
        }
    }

    pub(crate) fn is_asking(&self) -> bool {
        self.round.as_ref().is_some_and(Round::is_open)
    }

    pub(crate) fn is_between_rounds(&self) -> bool {
        self.round.as_ref().is_some_and(|round| !round.is_open())
    }

    pub(crate) fn is_silent(&self, member: &Member) -> bool {
        matches!(&self.role, Role::Leading(leading) if leading.is_silent(member))
    }
}
