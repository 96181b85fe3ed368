//! The allocator of the tests: the system's, with counts for each thread. Tests on other threads do not change them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static HELD_BYTES: Cell<i64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        HELD_BYTES.with(|held| held.set(held.get() + layout.size() as i64));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        HELD_BYTES.with(|held| held.set(held.get() - layout.size() as i64));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often this thread has allocated.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

/// Bytes that this thread has allocated and not freed. Bytes that another thread frees still count here.
pub(crate) fn held_bytes() -> i64 {
    HELD_BYTES.with(Cell::get)
}
