//! Keeps retention from removing records that consumer groups still need. A group holds from its committed offset, else
//! from its initial one, until it is removed or has been idle for too long.
//!
//! It decides about no segment; the log asks it. Only durable commits count.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use headwater_log::{HeldLoss, Hold, Holders, Log, Offset, Partition, PartitionId};
use parking_lot::Mutex;

use super::gaps::{GapRecord, Gaps};
use super::group::{Group, bound_stored, stored_groups};
use crate::clock::now_us;
use crate::state::StateStore;

/// After a start, groups whose idle time ran out while the broker was down get this long to return.
const GRACE: Duration = Duration::from_secs(3600);

pub struct GroupHolds {
    state: Arc<StateStore>,
    partitions: Vec<Partition>,
    gaps: Option<Gaps>,
    started: Instant,
    view: Mutex<View>,
}

/// The groups as of a durable change.
struct View {
    /// End offset of the newest change since `groups` was read.
    changed: Option<Offset>,
    groups: Vec<(String, Group)>,
    /// The groups as of a later change with this end offset, which was not durable yet when they were read.
    next: Option<(Offset, Vec<(String, Group)>)>,
    activity: Activity,
}

impl GroupHolds {
    /// `idle`: a group that has not committed for this long holds nothing; `None` means never.
    pub fn new(log: &Log, state: Arc<StateStore>, idle: Option<Duration>) -> GroupHolds {
        let partitions = log.partitions().to_vec();
        bound_stored(&state, &partitions);
        let groups = read_groups(&state, &partitions);
        let activity = Activity::new(idle, &groups, now_us());
        GroupHolds {
            partitions,
            gaps: Gaps::of(log),
            started: Instant::now(),
            // The state was replayed from the log, so all of it is durable. Bounding the groups does not reduce what
            // they hold.
            view: Mutex::new(View {
                changed: None,
                groups,
                next: None,
                activity,
            }),
            state,
        }
    }

    /// Every partition of the log, indexed by its number.
    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    pub fn partition(&self, number: u32) -> Option<&Partition> {
        self.partitions.get(number as usize)
    }

    /// Notes that a group commits now.
    pub fn touch(&self, group: &str) {
        let now = self.started.elapsed();
        self.view.lock().activity.touch(group, now);
    }

    /// Changes a group through `write`, which returns the end offset of the change. Groups are not read meanwhile.
    ///
    /// # Errors
    /// The error of `write`.
    pub fn change<E>(&self, write: impl FnOnce() -> Result<Offset, E>) -> Result<Offset, E> {
        let mut view = self.view.lock();
        let end = write()?;
        view.changed = Some(end);
        Ok(end)
    }

    /// Whether a group has not committed for so long that it holds nothing.
    pub fn is_idle(&self, group: &str) -> bool {
        let now = self.started.elapsed();
        self.view.lock().activity.is_idle(group, now)
    }

    /// The groups that hold `partition` below `end`.
    pub fn below(&self, partition: PartitionId, end: Offset) -> Vec<Hold> {
        self.active(|name, group| {
            let next = Offset(group.partitions.get(&partition.0)?.finished()?);
            (next < end).then(|| Hold {
                holder: name.to_owned(),
                next,
            })
        })
    }

    /// What `look` sees of the groups that hold something. It is called under a lock.
    pub fn active<T>(&self, look: impl Fn(&str, &Group) -> Option<T>) -> Vec<T> {
        let now = self.started.elapsed();
        let mut view = self.view.lock();
        view.refresh(self.state.durable(), || {
            read_groups(&self.state, &self.partitions)
        });
        let View {
            groups, activity, ..
        } = &*view;
        let active = groups
            .iter()
            .filter(|(name, _)| !activity.is_idle(name, now));
        active
            .filter_map(|(name, group)| look(name, group))
            .collect()
    }
}

impl Holders for GroupHolds {
    fn holding(&self, partition: PartitionId, end: Offset) -> Vec<Hold> {
        self.below(partition, end)
    }

    fn overridden(&self, loss: &HeldLoss<'_>) {
        let (Some(gaps), Some(of)) = (&self.gaps, self.partitions.get(loss.partition.0 as usize))
        else {
            return;
        };
        for hold in loss.holds {
            let reason = format!("retention: {}", loss.cause.name());
            let record = gaps.records(&GapRecord {
                of: of.id().0,
                name: Some(of.name()),
                log_id: None,
                start: hold.next.max(loss.range.start).0,
                end: Some(loss.range.end.0),
                reason: &reason,
                group: Some(&hold.holder),
                user: None,
            });
            let Ok(records) = record else {
                continue;
            };
            // Space is short when this happens, so a failed report must not keep the segment.
            if let Err(error) = gaps.partition.append(records) {
                tracing::warn!(%error, group = hold.holder, "a gap could not be recorded in $gaps");
            }
        }
    }
}

impl View {
    /// Every metrics scrape and every retention run comes here, so groups are decoded once per change. Under constant
    /// changes the newest one is never durable, so an earlier durable one is used.
    fn refresh(&mut self, durable: Offset, read: impl FnOnce() -> Vec<(String, Group)>) {
        if let Some((_, groups)) = self.next.take_if(|(end, _)| *end <= durable) {
            self.show(groups);
        }
        if self.next.is_some() {
            return;
        }
        let Some(end) = self.changed.take() else {
            return;
        };
        let groups = read();
        if end <= durable {
            self.show(groups);
        } else {
            self.next = Some((end, groups));
        }
    }

    fn show(&mut self, groups: Vec<(String, Group)>) {
        self.activity.forget_others(&groups);
        self.groups = groups;
    }
}

fn read_groups(state: &StateStore, partitions: &[Partition]) -> Vec<(String, Group)> {
    let mut groups = stored_groups(state);
    for (_, group) in &mut groups {
        group.bound(partitions);
    }
    groups
}

/// Which groups are active. Time since the start comes from a monotonic clock; the wall clock only gives how long a
/// group had been idle at the start.
struct Activity {
    idle: Option<Duration>,
    at_start: HashMap<String, Duration>,
    touched: HashMap<String, Duration>,
}

impl Activity {
    fn new(idle: Option<Duration>, groups: &[(String, Group)], now_us: i64) -> Activity {
        let idle_at_start = |(name, group): &(String, Group)| {
            let us = u64::try_from(now_us.saturating_sub(group.touched_us)).unwrap_or(0);
            // Groups of earlier versions have no time: they count from the start.
            let known = if group.touched_us == 0 { 0 } else { us };
            (name.clone(), Duration::from_micros(known))
        };
        Activity {
            idle,
            at_start: groups.iter().map(idle_at_start).collect(),
            touched: HashMap::new(),
        }
    }

    /// `now` is the time since the start.
    fn touch(&mut self, group: &str, now: Duration) {
        match self.touched.get_mut(group) {
            Some(at) => *at = now,
            None => {
                self.touched.insert(group.to_owned(), now);
            }
        }
    }

    fn is_idle(&self, group: &str, now: Duration) -> bool {
        let Some(idle) = self.idle else {
            return false;
        };
        match self.touched.get(group) {
            Some(at) => now.saturating_sub(*at) >= idle,
            None => {
                let before = self.at_start.get(group).copied().unwrap_or_default();
                now >= idle.min(GRACE) && before + now >= idle
            }
        }
    }

    fn forget_others(&mut self, groups: &[(String, Group)]) {
        let known: HashSet<&str> = groups.iter().map(|(name, _)| &**name).collect();
        self.at_start.retain(|name, _| known.contains(&**name));
        // A new group is touched before its record is durable, so some slack is needed.
        let limit = 2 * groups.len() + 64;
        if self.touched.len() > limit {
            self.touched.retain(|name, _| known.contains(&**name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);
    const NOW_US: i64 = 1_800_000_000_000_000;

    fn activity(idle_days: u32) -> Activity {
        let group = Group {
            touched_us: NOW_US - i64::from(idle_days) * 86_400_000_000,
            ..Group::default()
        };
        Activity::new(Some(7 * DAY), &[("g".to_owned(), group)], NOW_US)
    }

    #[test]
    fn changes_are_seen_once_they_are_durable_and_although_others_follow() {
        let mut view = View {
            changed: None,
            groups: Vec::new(),
            next: None,
            activity: activity(0),
        };
        for n in 1..10 {
            view.changed = Some(Offset(n + 1));
            view.refresh(Offset(n), || vec![(n.to_string(), Group::default())]);
            let seen = view.groups.first().map(|(name, _)| name.clone());
            assert_eq!(seen, (n > 1).then(|| (n - 1).to_string()));
        }
        view.refresh(Offset(10), || unreachable!("nothing has changed"));
        assert_eq!(view.groups[0].0, "9");
    }

    #[test]
    fn a_group_holds_nothing_when_it_has_been_idle_for_too_long() {
        let known_at = |now_us: i64| {
            let group = Group {
                touched_us: NOW_US,
                ..Group::default()
            };
            Activity::new(Some(7 * DAY), &[("g".to_owned(), group)], now_us)
        };
        let second = Duration::from_secs(1);
        for (name, activity, after_start, is_idle) in [
            ("no commit for 6 days", activity(0), 6 * DAY, false),
            ("no commit for 7 days", activity(0), 7 * DAY, true),
            ("away with the broker", activity(30), GRACE - second, false),
            ("away, and an hour is over", activity(30), GRACE, true),
            ("6 days before a restart", activity(6), DAY - second, false),
            ("6 days before it, 1 after", activity(6), DAY, true),
            ("no clock at the start", known_at(0), 6 * DAY, false),
            (
                "no idle time",
                Activity::new(None, &[], NOW_US),
                10_000 * DAY,
                false,
            ),
        ] {
            assert_eq!(activity.is_idle("g", after_start), is_idle, "{name}");
        }
    }

    #[test]
    fn a_commit_brings_an_idle_group_back() {
        let mut activity = activity(0);
        assert!(activity.is_idle("g", 7 * DAY));
        activity.touch("g", 7 * DAY);
        assert!(!activity.is_idle("g", 13 * DAY));
    }
}
