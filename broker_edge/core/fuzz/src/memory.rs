//! The allocator of the fuzzer: the system's, with the bytes in use, their peak and the number of allocations; and the
//! bounds on what an input may take.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// While an input is read: this, and [`BYTES_PER_BYTE`] for each of its bytes.
const FREE_BYTES: i64 = 8 << 20;
const BYTES_PER_BYTE: i64 = 256;
/// What a process may hold more than after its first [`WARM_RUNS`] inputs.
const GROWTH_BYTES_MAX: i64 = 8 << 20;
const WARM_RUNS: u64 = 10_000;

static USED: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static RUNS: AtomicU64 = AtomicU64::new(0);
static WARM: AtomicI64 = AtomicI64::new(0);

struct Counting;

fn note(bytes: i64) {
    let used = USED.fetch_add(bytes, Relaxed) + bytes;
    if used > PEAK.load(Relaxed) {
        PEAK.store(used, Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        note(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        note(-(layout.size() as i64));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often this process has allocated.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.load(Relaxed)
}

/// Runs `read` on an input of this length and checks what it takes and what it leaves behind.
pub(crate) fn bounded(input_bytes: usize, read: impl FnOnce()) {
    let before = USED.load(Relaxed);
    PEAK.store(before, Relaxed);
    read();
    let taken = PEAK.load(Relaxed) - before;
    let most = FREE_BYTES + BYTES_PER_BYTE * input_bytes as i64;
    assert!(
        taken <= most,
        "an input of {input_bytes} bytes took {taken} bytes of memory; the bound is {most}"
    );
    let used = USED.load(Relaxed);
    let runs = RUNS.fetch_add(1, Relaxed);
    if runs == WARM_RUNS {
        WARM.store(used, Relaxed);
    }
    let grown = used - WARM.load(Relaxed);
    assert!(
        runs <= WARM_RUNS || grown <= GROWTH_BYTES_MAX,
        "the process holds {grown} bytes more than after {WARM_RUNS} inputs"
    );
}
