//! What an identity may do under a state of the files.

use std::sync::Arc;

use super::acl::{Section, Target};
use super::authority::Authority;
use super::rules::{Names, Verdict};
use super::{Access, Identity};

/// What an identity may do.
#[derive(Debug)]
pub struct Rights {
    authority: Arc<Authority>,
    identity: Arc<Identity>,
    /// Of the ACL file, when there is one.
    section: Option<Arc<Section>>,
}

impl Rights {
    pub(super) fn new(
        authority: Arc<Authority>,
        identity: Arc<Identity>,
        section: Option<Arc<Section>>,
    ) -> Self {
        Self {
            authority,
            identity,
            section,
        }
    }

    pub fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    /// Whether the topic (the filter, for [`Access::Subscribe`]) may be used so. `client_id` is `None` outside MQTT.
    pub fn may(&self, access: Access, topic: &str, client_id: Option<&str>) -> bool {
        match access {
            Access::Subscribe => self.may_filter(access, topic, client_id),
            _ => self.ask(access, Target::Topic(topic), client_id),
        }
    }

    /// Whether there may be a topic under the filter that may be used so.
    pub fn may_filter(&self, access: Access, filter: &str, client_id: Option<&str>) -> bool {
        // A subscription is shared in its delivery, not in what it reads.
        let filter = match headwater_mqtt::topic::parse_shared(filter) {
            Ok(Some(shared)) => shared.filter,
            _ => filter,
        };
        self.ask(access, Target::Filter(filter), client_id)
    }

    fn ask(&self, access: Access, target: Target<'_>, client_id: Option<&str>) -> bool {
        let names = Names {
            user: self.identity.user.as_deref(),
            client_id,
        };
        if let Some(rules) = &self.identity.own_rules {
            return target.ask(rules, access, &names) == Verdict::Allowed;
        }
        match (&self.authority.acl, &self.section) {
            (Some(acl), Some(section)) => acl.allows(section, access, target, &names),
            _ => true,
        }
    }

    /// Whether anything at all may be used so, by its rules alone.
    pub fn may_some(&self, access: Access) -> bool {
        match (&self.identity.own_rules, &self.authority.acl, &self.section) {
            (Some(rules), _, _) => rules.allow_some(access),
            (None, Some(acl), Some(section)) => acl.allows_some(section, access),
            _ => true,
        }
    }

    /// Whether every topic may be used in every way.
    pub fn is_unrestricted(&self) -> bool {
        self.identity.own_rules.is_none() && self.authority.acl.is_none()
    }

    /// Whether the broker itself may be worked on: groups removed, backups taken, files loaded anew. Without an ACL file
    /// every user may, but nobody without a name where names can be proved.
    pub fn is_operator(&self) -> bool {
        let is_named = self.identity.user.is_some() || !self.authority.is_configured;
        match (&self.identity.own_rules, &self.section) {
            (Some(_), _) => false,
            (None, Some(section)) => section.is_operator(),
            (None, None) => is_named,
        }
    }
}
