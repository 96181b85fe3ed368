//! The clock of a node. It counts while the machine is suspended: a leader that slept has no lease.

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since the machine started.
pub fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}
