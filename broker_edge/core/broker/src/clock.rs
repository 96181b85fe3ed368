//! The wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Unix microseconds.
pub fn now_us() -> i64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(wall.unwrap_or_default().as_micros()).unwrap_or(i64::MAX)
}
