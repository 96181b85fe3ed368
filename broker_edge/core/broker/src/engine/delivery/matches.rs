//! The receivers of a topic: sessions that may have its records now, and shared groups.

use std::rc::Rc;

use crate::auth::Access;
use crate::engine::SessionKey;
use crate::engine::routing::Routing;
use crate::engine::routing::router::Options;
use crate::engine::routing::topics::{EffectiveOptions, Matches, Target, Topic, TopicId};
use crate::engine::session::Session;
use crate::engine::shared_groups::{Groups, Verdicts};

/// The receivers of a topic's records, from the cache if the subscriptions are the same.
#[inline]
pub fn matches<'a>(
    routing: &mut Routing,
    id: TopicId,
    session_of: impl Fn(SessionKey) -> Option<&'a Session>,
    groups: &Groups,
) -> Rc<Matches> {
    routing.matches_or(id, |routing, topic| {
        find(routing, topic, session_of, groups)
    })
}

fn find<'a>(
    routing: &Routing,
    topic: &Topic,
    session_of: impl Fn(SessionKey) -> Option<&'a Session>,
    groups: &Groups,
) -> Matches {
    let mut found: Vec<(SessionKey, Options)> = Vec::new();
    let mut matches = Matches::default();
    let has_away = routing.for_each_match(&topic.name, &mut |subscriber| {
        matches.any = true;
        if !subscriber.replaying {
            found.push((subscriber.session, subscriber.options));
        }
    });
    matches.any |= has_away;
    let mut verdicts = Verdicts::default();
    routing.for_each_group(&topic.name, &mut |group| {
        matches.any = true;
        if groups.is_concerned(*group, (&topic.name, topic.partition), &mut verdicts) {
            matches.groups.push(*group);
        }
    });
    found.sort_unstable_by_key(|(session, _)| *session);
    for group in found.chunk_by(|a, b| a.0 == b.0) {
        let session = group[0].0;
        // Disconnected sessions are skipped first: checking rights costs more.
        let receiver = session_of(session)
            .filter(|session| session.active_conn().is_some())
            .filter(|session| session.may(Access::Receive, &topic.name));
        if let Some(conn) = receiver.and_then(Session::active_conn) {
            let effective = EffectiveOptions::of(group.iter().map(|(_, options)| *options));
            matches.targets.push(Target {
                session,
                conn,
                effective,
            });
        }
    }
    matches
}
