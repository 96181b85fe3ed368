//! Sessions of people who have signed in with a browser at the admin listener.
//!
//! The browser keeps a cookie with random bits. The broker keeps only their digest, in memory, with the identity that
//! was proved. A session ends after 12 hours, with the token that was shown, when the authority no longer admits the
//! identity, by signing out, or with the process. It also ends when it is the oldest and another one needs its place.
//!
//! Browsers do not separate the cookies of a host by port, so the name of the cookie has the port: brokers on two ports
//! of a host do not replace each other's.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use tonic::codegen::http::HeaderMap;
use tonic::codegen::http::header::COOKIE;

use crate::auth::{Authority, Denied, Identity};
use crate::hosts;

const NAME: &str = "headwater-session";
/// A browser takes a cookie of this prefix only over TLS and from this host, so no other host can plant one.
const NAME_WITH_TLS: &str = "__Host-headwater-session";
/// How long a session lasts at most.
const LIFE_S: i64 = 12 * 3600;
const SESSIONS_MAX: usize = 1024;
const SESSIONS_PER_USER_MAX: usize = 16;
const SECRET_BYTES: usize = 32;

/// The digest of the secret in a cookie. Whoever reads the broker's memory cannot make a cookie of it, and the time of
/// a look-up tells nothing about a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionDigest([u8; 32]);

impl SessionDigest {
    fn of(secret: &[u8]) -> SessionDigest {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, secret).as_ref());
        SessionDigest(bytes)
    }

    /// `None` for a value that no cookie of this broker has.
    fn of_cookie(value: &[u8]) -> Option<SessionDigest> {
        let secret = URL_SAFE_NO_PAD.decode(value).ok()?;
        (secret.len() == SECRET_BYTES).then(|| SessionDigest::of(&secret))
    }
}

struct Session {
    /// It expires with the session, so that calls which outlive the session end too.
    identity: Arc<Identity>,
    /// Sessions are numbered as they begin, because the wall clock may be set back.
    number: u64,
}

#[derive(Default)]
struct OpenSessions {
    by_digest: HashMap<SessionDigest, Session>,
    next: u64,
}

pub struct Sessions {
    is_tls: bool,
    open: Mutex<OpenSessions>,
}

impl Sessions {
    /// `is_tls`: whether the listener has TLS, which decides about the cookie's name and flags.
    pub fn new(is_tls: bool) -> Sessions {
        Sessions {
            is_tls,
            open: Mutex::default(),
        }
    }

    /// The cookie's name at the address that the browser has called, which these headers name.
    fn cookie_name(&self, headers: &HeaderMap) -> String {
        let name = if self.is_tls { NAME_WITH_TLS } else { NAME };
        // An address has no port where it is the usual one of the scheme.
        match hosts::called(headers) {
            Some((_, Some(port))) => format!("{name}-{port}"),
            _ => name.to_owned(),
        }
    }

    /// `headers`: those of the request that is answered.
    fn set_cookie(&self, headers: &HeaderMap, value: &str, max_age_s: i64) -> String {
        let name = self.cookie_name(headers);
        let secure = if self.is_tls { "; Secure" } else { "" };
        format!("{name}={value}; HttpOnly; SameSite=Strict; Path=/; Max-Age={max_age_s}{secure}")
    }

    /// The value of `Set-Cookie` that makes a browser forget its session.
    pub fn forget_cookie(&self, headers: &HeaderMap) -> String {
        self.set_cookie(headers, "", 0)
    }

    /// Begins a session for the browser that has sent these headers, and returns the value of `Set-Cookie`, which has
    /// the only copy of its secret.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn begin(
        &self,
        headers: &HeaderMap,
        identity: &Identity,
        now_us: i64,
    ) -> std::io::Result<String> {
        let mut secret = [0; SECRET_BYTES];
        SystemRandom::new()
            .fill(&mut secret)
            .map_err(|_| std::io::Error::other("the system provides no random bytes"))?;
        let until_us = now_us.saturating_add(LIFE_S * 1_000_000);
        let identity = Arc::new(identity.until(until_us));
        let mut open = self.open.lock();
        open.make_room(&identity, now_us);
        let number = open.next;
        open.next += 1;
        let session = Session { identity, number };
        open.by_digest.insert(SessionDigest::of(&secret), session);
        Ok(self.set_cookie(headers, &URL_SAFE_NO_PAD.encode(secret), LIFE_S))
    }

    /// The identity of a session. A session whose identity is not admitted any more ends here.
    pub fn authenticate(
        &self,
        authority: &Authority,
        shown: &SessionDigest,
        now_us: i64,
    ) -> Option<Arc<Identity>> {
        let open = self.open.lock();
        let identity = Arc::clone(&open.by_digest.get(shown)?.identity);
        drop(open);
        if !identity.is_expired(now_us) && authority.still_admits(&identity) {
            return Some(identity);
        }
        self.open.lock().by_digest.remove(shown);
        None
    }

    /// Whether nothing has ended the session. It may have expired, which its identity tells.
    pub fn has(&self, session: &SessionDigest) -> bool {
        self.open.lock().by_digest.contains_key(session)
    }

    /// The session that a request names, if it names one.
    ///
    /// # Errors
    /// The cookie is malformed, or there are two: another host of the same domain may have planted one.
    pub fn named(&self, headers: &HeaderMap) -> Result<Option<SessionDigest>, Denied> {
        let mut all = self.cookies(headers);
        match (all.next(), all.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => SessionDigest::of_cookie(value)
                .map(Some)
                .ok_or(Denied::BadCredentials),
            (Some(_), Some(_)) => Err(Denied::BadCredentials),
        }
    }

    /// Ends all sessions that a request names: whoever has a cookie may end its session.
    pub fn end(&self, headers: &HeaderMap) {
        let named = self.cookies(headers).filter_map(SessionDigest::of_cookie);
        let mut open = self.open.lock();
        for session in named {
            open.by_digest.remove(&session);
        }
    }

    /// The values of all cookies with the session's name. Cookies of other programs on the same host come along.
    fn cookies<'a>(&self, headers: &'a HeaderMap) -> impl Iterator<Item = &'a [u8]> {
        let name = self.cookie_name(headers);
        let lines = headers.get_all(COOKIE).iter();
        let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
        pairs.filter_map(move |pair| {
            let (found, value) = pair.trim_ascii().split_at_checked(name.len())?;
            value
                .strip_prefix(b"=")
                .filter(|_| found == name.as_bytes())
        })
    }
}

impl OpenSessions {
    /// Ends the oldest session of this user, or of all, when there are as many as there may be.
    fn make_room(&mut self, identity: &Identity, now_us: i64) {
        self.by_digest
            .retain(|_, session| !session.identity.is_expired(now_us));
        let is_own = |session: &Session| session.identity.user == identity.user;
        let own = self.by_digest.values().filter(|one| is_own(one)).count();
        if own >= SESSIONS_PER_USER_MAX {
            self.end_oldest(is_own);
        }
        if self.by_digest.len() >= SESSIONS_MAX {
            self.end_oldest(|_| true);
        }
    }

    fn end_oldest(&mut self, is_meant: impl Fn(&Session) -> bool) {
        let meant = self.by_digest.iter().filter(|(_, one)| is_meant(one));
        let oldest = meant.min_by_key(|(_, session)| session.number);
        if let Some(digest) = oldest.map(|(digest, _)| *digest) {
            self.by_digest.remove(&digest);
        }
    }
}

#[cfg(test)]
#[path = "sessions_tests.rs"]
mod tests;
