//! The caller of a Flight or admin HTTP request and its rights: the same users and rules as over MQTT.
//!
//! Every call carries its credentials as `Authorization: Basic …` or `Bearer …` (a JWT, or the token from Flight's
//! handshake). The threads that check the passwords of MQTT clients check these too, never a thread of the runtime.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::oneshot;
use tonic::codegen::http::HeaderMap;
use tonic::codegen::http::header::AUTHORIZATION;

use super::Shared;
use super::bearer::Bearers;
use super::connection_slots::TooMany;
use super::error::Refusal;
use super::gate::Pass;
use crate::audit::{Interface, Refused};
use crate::auth::{
    Access, Admission, Answer, Asker, Credentials, Denied, Identity, ListenerKind, Rights,
};

/// The caller of a request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    identity: Arc<Identity>,
    /// `None` if the broker restricts nothing.
    rights: Option<Arc<Rights>>,
    /// Everybody may operate the broker.
    opens_operation: bool,
    /// The epoch of the authority that gave the rights.
    epoch: u64,
}

impl Caller {
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

    pub fn may(&self, access: Access, topic: &str) -> bool {
        self.rights
            .as_ref()
            .is_none_or(|rights| rights.may(access, topic, None))
    }

    /// Whether the rights come from the current authority and the credentials have not expired.
    pub fn is_current(&self, shared: &Shared) -> bool {
        self.epoch == shared.auth.epoch()
            && (self.identity.expires_us.is_none() || !self.identity.is_expired(now_us()))
    }

    /// The same caller with rights from the current authority, because a call may outlive a change of rights.
    ///
    /// # Errors
    /// The caller would be refused now.
    pub fn renew(&self, shared: &Shared) -> Result<Caller, Refusal> {
        let epoch = shared.auth.epoch();
        let authority = shared.auth.current();
        let opens_operation = authority.opens_operation();
        if self.identity.is_expired(now_us()) {
            return Err(Refusal::unauthenticated(Denied::ExpiredToken));
        }
        if !authority.still_admits(&self.identity) {
            return Err(Refusal::unauthenticated(Denied::BadCredentials));
        }
        Ok(Caller {
            identity: Arc::clone(&self.identity),
            rights: authority.rights(Arc::clone(&self.identity)),
            opens_operation,
            epoch,
        })
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
        let rights = self.rights.as_ref();
        if self.opens_operation || rights.is_some_and(|rights| rights.is_viewer()) {
            return Ok(());
        }
        Err(Refusal::not_allowed(format!(
            "{what} needs a viewer or an operator: write `viewer` into the user's section of the ACL file"
        )))
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
        let may = self
            .rights
            .as_ref()
            .is_none_or(|rights| rights.may_some(Access::Publish));
        if may {
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
        let rights = self.rights.as_ref();
        rights.is_none_or(|rights| self.is_operator() || rights.may_group(name))
    }

    pub fn sees_all_groups(&self) -> bool {
        let rights = self.rights.as_ref();
        rights.is_none_or(|rights| self.is_operator() || rights.is_viewer())
    }

    /// For consumer groups, which only make sense for callers that may read history.
    ///
    /// # Errors
    /// The caller may not replay any topic.
    pub fn must_replay(&self, what: &str) -> Result<(), Refusal> {
        let may = self
            .rights
            .as_ref()
            .is_none_or(|rights| rights.is_operator() || rights.may_some(Access::Replay));
        if may {
            return Ok(());
        }
        Err(Refusal::not_allowed(format!(
            "{what} needs the right to replay some topic"
        )))
    }
}

/// Identifies the caller of a request.
///
/// # Errors
/// Missing or invalid credentials.
pub(crate) async fn authenticate(
    shared: &Shared,
    headers: &HeaderMap,
    pass: &Arc<Pass>,
) -> Result<Caller, Refusal> {
    // In this order, a reload in between is noticed by the next check.
    let epoch = shared.auth.epoch();
    let authority = shared.auth.current();
    let is_open = authority.is_open();
    let identity = if is_open {
        Arc::default()
    } else {
        let authenticated = identity_of(shared, headers, pass).await;
        authenticated.map_err(|denied| {
            shared.note_denied(denied, pass);
            Refusal::unauthenticated(denied)
        })?
    };
    let rights = authority.rights(Arc::clone(&identity));
    let tenant = rights.as_ref().and_then(|rights| rights.tenant());
    pass.let_in(&identity, tenant, !is_open)
        .map_err(|TooMany { max, of }| {
            shared.refuse_call(pass, "quota_connections", identity.user.as_deref());
            let setting = format!("{}.{}", pass.kind().name(), of.setting());
            Refusal::too_many_connections(of.name(), max, &setting)
        })?;
    Ok(Caller {
        identity,
        rights,
        opens_operation: is_open && authority.opens_operation(),
        epoch,
    })
}

async fn identity_of(
    shared: &Shared,
    headers: &HeaderMap,
    pass: &Arc<Pass>,
) -> Result<Arc<Identity>, Denied> {
    let authority = shared.auth.current();
    let given = headers.get(AUTHORIZATION);
    let given = given.map(|value| value.to_str().map_err(|_| Denied::BadCredentials));
    let shown = given
        .transpose()?
        .map(AuthorizationHeader::parse)
        .transpose()?;
    if let Some(AuthorizationHeader::Own(token)) = &shown {
        let bearer = shared.bearers.authenticate(&authority, token, now_us());
        return bearer.ok_or(Denied::ExpiredToken);
    }
    let credentials = match &shown {
        None => Credentials::default(),
        Some(AuthorizationHeader::Own(token) | AuthorizationHeader::Token(token)) => Credentials {
            password: Some(token.as_bytes()),
            ..Credentials::default()
        },
        Some(AuthorizationHeader::Password { user, password }) => Credentials {
            user: Some(user),
            password: Some(password.as_bytes()),
            certificate: None,
        },
    };
    let identity = match authority.admit(&credentials) {
        Admission::In(identity) => identity,
        Admission::Out(denied) => return Err(denied),
        Admission::Check(check) => {
            let (tell, answer) = oneshot::channel();
            let verifier = shared.auth.verifier();
            let _checking = pass.begin_check();
            let address = pass.address.ip();
            let asked = verifier.check(pass.kind(), address, check, WaitingCall(tell));
            asked.map_err(|_| Denied::Busy)?;
            answer.await.map_err(|_| Denied::Busy)??
        }
    };
    if identity.is_expired(now_us()) {
        return Err(Denied::ExpiredToken);
    }
    Ok(identity)
}

/// A call that waits for its answer until the client disconnects or resets it.
struct WaitingCall(oneshot::Sender<Answer>);

impl Asker for WaitingCall {
    fn is_there(&self) -> bool {
        !self.0.is_closed()
    }

    fn tell(self: Box<Self>, answer: Answer) {
        // The client may have disconnected meanwhile.
        let _ = self.0.send(answer);
    }
}

impl Shared {
    /// Counts and logs a call whose credentials were refused.
    fn note_denied(&self, denied: Denied, pass: &Pass) {
        self.metrics.auth.deny(denied);
        self.refuse_call(pass, denied.label(), None);
    }

    /// Counts and logs a refusal that does not concern the rights of a call.
    pub(super) fn refuse_call(&self, pass: &Pass, reason: &'static str, user: Option<&str>) {
        self.metrics.audit.refuse(&Refused {
            door: match pass.kind() {
                ListenerKind::Flight => Interface::Flight,
                ListenerKind::Admin | ListenerKind::Mqtt => Interface::Admin,
            },
            act: "call",
            reason,
            user,
            address: Some(pass.address.ip()),
            client_id: None,
        });
    }
}

/// The contents of an `Authorization` header.
enum AuthorizationHeader {
    Password {
        user: String,
        password: String,
    },
    Token(String),
    /// One of the broker's own bearer tokens.
    Own(String),
}

impl AuthorizationHeader {
    fn parse(text: &str) -> Result<AuthorizationHeader, Denied> {
        let (scheme, rest) = text.split_once(' ').ok_or(Denied::Method)?;
        let rest = rest.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return Ok(if Bearers::is_own(rest) {
                AuthorizationHeader::Own(rest.to_owned())
            } else {
                AuthorizationHeader::Token(rest.to_owned())
            });
        }
        if !scheme.eq_ignore_ascii_case("basic") {
            return Err(Denied::Method);
        }
        let bytes = STANDARD.decode(rest).map_err(|_| Denied::BadCredentials)?;
        let text = String::from_utf8(bytes).map_err(|_| Denied::BadCredentials)?;
        let (user, password) = text.split_once(':').ok_or(Denied::BadCredentials)?;
        Ok(AuthorizationHeader::Password {
            user: user.to_owned(),
            password: password.to_owned(),
        })
    }
}

pub(super) fn now_us() -> i64 {
    let wall = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(wall.as_micros()).unwrap_or(i64::MAX)
}
