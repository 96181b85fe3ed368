//! What one round of a case costs: wall clock, CPU time of the whole process, calls that read or write, allocations.
//!
//! It decides nothing about what is run and prints nothing.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Counts allocations; otherwise the allocator that `headwaterd` uses.
pub struct Counting(pub mimalloc::MiMalloc);

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes unchanged to an allocator that keeps the contract; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        unsafe { self.0.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { self.0.dealloc(pointer, layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        unsafe { self.0.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        unsafe { self.0.realloc(pointer, layout, size) }
    }
}

/// One round.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub wall: Duration,
    pub cpu: Duration,
    /// `read` and `write` and their kin, as the kernel counts them; a sync is none.
    pub calls: u64,
    pub allocations: u64,
    pub units: u64,
    pub bytes: u64,
}

impl Cost {
    pub fn per_second(&self) -> f64 {
        self.units as f64 / self.wall.as_secs_f64()
    }

    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.wall.as_secs_f64()
    }

    pub fn cpu_us_per_unit(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.units as f64
    }
}

/// Runs `f`, which returns how many units and bytes it has handled.
pub fn measure(f: impl FnOnce() -> (u64, u64)) -> Cost {
    let calls = io_calls();
    let allocations = ALLOCATIONS.load(Ordering::Relaxed);
    let cpu = cpu_time();
    let start = Instant::now();
    let (units, bytes) = f();
    Cost {
        wall: start.elapsed(),
        cpu: cpu_time() - cpu,
        calls: io_calls() - calls,
        allocations: ALLOCATIONS.load(Ordering::Relaxed) - allocations,
        units,
        bytes,
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn io_calls() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    text.lines()
        .filter(|line| line.starts_with("syscr") || line.starts_with("syscw"))
        .filter_map(|line| line.split(' ').nth(1)?.parse::<u64>().ok())
        .sum()
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
