//! The topic of a PUBLISH, by name or alias, and the limits on the topics of a client.

use headwater_mqtt::{Publish, ReasonCode};

use crate::engine::ConnKey;
use crate::engine::observe::Count;
use crate::engine::quotas::Kind;
use crate::engine::routing::topics::TopicId;
use crate::engine::session::connection::Alias;

use super::publish::Publishing;

impl Publishing<'_> {
    /// The topic of a publish, by name or alias; `None` if it was refused.
    #[inline]
    pub(super) fn topic_of(&mut self, key: ConnKey, publish: &Publish<'_>) -> Option<TopicId> {
        let conn = self.clients.conn(key)?;
        if publish.topic_alias.is_none()
            && let Some(topic) = self.routing.topic(conn.topic)
            && topic.name.as_bytes() == publish.topic.as_bytes()
        {
            return Some(conn.topic);
        }
        self.find_topic(key, publish)
    }

    fn find_topic(&mut self, key: ConnKey, publish: &Publish<'_>) -> Option<TopicId> {
        let alias = publish.topic_alias.map(|alias| usize::from(alias.get()));
        if alias
            .is_some_and(|alias| alias > usize::from(self.env.settings.mqtt.topic_alias_maximum))
        {
            self.close(key, ReasonCode::TopicAliasInvalid);
            return None;
        }
        if let (Some(alias), true) = (alias, publish.topic.is_empty()) {
            return self.aliased_topic(key, alias, publish);
        }
        let name = publish.topic.as_str();
        let found = self.named_topic(key, name);
        if let Err(reason) = found {
            self.refuse_name(key, publish, reason);
        }
        let conn = self.clients.conn_mut(key)?;
        if let Some(alias) = alias {
            let aliases = &mut conn.extras.aliases;
            if aliases.len() < alias {
                aliases.resize_with(alias, || None);
            }
            aliases[alias - 1] = Some(match found {
                Ok(topic) => {
                    let name = name.into();
                    Alias::Topic { name, topic }
                }
                Err(reason) => Alias::Refused(reason),
            });
        } else if let Ok(topic) = found {
            conn.topic = topic;
        }
        found.ok()
    }

    /// The topic of a name, or the reason why the client may not publish to it.
    fn named_topic(&mut self, key: ConnKey, name: &str) -> Result<TopicId, ReasonCode> {
        if let Some(reason) = self.env.refusal_of_name(name) {
            return Err(reason);
        }
        if self.is_one_topic_too_many(key, name) || self.is_topic_over_quota(key, name) {
            self.observe.count(Count::TopicsRefused, 1);
            return Err(ReasonCode::QuotaExceeded);
        }
        Ok(self.intern_for(key, name))
    }

    fn aliased_topic(
        &mut self,
        key: ConnKey,
        number: usize,
        publish: &Publish<'_>,
    ) -> Option<TopicId> {
        let conn = self.clients.conn_mut(key)?;
        let aliases = conn.extras.present_mut().map(|extras| &mut extras.aliases);
        match aliases.and_then(|aliases| aliases.get_mut(number - 1)?.as_mut()) {
            Some(Alias::Topic { name, topic }) => {
                if self.routing.topic(*topic).is_none() {
                    *topic = self.routing.intern(name, &self.env.log);
                }
                Some(*topic)
            }
            Some(Alias::Refused(reason)) => {
                let reason = *reason;
                self.refuse_name(key, publish, reason);
                None
            }
            None => {
                // The alias is within the limit but not set: this has another reason code than an alias over the limit.
                self.close(key, ReasonCode::ProtocolError);
                None
            }
        }
    }

    /// Whether this topic name would exceed its client's limit on topics.
    fn is_one_topic_too_many(&self, key: ConnKey, name: &str) -> bool {
        let limit = self.env.settings.mqtt.max_topics;
        let generation = self.routing.generation();
        let session = self.clients.session_of(key);
        session.is_some_and(|session| session.topics_made.in_table(generation) >= limit)
            && !self.routing.holds_topic(name)
    }

    /// Interns a topic, and counts it for the client that added it to the table.
    fn intern_for(&mut self, key: ConnKey, name: &str) -> TopicId {
        let before = self.routing.topics_len();
        let id = self.routing.intern(name, &self.env.log);
        if self.routing.topics_len() != before
            && let Some((_, session)) = self.clients.attached(key)
        {
            session.topics_made.add(self.routing.generation());
            self.charge_topic(key);
        }
        id
    }

    /// Whether one more topic exceeds a quota of the client's user.
    fn is_topic_over_quota(&mut self, key: ConnKey, name: &str) -> bool {
        if !self.quotas.is_used() || self.routing.holds_topic(name) {
            return false;
        }
        self.quotas.begin_table(self.routing.generation());
        let account = self.clients.conn(key).and_then(|conn| conn.account);
        let is_over = !self.quotas.allows(account, Kind::Topics, 1);
        if is_over {
            let what = ("publish", Kind::Topics.reason());
            let topic = Some(name);
            self.clients.refused(key, None, what, topic, self.env);
        }
        is_over
    }

    /// A client added a topic to the table.
    fn charge_topic(&mut self, key: ConnKey) {
        if self.quotas.is_used() {
            self.quotas.begin_table(self.routing.generation());
            let account = self.clients.conn(key).and_then(|conn| conn.account);
            self.quotas.add(account, Kind::Topics, 1);
        }
    }
}
