//! The receivers of a topic: sessions that may have its records now, and shared groups.

use std::rc::Rc;

use headwater_log::Offset;
use headwater_mqtt::filter_matches;

use crate::auth::Access;
use crate::engine::SessionKey;
use crate::engine::ids::{GroupId, PartitionIndex};
use crate::engine::routing::Routing;
use crate::engine::routing::costly::{AT_ONCE_WORK, CostlyTopic};
use crate::engine::routing::router::Options;
use crate::engine::routing::topics::{EffectiveOptions, Matches, Target, TopicId};
use crate::engine::session::Session;
use crate::engine::shared_groups::{Groups, Verdicts};

/// So many filters of one session are tried in the time of a visited node.
const FILTERS_PER_WORK: usize = 4;

/// The receivers of a topic's records, from the cache if the subscriptions are the same. `None` if finding them takes more
/// than is done at once: each call does a part of it.
#[inline]
pub fn matches<'a>(
    routing: &mut Routing,
    id: TopicId,
    session_of: impl Fn(SessionKey) -> Option<&'a Session>,
    groups: &Groups,
) -> Option<Rc<Matches>> {
    match routing.known_matches(id) {
        Some(known) => Some(known),
        None => find_again(routing, id, &session_of, groups, false),
    }
}

/// The same for records that are to be delivered: the search is begun whatever others there are.
#[inline]
pub fn matches_now<'a>(
    routing: &mut Routing,
    id: TopicId,
    session_of: impl Fn(SessionKey) -> Option<&'a Session>,
    groups: &Groups,
) -> Option<Rc<Matches>> {
    match routing.known_matches(id) {
        Some(known) => Some(known),
        None => find_again(routing, id, &session_of, groups, true),
    }
}

fn find_again<'a>(
    routing: &mut Routing,
    id: TopicId,
    session_of: &impl Fn(SessionKey) -> Option<&'a Session>,
    groups: &Groups,
    is_due: bool,
) -> Option<Rc<Matches>> {
    let topic = routing.topic(id)?;
    let (name, partition) = (Rc::clone(&topic.name), topic.partition);
    let was_costly = topic.work() > u64::from(AT_ONCE_WORK);
    let kept = routing.costly.take(&name);
    if kept.is_none() && !was_costly {
        let before = routing.work();
        let found = find(routing, (&name, partition), session_of, groups);
        let work = routing.work().saturating_sub(before);
        if let Some(found) = found {
            return Some(routing.keep_matches(id, found, work));
        }
        // That was work enough. The search begins with the next call, even if it has to wait for others until then.
        routing.note_costly(id, 0, work.max(u64::from(AT_ONCE_WORK) + 1));
        return None;
    }
    let mut costly = kept.or_else(|| routing.costly.begin(&name, is_due))?;
    let mut part = Part {
        routing: &*routing,
        session_of,
        groups,
        topic: (&name, partition),
        left: costly.part_work(),
    };
    let has_ended = part.search(&mut costly) && part.take_changes(&mut costly);
    let found = has_ended.then(|| Rc::clone(costly.matches()));
    if let Some(found) = &found {
        routing.note_costly(id, found.delivery_work(), costly.work);
    }
    routing.costly.put(costly);
    found
}

/// The receivers of a topic; `None` if too many filters have to be tried for that.
fn find<'a>(
    routing: &Routing,
    topic: (&str, PartitionIndex),
    session_of: &impl Fn(SessionKey) -> Option<&'a Session>,
    groups: &Groups,
) -> Option<Matches> {
    let mut found: Vec<(SessionKey, Options)> = Vec::new();
    let mut matches = Matches::default();
    let more = routing.match_from(topic.0, None, AT_ONCE_WORK, &mut |entries| {
        matches.any |= !entries.is_empty();
        let live = entries.iter().filter(|subscriber| !subscriber.replaying);
        found.extend(live.map(|subscriber| (subscriber.session, subscriber.options)));
    });
    if more.is_some() {
        return None;
    }
    let (any, concerned) = find_groups(routing, topic, groups);
    matches.any |= any;
    matches.groups = concerned;
    found.sort_unstable_by_key(|(session, _)| *session);
    for group in found.chunk_by(|a, b| a.0 == b.0) {
        let session = group[0].0;
        // Disconnected sessions are skipped first: checking rights costs more.
        let receiver = session_of(session)
            .filter(|session| session.active_conn().is_some())
            .filter(|session| session.may(Access::Receive, topic.0));
        if let Some(conn) = receiver.and_then(Session::active_conn) {
            let effective = EffectiveOptions::of(group.iter().map(|(_, options)| *options));
            matches.targets.push(Target {
                session,
                conn,
                effective,
            });
        }
    }
    Some(matches)
}

/// Whether there are shared groups for a topic, and those that may be given its records.
fn find_groups(
    routing: &Routing,
    topic: (&str, PartitionIndex),
    groups: &Groups,
) -> (bool, Vec<GroupId>) {
    let (mut any, mut concerned) = (false, Vec::new());
    let mut verdicts = Verdicts::default();
    routing.for_each_group(topic.0, &mut |group| {
        any = true;
        if groups.is_concerned(*group, topic, &mut verdicts) {
            concerned.push(*group);
        }
    });
    (any, concerned)
}

/// A part of the work for a costly topic.
struct Part<'r, F> {
    routing: &'r Routing,
    session_of: &'r F,
    groups: &'r Groups,
    topic: (&'r str, PartitionIndex),
    left: u32,
}

impl<'a, F: Fn(SessionKey) -> Option<&'a Session>> Part<'_, F> {
    /// Goes on with the search. Returns whether it has ended.
    fn search(&mut self, costly: &mut CostlyTopic) -> bool {
        let Some(mut search) = costly.search.take() else {
            return true;
        };
        let left = self.left;
        if !search.is_walked {
            let before = self.routing.work();
            let mut any = false;
            let from = search.place.take();
            let more =
                self.routing
                    .match_from(self.topic.0, from.as_ref(), self.left, &mut |entries| {
                        any |= !entries.is_empty();
                        entries
                            .iter()
                            .for_each(|subscriber| search.find(subscriber.session));
                    });
            let work = u32::try_from(self.routing.work() - before).unwrap_or(u32::MAX);
            self.left = self.left.saturating_sub(work);
            costly.matches_mut().any |= any;
            search.is_walked = more.is_none();
            search.place = more;
        }
        while search.is_walked
            && self.left > 0
            && let Some(session) = search.next()
        {
            self.look_at(costly, session);
        }
        costly.work += u64::from(left - self.left);
        let has_ended = search.has_ended();
        costly.search = (!has_ended).then_some(search);
        has_ended
    }

    /// Takes the changes since. Returns whether there are no more.
    fn take_changes(&mut self, costly: &mut CostlyTopic) -> bool {
        while let Some((number, session)) = self.routing.costly.changed_after(costly.as_of) {
            if self.left == 0 {
                costly.late += 1;
                return false;
            }
            self.look_at(costly, session);
            costly.as_of = number;
        }
        costly.late = 0;
        let group_changes = self.routing.costly.group_changes();
        if costly.groups_as_of != Some(group_changes) {
            let (any, concerned) = find_groups(self.routing, self.topic, self.groups);
            let matches = costly.matches_mut();
            matches.any |= any;
            matches.groups = concerned;
            costly.groups_as_of = Some(group_changes);
        }
        true
    }

    /// Tries the filters of one session.
    fn look_at(&mut self, costly: &mut CostlyTopic, key: SessionKey) {
        let (topic, partition) = self.topic;
        let mut work = 1;
        let receiver = (self.session_of)(key).and_then(|session| {
            let conn = session.active_conn()?;
            work += session.subscriptions.len() / FILTERS_PER_WORK;
            let at = Offset(u64::MAX);
            let effective = effective_for(session, topic, partition, at, None)?;
            Some(Target {
                session: key,
                conn,
                effective,
            })
        });
        costly.put(key, receiver);
        self.routing.add_work(work as u64);
        self.left = self.left.saturating_sub(work as u32);
    }
}

/// The effective options of the session's subscriptions for a topic at an offset, or of one replay; `None` if no
/// subscription wants it there.
pub fn effective_for(
    session: &Session,
    topic: &str,
    partition: PartitionIndex,
    at: Offset,
    replay: Option<u16>,
) -> Option<EffectiveOptions> {
    let access = replay.map_or(Access::Receive, |_| Access::Replay);
    let only = replay.and_then(|number| session.replay(number));
    let mut wanted = session
        .subscriptions
        .iter()
        .filter(|held| match replay {
            Some(_) => only.is_some_and(|replay| replay.filter == held.filter),
            None => !session.is_replaying(&held.filter) && held.begins_at(partition) <= at,
        })
        .filter(|held| filter_matches(&held.filter, topic))
        .map(|held| held.options)
        .peekable();
    wanted.peek()?;
    session
        .may(access, topic)
        .then(|| EffectiveOptions::of(wanted))
}
