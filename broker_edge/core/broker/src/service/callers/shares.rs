//! Each user's share of common resources: reads, running calls, and memory for rows that wait for their reader.
//!
//! The users of a tenant together get one user's share, so a tenant gains nothing by creating users. Clients without a
//! name count as one user. A broker without authentication has no users; there only the totals are bounded.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::budget::{Budget, Lender};
use super::caller::Caller;
use crate::service::error::Refusal;
use crate::service::limits::Limits;

/// Simultaneous calls of one user that scan topics or records; further ones wait.
const LOOKS_PER_USER: usize = 4;
/// Simultaneous calls of one user that write; further ones wait.
const WRITES_PER_USER: usize = 16;
/// Open DoPut calls of one user, each with a message in memory; further ones wait.
const PUTS_PER_USER: usize = 16;
/// How long a call waits for other calls of its user.
const TURN_TIMEOUT: Duration = Duration::from_secs(30);
/// This many reads, or twice the number of processors if that is more, may scan the log at once; one user may have
/// half. More would not be faster, and each would hold a thread together with memory that its allocator has not
/// returned.
const SCANS_MIN: usize = 8;
/// The burst of gaps that the readers of one user may report, and the interval between further ones. A reader that
/// continues without a lost log reports one gap per partition. The limit keeps a faulty reader from filling the reports
/// of all users.
const REPORTS_PER_USER: u32 = 1_000;
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// The most idle users that are kept in memory.
const IDLE_USERS_MAX: usize = 64;

/// Which share of its user a call uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Look,
    Write,
    Put,
}

/// Of all reads, and of the user's unless the broker has no users.
pub type ReadPermits = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

/// The shares of all users.
pub struct Shares {
    users: Mutex<HashMap<String, Arc<User>>>,
    reads: Arc<Semaphore>,
    reads_max: usize,
    reads_per_user: usize,
    scans: Arc<Semaphore>,
    scans_per_user: usize,
    budget: Arc<Budget>,
    /// For incoming DoPut messages.
    put_budget: Arc<Budget>,
}

/// The shares of one user.
struct User {
    reads: Arc<Semaphore>,
    scans: Arc<Semaphore>,
    looks: Arc<Semaphore>,
    writes: Arc<Semaphore>,
    puts: Arc<Semaphore>,
    budget: Arc<Budget>,
    put_budget: Arc<Budget>,
    reports: Mutex<Reports>,
}

/// How many gaps a user may still report, as of the time `at`.
struct Reports {
    left: u32,
    at: Instant,
}

impl Reports {
    fn full(now: Instant) -> Reports {
        Reports {
            left: REPORTS_PER_USER,
            at: now,
        }
    }

    /// Adds the reports that have become available by now.
    fn refill(&mut self, now: Instant) {
        let periods = now.saturating_duration_since(self.at).as_secs() / REPORT_EVERY.as_secs();
        let back = u32::try_from(periods).unwrap_or(u32::MAX);
        if back > 0 {
            self.left = self.left.saturating_add(back).min(REPORTS_PER_USER);
            self.at += REPORT_EVERY.saturating_mul(back);
        }
    }

    fn take(&mut self, now: Instant) -> bool {
        self.refill(now);
        let may = self.left > 0;
        self.left -= u32::from(may);
        may
    }
}

impl Shares {
    /// The gauge `shown` follows the read memory on loan.
    pub fn new(limits: &Limits, shown: &Gauge) -> Shares {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let scans = SCANS_MIN.max(2 * processors);
        Shares {
            users: Mutex::default(),
            reads: Arc::new(Semaphore::new(limits.reads)),
            reads_max: limits.reads,
            reads_per_user: limits.reads_per_user,
            scans: Arc::new(Semaphore::new(scans)),
            scans_per_user: scans / 2,
            budget: Arc::new(Budget::shown(limits.read_budget_bytes, limits.reads, shown)),
            put_budget: Arc::new(Budget::new(limits.put_budget_bytes, 0)),
        }
    }

    fn user(&self, caller: &Caller) -> Option<Arc<User>> {
        let name = match (caller.tenant(), caller.owner()?) {
            (Some(tenant), _) => format!("tenant/{tenant}"),
            (None, user) => format!("user/{user}"),
        };
        let mut users = self.users.lock();
        if let Some(user) = users.get(&name) {
            return Some(Arc::clone(user));
        }
        if users.len() >= IDLE_USERS_MAX {
            users.retain(|_, user| user.is_used(self.reads_per_user));
        }
        let user = Arc::new(User {
            reads: Arc::new(Semaphore::new(self.reads_per_user)),
            scans: Arc::new(Semaphore::new(self.scans_per_user)),
            looks: Arc::new(Semaphore::new(LOOKS_PER_USER)),
            writes: Arc::new(Semaphore::new(WRITES_PER_USER)),
            puts: Arc::new(Semaphore::new(PUTS_PER_USER)),
            budget: Arc::new(Budget::new(
                self.budget.bytes_max() / 2,
                self.reads_per_user,
            )),
            put_budget: Arc::new(Budget::new(self.put_budget.bytes_max() / 2, 0)),
            reports: Mutex::new(Reports::full(Instant::now())),
        });
        users.insert(name, Arc::clone(&user));
        Some(user)
    }

    /// The permits for one more read of this caller.
    ///
    /// # Errors
    /// The user has reached its limit of reads, or all reads are running.
    pub fn read(&self, caller: &Caller) -> Result<ReadPermits, Refusal> {
        let take = |reads: &Arc<Semaphore>| Arc::clone(reads).try_acquire_owned();
        let of_user = match self.user(caller) {
            Some(user) => Some(take(&user.reads).map_err(|_| {
                let most = self.reads_per_user;
                Refusal::over_share(format!(
                    "{most} reads of this user are running, which is the limit flight.max_reads_per_user; try again"
                ))
            })?),
            None => None,
        };
        let of_all = take(&self.reads).map_err(|_| {
            let most = self.reads_max;
            Refusal::unavailable(format!(
                "{most} reads are running, which is the limit flight.max_reads; try again"
            ))
        })?;
        Ok((of_all, of_user))
    }

    /// Counts one gap report of the caller.
    ///
    /// # Errors
    /// The user has reached its limit of reports.
    pub fn report(&self, caller: &Caller) -> Result<(), Refusal> {
        let user = self.user(caller);
        if user.is_none_or(|user| user.reports.lock().take(Instant::now())) {
            return Ok(());
        }
        Err(Refusal::over_share(format!(
            "this user has reported {REPORTS_PER_USER} gaps and may now report one per second; try again"
        )))
    }

    /// Waits for the caller's turn.
    ///
    /// # Errors
    /// Other calls of the user take too long.
    pub async fn turn(
        &self,
        caller: &Caller,
        work: Work,
    ) -> Result<Option<OwnedSemaphorePermit>, Refusal> {
        let Some(user) = self.user(caller) else {
            return Ok(None);
        };
        let places = match work {
            Work::Look => &user.looks,
            Work::Write => &user.writes,
            Work::Put => &user.puts,
        };
        let turn = Arc::clone(places).acquire_owned();
        match tokio::time::timeout(TURN_TIMEOUT, turn).await {
            Ok(Ok(permit)) => Ok(Some(permit)),
            _ => Err(Refusal::over_share(
                "other calls of this user are still running; try again",
            )),
        }
    }

    /// Lends memory to a read of this caller, for messages or for pieces of the log.
    pub fn lender(&self, caller: &Caller) -> Lender {
        let user = self.user(caller).map(|user| Arc::clone(&user.budget));
        Lender::new(Arc::clone(&self.budget), user)
    }

    /// The turns to scan the log for a read of this caller.
    pub fn scan_turns(&self, caller: &Caller) -> ScanTurns {
        let user = self.user(caller).map(|user| Arc::clone(&user.scans));
        ScanTurns {
            user,
            all: Arc::clone(&self.scans),
        }
    }

    /// Lends memory to a DoPut of this caller, for messages.
    pub fn put_lender(&self, caller: &Caller) -> Lender {
        let user = self.user(caller).map(|user| Arc::clone(&user.put_budget));
        Lender::new(Arc::clone(&self.put_budget), user)
    }
}

impl User {
    fn is_used(self: &Arc<Self>, reads_per_user: usize) -> bool {
        Arc::strong_count(self) > 1
            || Arc::strong_count(&self.scans) > 1
            || Arc::strong_count(&self.budget) > 1
            || Arc::strong_count(&self.put_budget) > 1
            || self.reads.available_permits() < reads_per_user
            || self.looks.available_permits() < LOOKS_PER_USER
            || self.writes.available_permits() < WRITES_PER_USER
            || self.puts.available_permits() < PUTS_PER_USER
            || self.has_reported()
    }

    fn has_reported(&self) -> bool {
        let mut reports = self.reports.lock();
        reports.refill(Instant::now());
        reports.left < REPORTS_PER_USER
    }
}

/// The user's and the common permits to scan the log.
pub struct ScanTurns {
    user: Option<Arc<Semaphore>>,
    all: Arc<Semaphore>,
}

/// A permit to scan the log, returned on drop.
pub struct ScanTurn {
    _places: [Option<OwnedSemaphorePermit>; 2],
}

impl ScanTurns {
    /// Takes the user's permit first: a read that waits for it does not block other users.
    pub async fn next(&self) -> ScanTurn {
        let of_user = match &self.user {
            Some(user) => Arc::clone(user).acquire_owned().await.ok(),
            None => None,
        };
        let of_all = Arc::clone(&self.all).acquire_owned().await.ok();
        ScanTurn {
            _places: [of_user, of_all],
        }
    }
}

/// The pace at which a reader takes its messages, seen from its stream.
#[derive(Debug, Default)]
pub struct Pace {
    taken: AtomicU64,
    /// True when the stream is gone.
    pub gone: Arc<AtomicBool>,
}

impl Pace {
    pub fn take(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits for `event` while the reader takes something within each `stall`; `None` when it stalls.
    pub async fn wait<T>(&self, stall: Duration, event: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(event);
        loop {
            let seen = self.taken.load(Ordering::Relaxed);
            match tokio::time::timeout(stall, &mut event).await {
                Ok(done) => return Some(done),
                Err(_) if self.taken.load(Ordering::Relaxed) == seen => return None,
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn the_scans_of_one_user_leave_places_for_others() {
        let all = Arc::new(Semaphore::new(4));
        let user = || ScanTurns {
            user: Some(Arc::new(Semaphore::new(2))),
            all: Arc::clone(&all),
        };
        let (busy, other) = (user(), user());
        let mut held = vec![busy.next().now_or_never().expect("a place")];
        held.extend(busy.next().now_or_never());
        assert!(busy.next().now_or_never().is_none());
        let of_other = other.next().now_or_never();
        assert!(of_other.is_some() && other.next().now_or_never().is_some());
        held.pop();
        assert!(busy.next().now_or_never().is_some());
    }

    #[test]
    fn gaps_are_reported_at_once_up_to_a_limit_and_slowly_after_it() {
        let began = Instant::now();
        let mut reports = Reports::full(began);
        let at_once = (0..REPORTS_PER_USER * 2).filter(|_| reports.take(began));
        assert_eq!(at_once.count(), REPORTS_PER_USER as usize);
        assert!(reports.take(began + REPORT_EVERY));
        assert!(!reports.take(began + REPORT_EVERY));
        let later = began + REPORT_EVERY * 3 * REPORTS_PER_USER;
        let after = (0..REPORTS_PER_USER * 2).filter(|_| reports.take(later));
        assert_eq!(after.count(), REPORTS_PER_USER as usize);
    }
}
