//! The caller of a Flight or admin HTTP request and its rights: the same users and rules as over MQTT.

use std::sync::Arc;

use super::sessions::SessionDigest;
use crate::auth::{Access, AuthService, Denied, Identity, Rights};
use crate::clock::now_us;
use crate::service::error::Refusal;

/// The caller of a request.
#[derive(Clone, Debug)]
pub struct Caller {
    identity: Arc<Identity>,
    /// `None` if the broker restricts nothing.
    rights: Option<Arc<Rights>>,
    /// Everybody may operate the broker.
    opens_operation: bool,
    /// The epoch of the authority that gave the rights.
    epoch: u64,
    /// The session that authenticated the request, if one did.
    session: Option<SessionDigest>,
}

impl Caller {
    pub fn new(
        identity: Arc<Identity>,
        rights: Option<Arc<Rights>>,
        opens_operation: bool,
        epoch: u64,
        session: Option<SessionDigest>,
    ) -> Caller {
        Caller {
            identity,
            rights,
            opens_operation,
            epoch,
            session,
        }
    }

    pub fn session(&self) -> Option<&SessionDigest> {
        self.session.as_ref()
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The rights that restrict reading and writing records, if there are any.
    pub fn restricting_rights(&self) -> Option<&Arc<Rights>> {
        self.rights
            .as_ref()
            .filter(|rights| !rights.is_unrestricted())
    }

    /// The caller's rights; `None` on a broker without users.
    pub fn rights(&self) -> Option<&Arc<Rights>> {
        self.rights.as_ref()
    }

    /// Whether the rights, if there are any, allow something.
    fn has(&self, allows: impl FnOnce(&Rights) -> bool) -> bool {
        self.rights.as_deref().is_none_or(allows)
    }

    pub fn may(&self, access: Access, topic: &str) -> bool {
        self.has(|rights| rights.may(access, topic, None))
    }

    /// Whether the rights come from the current authority and the credentials have not expired.
    fn is_current(&self, auth: &AuthService) -> bool {
        self.epoch == auth.epoch()
            && (self.identity.expires_us.is_none() || !self.identity.is_expired(now_us()))
    }

    /// The same caller with rights from the current authority, because a call may outlive a change of rights; `None`
    /// while nothing has changed.
    ///
    /// # Errors
    /// The caller would be refused now.
    pub fn renewed(&self, auth: &AuthService) -> Result<Option<Caller>, Refusal> {
        if self.is_current(auth) {
            return Ok(None);
        }
        let epoch = auth.epoch();
        let authority = auth.current();
        let opens_operation = authority.opens_operation();
        if self.identity.is_expired(now_us()) {
            return Err(Refusal::unauthenticated(Denied::ExpiredToken));
        }
        if !authority.still_admits(&self.identity) {
            return Err(Refusal::unauthenticated(Denied::BadCredentials));
        }
        let identity = Arc::clone(&self.identity);
        let rights = authority.rights(Arc::clone(&identity));
        let renewed = Caller::new(identity, rights, opens_operation, epoch, self.session);
        Ok(Some(renewed))
    }

    /// For calls that change or copy shared data.
    ///
    /// # Errors
    /// The caller is not an operator.
    pub fn must_operate(&self, what: &str) -> Result<(), Refusal> {
        if self.is_operator() {
            return Ok(());
        }
        Err(Refusal::not_allowed(format!(
            "{what} needs an operator: write `operator` into the user's section of the ACL file, or the user's name into \
             `auth.operators`"
        )))
    }

    pub fn is_operator(&self) -> bool {
        let rights = self.rights.as_ref();
        self.opens_operation || rights.is_some_and(|rights| rights.is_operator())
    }

    /// For calls that only read the broker's state.
    ///
    /// # Errors
    /// The caller is neither a viewer nor an operator.
    pub fn must_view(&self, what: &str) -> Result<(), Refusal> {
        if self.is_viewer() {
            return Ok(());
        }
        Err(Refusal::not_allowed(format!(
            "{what} needs a viewer or an operator: write `viewer` into the user's section of the ACL file"
        )))
    }

    pub fn is_viewer(&self) -> bool {
        let rights = self.rights.as_ref();
        self.opens_operation || rights.is_some_and(|rights| rights.is_viewer())
    }

    /// The verified user name, if there is one.
    pub fn user(&self) -> Option<&Arc<str>> {
        self.identity.user.as_ref()
    }

    /// For DoPut, before decoding anything.
    ///
    /// # Errors
    /// The caller may not publish to any topic.
    pub fn must_publish(&self) -> Result<(), Refusal> {
        if self.has(|rights| rights.may_some(Access::Publish)) {
            return Ok(());
        }
        Err(Refusal::not_allowed(
            "this user may not publish to any topic",
        ))
    }

    /// The owner of the caller's consumer groups and shares: empty for clients without a name, `None` on a broker
    /// without users.
    pub fn owner(&self) -> Option<&str> {
        self.rights.as_ref()?;
        Some(self.identity.user.as_deref().unwrap_or_default())
    }

    pub fn tenant(&self) -> Option<&str> {
        let tenant = self.rights.as_ref()?.tenant();
        tenant.map(|tenant| &**tenant)
    }

    /// Whether the caller may use this consumer group of another user.
    pub fn may_group(&self, name: &str) -> bool {
        self.has(|rights| self.is_operator() || rights.may_group(name))
    }

    /// Whether the caller may become the owner of this consumer group.
    ///
    /// # Errors
    /// A line of the ACL names it for another user.
    pub fn must_begin_group(&self, name: &str) -> Result<(), Refusal> {
        if self.has(|rights| self.is_operator() || rights.may_begin_group(name)) {
            return Ok(());
        }
        Err(Refusal::not_allowed(format!(
            "the ACL names consumer group {name} for another user: use another name, or write `group {name}` into this \
             user's section too"
        )))
    }

    pub fn sees_all_groups(&self) -> bool {
        self.has(|rights| self.is_operator() || rights.is_viewer())
    }

    /// For consumer groups, which only make sense for callers that may read history.
    ///
    /// # Errors
    /// The caller may not replay any topic.
    pub fn must_replay(&self, what: &str) -> Result<(), Refusal> {
        if self.has(|rights| rights.is_operator() || rights.may_some(Access::Replay)) {
            return Ok(());
        }
        Err(Refusal::not_allowed(format!(
            "{what} needs the right to replay some topic"
        )))
    }
}
