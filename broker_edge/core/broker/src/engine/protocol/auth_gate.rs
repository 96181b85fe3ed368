//! The loop's view of authentication: the current authority, the answers of the threads that check credentials, and
//! cached verdicts on publishes.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::auth::{Answer, AuthService, Authority, Identity, ListenerKind, Rights, Watcher};
use crate::engine::ConnKey;
use crate::engine::routing::topics::TopicId;

/// Cached publish verdicts; when the cache is full it is cleared.
const VERDICTS_MAX: usize = 8192;

/// Wakes the loop from another thread.
pub type Wake = Watcher;

pub(in crate::engine) struct AuthGate {
    /// `None` for an engine that always admits everybody.
    auth_service: Option<Arc<AuthService>>,
    wake: Wake,
    pub authority: Arc<Authority>,
    epoch: u64,
    /// Whether publishes have to be checked; kept here for the hot path.
    pub restricts: bool,
    /// The rights shared by all clients without credentials.
    anonymous: Option<Arc<Rights>>,
    answers: Arc<Answers>,
    verdicts: FxHashMap<(ConnKey, TopicId), bool>,
}

/// Answers on their way to the loop; at most one per running check.
#[derive(Default)]
struct Answers {
    list: Mutex<Vec<(ConnKey, Answer)>>,
    is_filled: AtomicBool,
}

impl Default for AuthGate {
    /// Admits everybody.
    fn default() -> Self {
        Self::new(None, Arc::new(|| {}))
    }
}

impl AuthGate {
    pub fn new(auth_service: Option<Arc<AuthService>>, wake: Wake) -> Self {
        if let Some(auth_service) = &auth_service {
            auth_service.watch(&wake);
        }
        let mut gate = Self {
            auth_service,
            wake,
            authority: Authority::open(),
            epoch: 0,
            restricts: false,
            anonymous: None,
            answers: Arc::default(),
            verdicts: FxHashMap::default(),
        };
        gate.take_authority();
        gate
    }

    /// Whether there is an answer or a newer authority.
    pub fn has_updates(&self) -> bool {
        self.answers.is_filled.load(Ordering::Acquire) || self.is_old()
    }

    pub fn is_old(&self) -> bool {
        self.auth_service
            .as_ref()
            .is_some_and(|auth_service| auth_service.epoch() != self.epoch)
    }

    pub fn take_authority(&mut self) {
        if let Some(auth_service) = &self.auth_service {
            // The epoch is read first, so that a reload in between is noticed the next time.
            self.epoch = auth_service.epoch();
            self.authority = auth_service.current();
        }
        self.restricts = self.authority.restricts();
        self.anonymous = self.authority.rights(Arc::default());
        self.verdicts.clear();
    }

    pub fn rights(&self, identity: Arc<Identity>) -> Option<Arc<Rights>> {
        match identity.user {
            None => self.anonymous.clone(),
            Some(_) => self.authority.rights(identity),
        }
    }

    /// The tenant of a user, according to the files.
    pub fn tenant_of(&self, user: Option<&Arc<str>>) -> Option<Arc<str>> {
        let rights = self
            .authority
            .stored_rights(user.map_or("", |user| &**user));
        rights.tenant().cloned()
    }

    /// Starts a check of credentials on another thread; [`AuthGate::take_answers`] returns the answer.
    pub fn check(
        &self,
        key: ConnKey,
        address: IpAddr,
        check: crate::auth::Check,
    ) -> Result<(), crate::auth::Busy> {
        let auth_service = self.auth_service.as_ref().ok_or(crate::auth::Busy)?;
        let (answers, wake) = (Arc::clone(&self.answers), Arc::clone(&self.wake));
        let tell = move |answer| {
            answers.list.lock().push((key, answer));
            answers.is_filled.store(true, Ordering::Release);
            wake();
        };
        auth_service
            .verifier()
            .check(ListenerKind::Mqtt, address, check, tell)
    }

    pub fn take_answers(&self) -> Vec<(ConnKey, Answer)> {
        if !self.answers.is_filled.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut *self.answers.list.lock())
    }

    /// The cached verdict on publishes of this connection to this topic.
    pub fn verdict(&self, key: ConnKey, topic: TopicId) -> Option<bool> {
        self.verdicts.get(&(key, topic)).copied()
    }

    pub fn keep_verdict(&mut self, key: ConnKey, topic: TopicId, verdict: bool) {
        if self.verdicts.len() >= VERDICTS_MAX {
            self.verdicts.clear();
        }
        self.verdicts.insert((key, topic), verdict);
    }
}
