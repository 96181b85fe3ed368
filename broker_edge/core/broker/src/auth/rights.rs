//! The rights of an identity under one snapshot of the files.

use std::sync::Arc;

use super::acl::{Acl, AclLine, Target};
use super::authority::Authority;
use super::rules::{ClientId, Names, Verdict};
use super::section::Section;
use super::{Access, Identity, Proof};

/// Identifies callers whose rights differ at most by client id. Valid within one snapshot of the files, while one of
/// the callers exists.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Caller {
    user: Option<Arc<str>>,
    /// The address of a token's own section.
    own_section: usize,
    is_stored: bool,
}

/// The rights of an identity.
#[derive(Debug)]
pub struct Rights {
    authority: Arc<Authority>,
    identity: Arc<Identity>,
    /// The section of the token, or of the ACL file if there is one.
    section: Option<Arc<Section>>,
}

/// Here and not beside the other questions to an authority, because rights refer to it.
impl Authority {
    /// The rights of an identity; `None` if nothing is restricted.
    pub fn rights(self: &Arc<Self>, identity: Arc<Identity>) -> Option<Arc<Rights>> {
        if self.is_open() {
            return None;
        }
        let acl = self.acl.as_ref();
        let section = acl.map(|acl| acl.section(identity.user.as_deref()));
        Some(Rights::new(Arc::clone(self), identity, section))
    }

    /// Stands in for the rights of a stored session's owner until the owner reconnects. It allows everything, because
    /// each part of the session was checked before it was stored; only its will is checked again. `user` is empty for a
    /// client without credentials.
    pub fn stored_rights(self: &Arc<Self>, user: &str) -> Arc<Rights> {
        let user = Some(user).filter(|user| !user.is_empty());
        let section = self.acl.as_ref().map(|acl| acl.section(user));
        let identity = Identity {
            user: user.map(Arc::from),
            proof: Proof::Stored,
            ..Identity::default()
        };
        Rights::new(Arc::clone(self), Arc::new(identity), section)
    }

    /// The rights of a client that is no longer admitted: none.
    pub fn no_rights(self: &Arc<Self>, identity: &Identity) -> Arc<Rights> {
        let nothing = Identity {
            user: identity.user.clone(),
            own_section: Some(Arc::default()),
            ..Identity::default()
        };
        Rights::new(Arc::clone(self), Arc::new(nothing), None)
    }
}

/// What is known besides the line that decides.
pub(super) struct Advice {
    /// A pattern that allows the access to clients with another id.
    pub for_another: Option<AclLine>,
    /// Whether the ACL file has a section for the user.
    pub has_section: bool,
    /// Whether the access is to all topics that the filter matches.
    pub is_whole: bool,
}

impl Rights {
    fn new(
        authority: Arc<Authority>,
        identity: Arc<Identity>,
        section: Option<Arc<Section>>,
    ) -> Arc<Self> {
        let section = identity.own_section.clone().or(section);
        Arc::new(Self {
            authority,
            identity,
            section,
        })
    }

    pub fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    /// The user's name; `None` for a client without credentials.
    pub fn user(&self) -> Option<&Arc<str>> {
        self.identity.user.as_ref()
    }

    /// The user's tenant, if one is configured.
    pub fn tenant(&self) -> Option<&Arc<str>> {
        self.section.as_ref()?.tenant()
    }

    /// Whether this access to the topic (for [`Access::Subscribe`], to the filter) is allowed. `client_id` is `None`
    /// outside MQTT.
    pub fn may(&self, access: Access, topic: &str, client_id: Option<&str>) -> bool {
        match access {
            Access::Subscribe => self.may_filter(access, topic, client_id),
            // The only publish of a session whose owner has not connected yet: its will.
            Access::Publish if self.identity.proof == Proof::Stored => {
                self.may_publish_stored(topic, client_id)
            }
            _ => self.ask(access, Target::Topic(topic), client_id),
        }
    }

    /// Whether the files still allow a stored will, which was allowed when it was stored. The right to the client id was
    /// checked then, and cannot be checked again without the client. The rights that a token brought are unknown.
    fn may_publish_stored(&self, topic: &str, client_id: Option<&str>) -> bool {
        let authority = &self.authority;
        authority.may_admit(self.identity.user.as_deref())
            && (authority.reads_tokens() || self.acl_allows_stored(topic, client_id))
    }

    /// The same where the files alone decide ([`Proof::is_by_files`]). Always true for a client that has connected since
    /// the start.
    pub fn files_allow_stored(&self, topic: &str, client_id: &str) -> bool {
        self.identity.proof != Proof::Stored
            || (self
                .authority
                .may_admit_listed(self.identity.user.as_deref())
                && self.acl_allows_stored(topic, Some(client_id)))
    }

    fn acl_allows_stored(&self, topic: &str, client_id: Option<&str>) -> bool {
        let (Some(acl), Some(section)) = (&self.authority.acl, &self.section) else {
            return true;
        };
        let names = Names {
            user: self.identity.user.as_deref(),
            client_id: client_id.map_or(ClientId::Absent, ClientId::Proved),
        };
        acl.allows(section, Access::Publish, Target::Topic(topic), &names)
    }

    /// Whether the filter may match a topic with this access allowed.
    pub fn may_filter(&self, access: Access, filter: &str, client_id: Option<&str>) -> bool {
        // Sharing a subscription affects its delivery, not what it reads.
        let filter = match headwater_mqtt::topic::parse_shared(filter) {
            Ok(Some(shared)) => shared.filter,
            _ => filter,
        };
        self.ask(access, Target::Filter(filter), client_id)
    }

    /// Whether an access is allowed by the ACL file, and the line on which that rests; `None` without a file.
    pub(super) fn explain(
        &self,
        access: Access,
        target: Target<'_>,
        client_id: Option<&str>,
    ) -> Option<(Verdict, Option<AclLine>)> {
        let names = Names {
            user: self.identity.user.as_deref(),
            client_id: self.as_name(client_id),
        };
        let (acl, section) = (self.acl()?, self.section.as_ref()?);
        Some(acl.explain(section, access, target, &names))
    }

    /// What somebody who is not allowed something, or not all of it, wants to know besides; `None` without a file.
    pub(super) fn advice(
        &self,
        access: Access,
        target: Target<'_>,
        client_id: Option<&str>,
    ) -> Option<Advice> {
        let user = self.identity.user.as_deref();
        let names = Names {
            user,
            client_id: self.as_name(client_id),
        };
        let (acl, section) = (self.acl()?, self.section.as_ref()?);
        Some(Advice {
            for_another: acl.for_another(access, target, &names),
            has_section: user.is_none_or(|user| acl.has_section(user)),
            is_whole: match target {
                Target::Filter(filter) => acl.allows_all(section, access, filter, &names),
                Target::Topic(_) => true,
            },
        })
    }

    fn ask(&self, access: Access, target: Target<'_>, client_id: Option<&str>) -> bool {
        let names = Names {
            user: self.identity.user.as_deref(),
            client_id: self.as_name(client_id),
        };
        self.asks(|section, acl| match acl {
            Some(acl) => acl.allows(section, access, target, &names),
            None => target.ask(&section.rules, access, &names) == Verdict::Allowed,
        })
    }

    /// Whether this access to the topic is allowed with some client id. It is true more often than [`Rights::may`], and
    /// the same for all that share one [`Caller`].
    pub fn might(&self, access: Access, topic: &str) -> bool {
        let names = Names {
            user: self.identity.user.as_deref(),
            client_id: ClientId::Any,
        };
        self.asks(|section, acl| match acl {
            Some(acl) => acl.might_allow(section, access, topic, &names),
            None => section.rules.may_allow(access, topic, &names),
        })
    }

    /// Asks the section and, unless a token replaces it, the ACL file. Where nothing restricts the owner, or the owner
    /// has only stored state so far, the answer is yes.
    fn asks(&self, question: impl FnOnce(&Section, Option<&Acl>) -> bool) -> bool {
        match &self.section {
            Some(section) if self.identity.proof != Proof::Stored => question(section, self.acl()),
            _ => true,
        }
    }

    /// The ACL file, unless a token replaces it for this client.
    fn acl(&self) -> Option<&Acl> {
        let acl = self.authority.acl.as_ref();
        acl.filter(|_| !self.has_own_section())
    }

    pub fn caller(&self) -> Caller {
        let own = self.identity.own_section.as_ref();
        Caller {
            user: self.identity.user.clone(),
            own_section: own.map_or(0, |section| Arc::as_ptr(section) as usize),
            is_stored: self.identity.proof == Proof::Stored,
        }
    }

    /// Whether a token replaces the ACL file for this client.
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

    /// Whether the client id belongs to the user: it is the user's name, matches a `client-id` line of the user, or
    /// stands in the client's certificate. A client without credentials may have any client id that belongs to nobody.
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

    /// Whether the client may speak for the device with this name: the name is not known to belong to somebody else.
    pub fn speaks_as(&self, client_id: &str) -> bool {
        let authority = &self.authority;
        authority.trusts_client_ids()
            || (self.identity.user.is_some() && self.proves(client_id))
            || !authority.has_owner(client_id)
    }

    /// Whether rules with `%c` exist that do not apply because the client id is unproved.
    pub fn misses_rules_by(&self, client_id: &str) -> bool {
        !self.authority.trusts_client_ids()
            && !self.proves(client_id)
            && match &self.identity.own_section {
                Some(own) => own.rules.name_client_id(),
                None => self.authority.has_client_id_rules(),
            }
    }

    /// Whether the rules allow this access to any topic at all.
    pub fn may_some(&self, access: Access) -> bool {
        let Some(section) = &self.section else {
            return true;
        };
        match self.acl() {
            Some(acl) => acl.allows_some(section, access),
            None => section.rules.allow_some(access),
        }
    }

    /// Whether every access to every topic is allowed.
    pub fn is_unrestricted(&self) -> bool {
        self.section.is_none()
    }

    /// Whether the user may use a consumer group of another user.
    pub fn may_group(&self, group: &str) -> bool {
        let section = self.section.as_ref();
        self.is_operator() || section.is_some_and(|section| section.has_group(group))
    }

    /// Whether the user may begin a consumer group: no `group` line names it for somebody else.
    pub fn may_begin_group(&self, group: &str) -> bool {
        let acl = self.authority.acl.as_ref();
        self.may_group(group) || !acl.is_some_and(|acl| acl.names_group(group))
    }

    /// Whether the user may operate the broker: remove groups, take backups, reload files.
    pub fn is_operator(&self) -> bool {
        let user = self.identity.user.as_deref();
        let is_named =
            !self.has_own_section() && user.is_some_and(|user| self.authority.names_operator(user));
        let section = self.section.as_ref();
        is_named || section.is_some_and(|section| section.is_operator)
    }

    /// Whether the user may view the broker's clients, groups and metrics.
    pub fn is_viewer(&self) -> bool {
        let section = self.section.as_ref();
        self.is_operator() || section.is_some_and(|section| section.is_viewer)
    }
}
