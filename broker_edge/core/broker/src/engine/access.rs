//! The one place where the engine asks whether somebody may do something.
//!
//! A session has rights only where there is something to restrict, so an open broker pays one branch. Deliveries of the
//! live stream are checked when the list of a topic's subscribers is made, which is kept under the epoch of the
//! subscriptions; publishes when they come.

use crate::auth::{Access, Authority};

use super::topics::TopicId;
use super::{ConnKey, Engine, SessionKey};

/// What the hot path has to know of the authority.
pub(super) struct Guard {
    pub restricts: bool,
}

impl Guard {
    pub fn new(authority: &Authority) -> Self {
        Self {
            restricts: authority.restricts(),
        }
    }
}

impl Engine {
    /// Whether the client of a session may do this with a topic (a filter, for [`Access::Subscribe`]).
    #[inline]
    pub(super) fn may(&self, session: SessionKey, access: Access, topic: &str) -> bool {
        !self.guard.restricts
            || self
                .sessions
                .get(session)
                .is_some_and(|session| session.may(access, topic))
    }

    /// Whether the client of a connection may publish to a topic.
    #[inline]
    pub(super) fn may_publish(&mut self, key: ConnKey, topic: TopicId) -> bool {
        !self.guard.restricts || self.may_publish_restricted(key, topic)
    }

    fn may_publish_restricted(&mut self, key: ConnKey, topic: TopicId) -> bool {
        let (Some(session), Some(topic)) = (
            self.conns.get(key).and_then(|conn| conn.session),
            self.topics.get(topic),
        ) else {
            return false;
        };
        self.may(session, Access::Publish, &topic.name)
    }
}
