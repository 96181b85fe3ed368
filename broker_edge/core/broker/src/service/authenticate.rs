//! Identifies the caller of a request, the same for Flight and admin HTTP.
//!
//! Every call carries its credentials as `Authorization: Basic …` or `Bearer …` (a JWT, or the token from Flight's
//! handshake). The threads that check the passwords of MQTT clients check these too, never a thread of the runtime.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::oneshot;
use tonic::codegen::http::HeaderMap;
use tonic::codegen::http::header::AUTHORIZATION;

use super::callers::bearer::Bearers;
use super::callers::caller::Caller;
use super::connections::pass::Pass;
use super::connections::slots::TooMany;
use super::error::Refusal;
use super::shared::Shared;
use crate::audit::{Interface, Refused};
use crate::auth::{Admission, Answer, Asker, Credentials, Denied, Identity, ListenerKind};
use crate::clock::now_us;

/// Identifies the caller of a request.
///
/// # Errors
/// Missing or invalid credentials.
pub async fn authenticate(
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
    let opens_operation = is_open && authority.opens_operation();
    Ok(Caller::new(identity, rights, opens_operation, epoch))
}

async fn identity_of(
    shared: &Shared,
    headers: &HeaderMap,
    pass: &Arc<Pass>,
) -> Result<Arc<Identity>, Denied> {
    let authority = shared.auth.current();
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (given, second) = (all.next(), all.next());
    if second.is_some() {
        // A proxy in front may have checked the other one.
        return Err(Denied::BadCredentials);
    }
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
    pub fn refuse_call(&self, pass: &Pass, reason: &'static str, user: Option<&str>) {
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
pub enum AuthorizationHeader {
    Password {
        user: String,
        password: String,
    },
    Token(String),
    /// One of the broker's own bearer tokens.
    Own(String),
}

impl AuthorizationHeader {
    pub fn parse(text: &str) -> Result<AuthorizationHeader, Denied> {
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
