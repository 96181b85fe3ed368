//! Who reads behind the live stream, and from which caches: those that these readers fill themselves.

mod assigned;
mod batch_cache;
mod candidate_cache;
mod groups;
mod own_filters;
mod read_retry;
pub mod readers;
mod replays;
mod resend;
mod scheduler;
pub mod send_retained;
mod session_reader;

use std::sync::Arc;

use parking_lot::Mutex;

use super::clients::Clients;
use super::containers::once_queue::OnceQueue;
use super::delivery::Delivery;
use super::effects::Effects;
use super::env::Env;
use super::ids::Waiter;
use super::observe::Observe;
use super::retained::Retained;
use super::routing::Routing;
use super::routing::topics::OptionsCache;
use super::session_store::Store;
use super::shared_groups::Groups;
use super::{Session, SessionKey};

use batch_cache::BatchCache;
use candidate_cache::CandidateCache;
use own_filters::OwnFilters;

#[derive(Default)]
pub struct CatchUp {
    /// Sessions with something to send besides the live stream.
    runnable: OnceQueue<Session, 0>,
    /// Those that wait to repeat a read that failed temporarily.
    read_retries: Vec<Waiter>,
    batch_cache: BatchCache,
    candidate_cache: CandidateCache,
    /// For sessions that catch up.
    options_cache: OptionsCache,
    /// Of the session with many filters that read last.
    own_filters: OwnFilters,
}

/// Sessions and groups that are behind at work.
pub struct CatchingUp<'a> {
    pub env: &'a Env,
    pub catch_up: &'a mut CatchUp,
    pub delivery: &'a mut Delivery,
    pub routing: &'a mut Routing,
    pub groups: &'a mut Groups,
    pub retained: &'a Arc<Mutex<Retained>>,
    pub clients: &'a mut Clients,
    pub store: &'a mut Store,
    pub observe: &'a mut Observe,
    pub effects: &'a mut Effects,
}

impl CatchUp {
    /// Makes a session or group with something to send run in the next catch-up. A session may have room for records of
    /// its groups.
    pub fn wake(&mut self, waiter: Waiter, clients: &mut Clients, groups: &mut Groups) {
        let key = match waiter {
            Waiter::Group(id) => return groups.wake(id),
            Waiter::Session(key) => key,
        };
        let Some((session, marks)) = clients.session_marked(key) else {
            return;
        };
        if session.is_member() {
            groups.wake_for(key, session);
        }
        if session.active && session.has_work() {
            self.runnable.push(key, marks);
        }
    }

    /// Lets those go on whose reads failed temporarily.
    pub fn read_again(&mut self, clients: &mut Clients, groups: &mut Groups) {
        for waiter in std::mem::take(&mut self.read_retries) {
            self.wake(waiter, clients, groups);
        }
    }

    /// Whether there are sessions or groups that can read on now.
    pub fn has_late(&self) -> bool {
        !self.runnable.is_empty() || self.may_schedule_reads()
    }

    /// Whether a reader waits for a read and the cache has room for it.
    fn may_schedule_reads(&self) -> bool {
        self.batch_cache.has_waiting() && !self.batch_cache.has_no_room()
    }

    /// The timer that checks the cache has fired.
    pub fn look_again(&mut self) {
        self.batch_cache.watched = false;
    }

    /// A session wants other topics.
    pub fn forget_candidates(&mut self, key: SessionKey) {
        self.candidate_cache.forget(Waiter::Session(key));
    }

    /// Forgets the cached state of a session or group that has caught up, or that nobody reads for.
    pub fn forget(&mut self, waiter: Waiter) {
        self.batch_cache.resume(waiter);
        self.candidate_cache.forget(waiter);
    }

    #[cfg(test)]
    pub fn remembers(&self, waiter: Waiter) -> bool {
        self.batch_cache.stands(waiter) || self.candidate_cache.knows(waiter)
    }
}
