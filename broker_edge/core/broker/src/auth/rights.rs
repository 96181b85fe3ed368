//! What an identity may do under a state of the files.

use std::sync::Arc;

use super::acl::Target;
use super::authority::Authority;
use super::rules::{ClientId, Names, Verdict};
use super::section::Section;
use super::{Access, Identity, Proof};

/// Whose rights are the same but for what follows from the client id, under one state of the files and as long as one of
/// them is there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Caller {
    user: Option<Arc<str>>,
    /// Where that of a token lies.
    own_section: usize,
    is_stored: bool,
}

/// What an identity may do.
#[derive(Debug)]
pub struct Rights {
    authority: Arc<Authority>,
    identity: Arc<Identity>,
    /// Of the token, or of the ACL file when there is one.
    section: Option<Arc<Section>>,
}

impl Rights {
    pub(super) fn new(
        authority: Arc<Authority>,
        identity: Arc<Identity>,
        section: Option<Arc<Section>>,
    ) -> Self {
        let section = identity.own_section.clone().or(section);
        Self {
            authority,
            identity,
            section,
        }
    }

    pub fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    /// The user's name; nothing for a client without credentials.
    pub fn user(&self) -> Option<&Arc<str>> {
        self.identity.user.as_ref()
    }

    /// The tenant that the user belongs to, where one is written.
    pub fn tenant(&self) -> Option<&Arc<str>> {
        self.section.as_ref()?.tenant()
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
            client_id: self.as_name(client_id),
        };
        let Some(section) = &self.section else {
            return true;
        };
        if self.identity.proof == Proof::Stored {
            return true;
        }
        match (&self.authority.acl, self.has_own_section()) {
            (Some(acl), false) => acl.allows(section, access, target, &names),
            _ => target.ask(&section.rules, access, &names) == Verdict::Allowed,
        }
    }

    /// Whether a client that calls itself in some way could use the topic so: it is true more often than [`Rights::may`],
    /// and the same for all who are one [`Caller`].
    pub fn might(&self, access: Access, topic: &str) -> bool {
        let names = Names {
            user: self.identity.user.as_deref(),
            client_id: ClientId::Any,
        };
        let Some(section) = &self.section else {
            return true;
        };
        if self.identity.proof == Proof::Stored {
            return true;
        }
        match (&self.authority.acl, self.has_own_section()) {
            (Some(acl), false) => acl.might_allow(section, access, topic, &names),
            _ => section.rules.may_allow(access, topic, &names),
        }
    }

    pub fn caller(&self) -> Caller {
        let own = self.identity.own_section.as_ref();
        Caller {
            user: self.identity.user.clone(),
            own_section: own.map_or(0, |section| Arc::as_ptr(section) as usize),
            is_stored: self.identity.proof == Proof::Stored,
        }
    }

    /// A token replaces the ACL file for its bearer.
    fn has_own_section(&self) -> bool {
        self.identity.own_section.is_some()
    }

    fn as_name<'a>(&self, client_id: Option<&'a str>) -> ClientId<'a> {
        match client_id {
            None => ClientId::Absent,
            Some(id) if self.authority.trusts_client_ids() || self.proves(id) => {
                ClientId::Proved(id)
            }
            Some(_) => ClientId::Unproved,
        }
    }

    /// Whether a client id is the user's own: it is the user's name, a `client-id` line of the user matches it, or the
    /// certificate that the client showed holds it. A client without credentials has no name that it could belong to;
    /// it may have any that is nobody's.
    pub fn proves(&self, client_id: &str) -> bool {
        let Some(user) = &self.identity.user else {
            let authority = &self.authority;
            return !authority.has_client_id_rules() || !authority.has_owner(client_id);
        };
        let is_certified = |names: &Arc<crate::peer::CertificateNames>| {
            names.common_name.as_deref() == Some(client_id)
                || names.alternative_names.iter().any(|name| name == client_id)
        };
        **user == *client_id
            || self
                .section
                .as_ref()
                .is_some_and(|section| section.owns_client_id(client_id))
            || self.identity.certified.as_ref().is_some_and(is_certified)
    }

    /// Whether what a client says as the device of this name counts: nobody else is known to be it.
    pub fn speaks_as(&self, client_id: &str) -> bool {
        let authority = &self.authority;
        authority.trusts_client_ids()
            || (self.identity.user.is_some() && self.proves(client_id))
            || !authority.has_owner(client_id)
    }

    /// Whether rules with `%c` exist that a client id which is not proved keeps from applying.
    pub fn misses_rules_by(&self, client_id: &str) -> bool {
        !self.authority.trusts_client_ids()
            && !self.proves(client_id)
            && match &self.identity.own_section {
                Some(own) => own.rules.name_client_id(),
                None => self.authority.has_client_id_rules(),
            }
    }

    /// Whether anything at all may be used so, by its rules alone.
    pub fn may_some(&self, access: Access) -> bool {
        let Some(section) = &self.section else {
            return true;
        };
        match (&self.authority.acl, self.has_own_section()) {
            (Some(acl), false) => acl.allows_some(section, access),
            _ => section.allows_some(access),
        }
    }

    /// Whether every topic may be used in every way.
    pub fn is_unrestricted(&self) -> bool {
        self.section.is_none()
    }

    /// Whether a consumer group of somebody else may be used.
    pub fn may_group(&self, group: &str) -> bool {
        let section = self.section.as_ref();
        self.is_operator() || section.is_some_and(|section| section.has_group(group))
    }

    /// Whether the broker itself may be worked on: groups removed, backups taken, files loaded anew.
    pub fn is_operator(&self) -> bool {
        let user = self.identity.user.as_deref();
        let is_named =
            !self.has_own_section() && user.is_some_and(|user| self.authority.names_operator(user));
        let section = self.section.as_ref();
        is_named || section.is_some_and(|section| section.is_operator())
    }

    /// Whether the broker may be looked at: its clients, groups and figures.
    pub fn is_viewer(&self) -> bool {
        let section = self.section.as_ref();
        self.is_operator() || section.is_some_and(|section| section.is_viewer())
    }
}
