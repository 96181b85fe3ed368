//! What one user may have of what all share: reads, calls that work, memory for rows that were not taken.
//!
//! The users of a tenant share what one user may have: a tenant that makes more users gets no more. Clients without a
//! name are one user. On a broker that asks nobody who they are there are no users, and only what
//! all have together is bounded.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::caller::Caller;
use super::error::Refusal;
use super::limits::Limits;

/// Calls of one user that look through topics or records at the same time; others wait.
const LOOKS_PER_USER: usize = 4;
/// Calls of one user that write at the same time; others wait.
const WRITES_PER_USER: usize = 16;
/// DoPut calls of one user that are open at the same time, each with a message in memory; others wait.
const PUTS_PER_USER: usize = 16;
/// How long a call waits for others of its user.
const TURN_TIMEOUT: Duration = Duration::from_secs(30);
/// Payload bytes after which a message of a read is cut.
pub(super) const MESSAGE_BYTES: usize = 4 << 20;
/// Gaps that the readers of one user may report at once, and how often one more after that. A reader that goes on without
/// a whole log reports one for each partition; who reports without an end would fill the reports of all.
const REPORTS_PER_USER: u32 = 1_000;
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Users that are kept although they do nothing.
const IDLE_USERS_MAX: usize = 64;

/// Which of a user's shares a call takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Look,
    Write,
    Put,
}

/// The shares of everybody.
pub(super) struct Shares {
    users: Mutex<HashMap<String, Arc<User>>>,
    reads_per_user: usize,
    budget: Arc<Budget>,
    /// For messages of DoPut as they come in.
    put_budget: Arc<Budget>,
}

/// The shares of one user.
struct User {
    reads: Arc<Semaphore>,
    looks: Arc<Semaphore>,
    writes: Arc<Semaphore>,
    puts: Arc<Semaphore>,
    budget: Arc<Budget>,
    put_budget: Arc<Budget>,
    reports: Mutex<Reports>,
}

/// How many gaps a user may report, as of some moment.
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

    /// What has come back by now.
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
    pub fn new(limits: &Limits) -> Shares {
        Shares {
            users: Mutex::default(),
            reads_per_user: limits.reads_per_user,
            budget: Arc::new(Budget::new(limits.read_budget_bytes, limits.reads)),
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
            looks: Arc::new(Semaphore::new(LOOKS_PER_USER)),
            writes: Arc::new(Semaphore::new(WRITES_PER_USER)),
            puts: Arc::new(Semaphore::new(PUTS_PER_USER)),
            budget: Arc::new(Budget::new(self.budget.bytes_max / 2, self.reads_per_user)),
            put_budget: Arc::new(Budget::new(self.put_budget.bytes_max / 2, 0)),
            reports: Mutex::new(Reports::full(Instant::now())),
        });
        users.insert(name, Arc::clone(&user));
        Some(user)
    }

    /// A place for one more read of this caller; None on a broker without users.
    ///
    /// # Errors
    /// When the user has as many as it may.
    pub fn read(&self, caller: &Caller) -> Result<Option<OwnedSemaphorePermit>, Refusal> {
        let Some(user) = self.user(caller) else {
            return Ok(None);
        };
        let permit = Arc::clone(&user.reads).try_acquire_owned();
        permit.map(Some).map_err(|_| {
            let most = self.reads_per_user;
            Refusal::over_share(format!(
                "{most} reads of this user are running, which is the limit flight.max_reads_per_user; try again"
            ))
        })
    }

    /// Takes the place of one report of a gap.
    ///
    /// # Errors
    /// When the user has reported as many as it may.
    pub fn report(&self, caller: &Caller) -> Result<(), Refusal> {
        let user = self.user(caller);
        if user.is_none_or(|user| user.reports.lock().take(Instant::now())) {
            return Ok(());
        }
        Err(Refusal::over_share(format!(
            "this user has reported {REPORTS_PER_USER} gaps, and may report one more each second; try again"
        )))
    }

    /// Waits until the caller may work.
    ///
    /// # Errors
    /// When other calls of the user take too long.
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

    /// Where a read of this caller takes memory for rows.
    pub fn lender(&self, caller: &Caller) -> Lender {
        Lender {
            all: Arc::clone(&self.budget),
            user: self.user(caller).map(|user| Arc::clone(&user.budget)),
            loans: Arc::default(),
        }
    }
}

impl Shares {
    /// Where a DoPut of this caller takes memory for messages.
    pub fn put_lender(&self, caller: &Caller) -> Lender {
        Lender {
            all: Arc::clone(&self.put_budget),
            user: self.user(caller).map(|user| Arc::clone(&user.put_budget)),
            loans: Arc::default(),
        }
    }
}

impl User {
    fn is_used(self: &Arc<Self>, reads_per_user: usize) -> bool {
        Arc::strong_count(self) > 1
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

/// Bytes that may be lent.
struct Budget {
    bytes_max: usize,
    /// Beside that, for one message of each read: readers that take nothing must not stop those that begin.
    first_bytes_max: usize,
    lent: Mutex<usize>,
    returned: Notify,
}

impl Budget {
    fn new(bytes_max: usize, reads: usize) -> Budget {
        Budget {
            bytes_max,
            first_bytes_max: reads * MESSAGE_BYTES,
            lent: Mutex::new(0),
            returned: Notify::new(),
        }
    }

    /// What is larger than the whole budget is lent alone.
    fn lend(&self, bytes: usize, is_first: bool) -> bool {
        let mut lent = self.lent.lock();
        let more = if is_first { self.first_bytes_max } else { 0 };
        let fits = *lent == 0 || *lent + bytes <= self.bytes_max + more;
        if fits {
            *lent += bytes;
        }
        fits
    }

    fn give_back(&self, bytes: usize) {
        *self.lent.lock() -= bytes;
        self.returned.notify_waiters();
    }
}

/// Lends memory of one user and of all to one read.
#[derive(Clone)]
pub(super) struct Lender {
    all: Arc<Budget>,
    user: Option<Arc<Budget>>,
    /// What this read has not given back.
    loans: Arc<AtomicUsize>,
}

impl Lender {
    #[cfg(test)]
    pub fn of(bytes: usize) -> Lender {
        Lender {
            all: Arc::new(Budget::new(bytes, 0)),
            user: None,
            loans: Arc::default(),
        }
    }

    /// As of another call.
    #[cfg(test)]
    pub fn another(&self) -> Lender {
        Lender {
            loans: Arc::default(),
            ..self.clone()
        }
    }

    /// Waits until so much is there.
    pub async fn lend(&self, bytes: usize) -> Loan {
        loop {
            let (all, user) = (self.all.returned.notified(), self.user.as_ref());
            tokio::pin!(all);
            let is_first = self.loans.load(Ordering::Relaxed) == 0;
            // Enabled before the try: what is given back in between wakes.
            all.as_mut().enable();
            if let Some(user) = user {
                let returned = user.returned.notified();
                tokio::pin!(returned);
                returned.as_mut().enable();
                if !user.lend(bytes, is_first) {
                    returned.await;
                    continue;
                }
            }
            if self.all.lend(bytes, is_first) {
                self.loans.fetch_add(1, Ordering::Relaxed);
                return Loan {
                    lender: self.clone(),
                    bytes,
                };
            }
            if let Some(user) = user {
                user.give_back(bytes);
            }
            all.await;
        }
    }
}

/// Memory that was lent; given back when it is dropped.
pub(super) struct Loan {
    lender: Lender,
    bytes: usize,
}

impl Loan {
    /// As much as was used in the end, which may be more.
    pub fn settle(&mut self, bytes: usize) {
        for budget in [Some(&self.lender.all), self.lender.user.as_ref()]
            .into_iter()
            .flatten()
        {
            if bytes > self.bytes {
                *budget.lent.lock() += bytes - self.bytes;
            } else {
                budget.give_back(self.bytes - bytes);
            }
        }
        self.bytes = bytes;
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.lender.loans.fetch_sub(1, Ordering::Relaxed);
        self.settle(0);
    }
}

/// How a reader takes what it is sent, as its stream sees it.
#[derive(Debug, Default)]
pub(super) struct Pace {
    taken: AtomicU64,
    /// Set when the stream is gone.
    pub gone: Arc<AtomicBool>,
}

impl Pace {
    pub fn take(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits for `event` as long as the reader takes something within each `stall`; None when it stalls.
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
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn lender(all: usize, user: usize) -> Lender {
        Lender {
            all: Arc::new(Budget::new(all, 0)),
            user: Some(Arc::new(Budget::new(user, 0))),
            loans: Arc::default(),
        }
    }

    fn poll<T>(future: &mut std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn memory_beyond_the_share_is_waited_for() {
        let lender = lender(100, 50);
        let mut first = pin!(lender.lend(50));
        let Poll::Ready(mut first) = poll(&mut first) else {
            panic!("nothing is lent yet");
        };
        let mut second = pin!(lender.lend(20));
        assert!(poll(&mut second).is_pending());
        first.settle(30);
        assert!(poll(&mut second).is_ready());
    }

    #[test]
    fn a_user_who_waits_takes_nothing_from_the_others() {
        let one = lender(100, 100);
        let other = Lender {
            all: Arc::clone(&one.all),
            user: Some(Arc::new(Budget::new(50, 0))),
            loans: Arc::default(),
        };
        let mut held = pin!(one.lend(80));
        let Poll::Ready(held) = poll(&mut held) else {
            panic!("nothing is lent yet");
        };
        let mut waiting = pin!(other.lend(40));
        assert!(poll(&mut waiting).is_pending());
        assert_eq!(*other.user.as_ref().expect("a user").lent.lock(), 0);
        drop(held);
        assert!(poll(&mut waiting).is_ready());
        assert_eq!(
            *one.all.lent.lock(),
            0,
            "the loan was dropped with the poll"
        );
    }

    #[test]
    fn a_read_that_begins_gets_its_first_message_when_others_hold_the_budget() {
        let stalled = Lender {
            all: Arc::new(Budget::new(MESSAGE_BYTES, 2)),
            user: None,
            loans: Arc::default(),
        };
        let mut held = pin!(stalled.lend(MESSAGE_BYTES));
        let Poll::Ready(_held) = poll(&mut held) else {
            panic!("nothing is lent yet");
        };
        let mut ahead = pin!(stalled.lend(MESSAGE_BYTES));
        assert!(poll(&mut ahead).is_pending());
        let begins = Lender {
            all: Arc::clone(&stalled.all),
            user: None,
            loans: Arc::default(),
        };
        let mut first = pin!(begins.lend(MESSAGE_BYTES));
        let Poll::Ready(_first) = poll(&mut first) else {
            panic!("the first message is lent");
        };
        let mut second = pin!(begins.lend(MESSAGE_BYTES));
        assert!(poll(&mut second).is_pending());
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

    #[test]
    fn what_is_larger_than_all_there_is_goes_alone() {
        let lender = lender(100, 50);
        let mut large = pin!(lender.lend(500));
        let Poll::Ready(large) = poll(&mut large) else {
            panic!("nothing is lent yet");
        };
        let mut small = pin!(lender.lend(1));
        assert!(poll(&mut small).is_pending());
        drop(large);
        assert!(poll(&mut small).is_ready());
    }
}
