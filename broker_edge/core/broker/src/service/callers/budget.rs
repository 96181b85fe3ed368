//! Memory budgets of reads and DoPut calls: one per user, and one for all.
//!
//! A call borrows memory before it allocates, settles the loan when the real size is known, and returns it when the
//! memory is free. A read holds a piece of the log and some messages. Part of the memory is reserved for reads that
//! hold no messages: each of them can continue in small steps, whatever the others hold.
//!
//! A record or a batch of the log may be larger than its loan. What a user holds beyond its share for that reason is
//! not charged to the common budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Notify;

/// A read's message is cut at this size, and a read takes this much of the log at once.
pub const MESSAGE_BYTES: usize = 2 << 20;
pub const SCAN_BYTES: usize = 2 << 20;
/// The size of either when memory is short: every read gets this much, whoever holds the rest.
const SHORT_BYTES: usize = 256 << 10;

/// The bytes that may be on loan.
pub struct Budget {
    bytes_max: usize,
    /// The part reserved for reads that hold nothing yet: stalled readers must not block new ones.
    kept: usize,
    /// The loan of such a read when nothing else is left.
    short_bytes: usize,
    lent: Mutex<usize>,
    shown: Gauge,
    returned: Notify,
}

impl Budget {
    pub fn new(bytes_max: usize, reads: usize) -> Budget {
        // One message and one piece of the log for each read.
        let pieces = 2 * reads;
        let short_bytes = (bytes_max / 2 / pieces.max(1)).min(SHORT_BYTES);
        Budget {
            bytes_max,
            kept: pieces * short_bytes,
            short_bytes,
            lent: Mutex::new(0),
            shown: Gauge::default(),
            returned: Notify::new(),
        }
    }

    /// As `new`; the gauge `shown` follows the bytes on loan.
    pub fn shown(bytes_max: usize, reads: usize, shown: &Gauge) -> Budget {
        Budget {
            shown: shown.clone(),
            ..Budget::new(bytes_max, reads)
        }
    }

    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// A loan larger than the whole budget is granted only when no other is out.
    fn has_room(&self, lent: usize, bytes: usize, leaves_kept: bool) -> bool {
        let kept = if leaves_kept { self.kept } else { 0 };
        lent == 0 || lent + bytes <= self.bytes_max - kept
    }

    fn change(&self, lent: &mut usize, from: usize, to: usize) {
        *lent = *lent + to - from;
        self.shown.set(i64::try_from(*lent).unwrap_or(i64::MAX));
    }
}

/// Lends memory from the user's and the common budget, for one purpose of one read.
#[derive(Clone)]
pub struct Lender {
    all: Arc<Budget>,
    user: Option<Arc<Budget>>,
    /// The number of open loans.
    loans: Arc<AtomicUsize>,
}

impl Lender {
    pub fn new(all: Arc<Budget>, user: Option<Arc<Budget>>) -> Lender {
        Lender {
            all,
            user,
            loans: Arc::default(),
        }
    }

    /// The number of open loans.
    pub fn loans(&self) -> usize {
        self.loans.load(Ordering::Relaxed)
    }

    fn budgets(&self) -> impl Iterator<Item = &Budget> {
        self.user.iter().chain([&self.all]).map(|budget| &**budget)
    }

    /// Waits until `bytes` can be lent.
    pub async fn lend(&self, bytes: usize) -> Loan {
        self.wait_for(|| self.try_lend(bytes, true)).await
    }

    /// Waits until memory is available and lends at most `bytes_max`. When only the reserve is left, a read that holds
    /// nothing gets a small loan.
    pub async fn lend_some(&self, bytes_max: usize) -> Loan {
        self.wait_for(|| self.try_lend_some(bytes_max)).await
    }

    /// Like [`Self::lend_some`], without waiting.
    pub fn try_lend_some(&self, bytes_max: usize) -> Option<Loan> {
        let short = self.budgets().map(|budget| budget.short_bytes).min();
        let short = short.unwrap_or(0).min(bytes_max);
        let half = self
            .budgets()
            .map(|budget| (budget.bytes_max - budget.kept) / 2);
        let enough = half.min().unwrap_or(0).min(bytes_max);
        let is_first = self.loans() == 0;
        let lent = self.try_lend(enough, true);
        lent.or_else(|| is_first.then(|| self.try_lend(short, false)).flatten())
    }

    async fn wait_for(&self, lend: impl Fn() -> Option<Loan>) -> Loan {
        loop {
            let returned = self.all.returned.notified();
            tokio::pin!(returned);
            // Enabled before the attempt, so that memory returned in between wakes this task.
            returned.as_mut().enable();
            if let Some(loan) = lend() {
                return loan;
            }
            returned.await;
        }
    }

    fn try_lend(&self, bytes: usize, leaves_kept: bool) -> Option<Loan> {
        // Both budgets under one lock: if the user's were taken first and then released, waiters would not be notified.
        let mut lent = self.lock();
        let of_user = self.user.as_ref().zip(lent.of_user.as_deref());
        let has_room = of_user
            .is_none_or(|(budget, lent)| budget.has_room(*lent, bytes, leaves_kept))
            && self.all.has_room(*lent.of_all, bytes, leaves_kept);
        if !has_room {
            return None;
        }
        self.change(&mut lent, 0, bytes);
        drop(lent);
        self.loans.fetch_add(1, Ordering::Relaxed);
        Some(Loan {
            lender: self.clone(),
            bytes,
        })
    }
}

impl Lender {
    /// Locks the user's budget first, as everywhere.
    fn lock(&self) -> BudgetLocks<'_> {
        BudgetLocks {
            of_user: self.user.as_ref().map(|budget| budget.lent.lock()),
            of_all: self.all.lent.lock(),
        }
    }

    fn change(&self, lent: &mut BudgetLocks<'_>, from: usize, to: usize) {
        let (Some(user), Some(of_user)) = (&self.user, &mut lent.of_user) else {
            return self.all.change(&mut lent.of_all, from, to);
        };
        let shared = |lent: usize| lent.min(user.bytes_max);
        let before = shared(**of_user);
        user.change(of_user, from, to);
        self.all.change(&mut lent.of_all, before, shared(**of_user));
    }
}

/// The bytes on loan from both budgets.
struct BudgetLocks<'a> {
    of_user: Option<MutexGuard<'a, usize>>,
    of_all: MutexGuard<'a, usize>,
}

/// A loan of memory; returned on drop.
pub struct Loan {
    lender: Lender,
    bytes: usize,
}

impl Loan {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets the loan to the size actually used, which may be larger.
    pub fn settle(&mut self, bytes: usize) {
        self.lender
            .change(&mut self.lender.lock(), self.bytes, bytes);
        self.bytes = bytes;
        self.lender.all.returned.notify_waiters();
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.lender.loans.fetch_sub(1, Ordering::Relaxed);
        self.settle(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Lender {
        pub fn of(bytes: usize) -> Lender {
            Lender {
                all: Arc::new(Budget::new(bytes, 0)),
                user: None,
                loans: Arc::default(),
            }
        }

        /// A lender for another call.
        pub fn another(&self) -> Lender {
            Lender {
                loans: Arc::default(),
                ..self.clone()
            }
        }
    }
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

    /// Lenders of two reads for the same purpose, from a budget for `reads` reads.
    fn of_reads(bytes: usize, reads: usize) -> (Lender, Lender) {
        let lender = Lender {
            all: Arc::new(Budget::new(bytes, reads)),
            user: None,
            loans: Arc::default(),
        };
        (lender.another(), lender)
    }

    fn lent<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        match poll(&mut future) {
            Poll::Ready(lent) => Some(lent),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_read_that_holds_nothing_gets_a_little_when_others_hold_the_rest() {
        let (stalled, begins) = of_reads(8 * MESSAGE_BYTES, 4);
        let mut held = Vec::new();
        while let Some(loan) = lent(stalled.lend_some(MESSAGE_BYTES)) {
            held.push(loan);
        }
        assert_eq!(*stalled.all.lent.lock(), 7 * MESSAGE_BYTES);
        let mut first = lent(begins.lend_some(MESSAGE_BYTES)).expect("a first loan");
        assert_eq!(first.bytes(), SHORT_BYTES);
        // The message became larger than its loan.
        first.settle(2 * SHORT_BYTES);
        assert!(lent(begins.lend_some(MESSAGE_BYTES)).is_none());
        drop(first);
        assert!(lent(begins.lend_some(MESSAGE_BYTES)).is_some());
        held.pop();
        let whole = lent(begins.lend_some(MESSAGE_BYTES)).expect("there is room again");
        assert_eq!(whole.bytes(), MESSAGE_BYTES);
    }

    #[test]
    fn what_a_user_has_beyond_its_share_is_not_missing_to_others() {
        let all = Arc::new(Budget::new(8 * MESSAGE_BYTES, 4));
        let user = || Some(Arc::new(Budget::new(4 * MESSAGE_BYTES, 2)));
        let (one, other) = (
            Lender::new(Arc::clone(&all), user()),
            Lender::new(Arc::clone(&all), user()),
        );
        let mut large = lent(one.lend_some(MESSAGE_BYTES)).expect("nothing is lent yet");
        large.settle(100 * MESSAGE_BYTES);
        assert_eq!(*all.lent.lock(), 4 * MESSAGE_BYTES);
        assert!(lent(one.another().lend_some(MESSAGE_BYTES)).is_none());
        let first = lent(other.lend_some(MESSAGE_BYTES)).expect("its share is there");
        assert_eq!(first.bytes(), MESSAGE_BYTES);
        large.settle(MESSAGE_BYTES);
        assert_eq!(*all.lent.lock(), 2 * MESSAGE_BYTES);
        drop((large, first));
        assert_eq!(*all.lent.lock(), 0);
    }

    #[test]
    fn every_read_gets_something_within_the_budget_however_many_there_may_be() {
        for (bytes, reads) in [(16 << 20, 32), (128 << 20, 32), (16 << 20, 1_024)] {
            let (one, _) = of_reads(bytes, reads);
            let mut held = Vec::new();
            while let Some(loan) = lent(one.lend_some(SCAN_BYTES)) {
                held.push(loan);
            }
            // The other reads, each with a piece of the log and a message.
            for _ in 0..2 * reads - 1 {
                let loan = lent(one.another().lend_some(MESSAGE_BYTES)).expect("its first");
                assert!(loan.bytes() >= 4 << 10);
                held.push(loan);
            }
            assert!(*one.all.lent.lock() <= bytes);
        }
    }

    #[test]
    fn what_is_given_back_by_another_user_wakes_who_waits() {
        let one = lender(100, 100);
        let other = Lender {
            user: Some(Arc::new(Budget::new(100, 0))),
            ..one.another()
        };
        let held = lent(one.lend(100)).expect("nothing is lent yet");
        let mut waiting = pin!(other.lend(10));
        assert!(poll(&mut waiting).is_pending());
        drop(held);
        assert!(poll(&mut waiting).is_ready());
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
