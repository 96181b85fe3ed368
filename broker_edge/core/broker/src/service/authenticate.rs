//! Identifies the caller of a request, the same for Flight and admin HTTP.
//!
//! Every call carries its credentials as `Authorization: Basic …` or `Bearer …` (a JWT, or the token from Flight's
//! handshake). Browsers send the cookie of their session instead, to the admin listener only. The threads that check
//! the passwords of MQTT clients check these too, never a thread of the runtime.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::oneshot;
use tonic::codegen::http::header::AUTHORIZATION;
use tonic::codegen::http::{HeaderMap, HeaderName};

use super::callers::bearer::Bearers;
use super::callers::caller::Caller;
use super::callers::sessions::SessionDigest;
use super::connections::pass::Pass;
use super::connections::slots::TooMany;
use super::error::Refusal;
use super::shared::Shared;
use crate::audit::{Interface, Refused};
use crate::auth::{
    Admission, Answer, Asker, Authority, Credentials, Denied, Identity, ListenerKind,
};
use crate::clock::now_us;

/// A request of the console, which asks for credentials itself.
pub const OF_CONSOLE: HeaderName = HeaderName::from_static("x-headwater");

/// Identifies the caller of a request by its headers.
///
/// # Errors
/// Missing or invalid credentials.
pub async fn authenticate(
    shared: &Shared,
    headers: &HeaderMap,
    pass: &Arc<Pass>,
) -> Result<Caller, Refusal> {
    let shown = shown_in(shared, headers, pass.kind());
    // A page that is opened tries at once, with the cookie of an ended session or with nothing. It claims nothing yet.
    let claims = !matches!(shown, Ok(Shown::Nothing | Shown::Session(_)));
    let is_page = pass.kind() == ListenerKind::Admin && headers.contains_key(OF_CONSOLE);
    let is_noted = claims || !is_page;
    examine(shared, shown, pass, is_noted).await
}

/// Identifies the caller of a request by what it shows, or refuses it because that cannot be read.
///
/// # Errors
/// Missing or invalid credentials.
pub async fn authenticate_by(
    shared: &Shared,
    shown: Result<Shown, Denied>,
    pass: &Arc<Pass>,
) -> Result<Caller, Refusal> {
    examine(shared, shown, pass, true).await
}

/// `is_noted`: whether missing or invalid credentials are written to the audit. They are counted in any case.
async fn examine(
    shared: &Shared,
    shown: Result<Shown, Denied>,
    pass: &Arc<Pass>,
    is_noted: bool,
) -> Result<Caller, Refusal> {
    // In this order, a reload in between is noticed by the next check.
    let epoch = shared.auth.epoch();
    let authority = shared.auth.current();
    let is_open = authority.is_open();
    // A broker without users looks at no cookie.
    let session = match &shown {
        Ok(Shown::Session(session)) if !is_open => Some(*session),
        _ => None,
    };
    let identity = if is_open {
        Arc::default()
    } else {
        let authenticated = match shown {
            Ok(shown) => identity_of(shared, &authority, &shown, pass).await,
            Err(denied) => Err(denied),
        };
        authenticated.map_err(|denied| {
            shared.metrics.auth.deny(denied);
            if is_noted {
                shared.refuse_call(pass, denied.label(), None);
            }
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
    Ok(Caller::new(
        identity,
        rights,
        opens_operation,
        epoch,
        session,
    ))
}

/// What the headers of a request show. `Authorization` comes before the cookie of a session, which counts at the admin
/// listener only.
fn shown_in(shared: &Shared, headers: &HeaderMap, kind: ListenerKind) -> Result<Shown, Denied> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    match (all.next(), all.next()) {
        (Some(given), None) => {
            let text = given.to_str().map_err(|_| Denied::BadCredentials)?;
            Shown::parse(text)
        }
        // A proxy in front may have checked the other one.
        (Some(_), Some(_)) => Err(Denied::BadCredentials),
        (None, _) if kind == ListenerKind::Admin => {
            let named = shared.sessions.named(headers)?;
            Ok(named.map_or(Shown::Nothing, Shown::Session))
        }
        (None, _) => Ok(Shown::Nothing),
    }
}

async fn identity_of(
    shared: &Shared,
    authority: &Arc<Authority>,
    shown: &Shown,
    pass: &Arc<Pass>,
) -> Result<Arc<Identity>, Denied> {
    let credentials = match shown {
        Shown::Own(token) => {
            let bearer = shared.bearers.authenticate(authority, token, now_us());
            return bearer.ok_or(Denied::ExpiredToken);
        }
        Shown::Session(session) => {
            let identity = shared.sessions.authenticate(authority, session, now_us());
            return identity.ok_or(Denied::ExpiredToken);
        }
        Shown::Nothing => Credentials::default(),
        Shown::Token(token) => Credentials {
            password: Some(token.as_bytes()),
            ..Credentials::default()
        },
        Shown::Password { user, password } => Credentials {
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
    /// Counts and logs a refusal that does not concern the rights of a call.
    pub fn refuse_call(&self, pass: &Pass, reason: &'static str, user: Option<&str>) {
        self.metrics.audit.refuse(&Refused {
            door: match pass.kind() {
                ListenerKind::Flight => Interface::Flight,
                ListenerKind::Admin | ListenerKind::Mqtt => Interface::Admin,
            },
            act: "call",
            reason,
            topic: None,
            user,
            address: Some(pass.address.ip()),
            client_id: None,
        });
    }
}

/// What a caller shows to prove who it is.
pub enum Shown {
    Nothing,
    Password {
        user: String,
        password: String,
    },
    Token(String),
    /// One of the broker's own bearer tokens.
    Own(String),
    /// The cookie of a session.
    Session(SessionDigest),
}

impl Shown {
    /// Reads an `Authorization` header.
    ///
    /// # Errors
    /// The scheme is unknown, or the credentials are malformed.
    pub fn parse(text: &str) -> Result<Shown, Denied> {
        let (scheme, rest) = text.split_once(' ').ok_or(Denied::Method)?;
        let rest = rest.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return Ok(Shown::token(rest));
        }
        if !scheme.eq_ignore_ascii_case("basic") {
            return Err(Denied::Method);
        }
        let bytes = STANDARD.decode(rest).map_err(|_| Denied::BadCredentials)?;
        let text = String::from_utf8(bytes).map_err(|_| Denied::BadCredentials)?;
        let (user, password) = text.split_once(':').ok_or(Denied::BadCredentials)?;
        Ok(Shown::Password {
            user: user.to_owned(),
            password: password.to_owned(),
        })
    }

    /// A token, of the broker or of somebody else.
    pub fn token(token: &str) -> Shown {
        if Bearers::is_own(token) {
            Shown::Own(token.to_owned())
        } else {
            Shown::Token(token.to_owned())
        }
    }
}
