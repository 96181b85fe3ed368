//! Divides the file descriptors of the process, so that clients never keep the log from opening a file, and a flood on
//! one listener never affects the others.
//!
//! The system assigns the lowest free number, so the number of a new descriptor shows how many are in use. MQTT may not
//! use numbers from `reserve_from` on. A quarter of this reserve is for Flight and a quarter for admin HTTP; the other
//! half is only for the log, its service and its tools.

/// The reserve is the limit of open files divided by this, but at least `RESERVE_MIN` and at most `RESERVE_MAX`.
const RESERVE_PART: u64 = 8;
const RESERVE_MIN: u64 = 16;
pub const RESERVE_MAX: u64 = 256;
/// Flight and admin HTTP may have at most the limit divided by these.
const FLIGHT_PART: u64 = 4;
const ADMIN_PART: u64 = 16;

/// The limit of open files of this process.
pub fn open_files_max() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .unwrap_or(u64::MAX)
}

fn reserve(limit: u64) -> u64 {
    (limit / RESERVE_PART).clamp(RESERVE_MIN, RESERVE_MAX)
}

/// MQTT connections get numbers below this one.
pub fn reserve_from(limit: u64) -> u64 {
    limit.saturating_sub(reserve(limit))
}

/// How many connections may be pending before their CONNECT, whatever is configured: a quarter is left to connected
/// clients.
pub fn pending_room(limit: u64) -> usize {
    usize::try_from(reserve_from(limit) / 4 * 3)
        .unwrap_or(usize::MAX)
        .max(1)
}

/// How many MQTT connections the descriptors allow, besides the files that are already open.
pub fn connections_room(limit: u64) -> u64 {
    (reserve_from(limit) / 8 * 7).max(1)
}

/// The share of a service listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The most connections, whatever is configured.
    pub connections: usize,
    /// Their descriptors must be below this number.
    pub below: u64,
}

pub fn flight_share(limit: u64) -> Share {
    share(limit, FLIGHT_PART, reserve(limit) / 4 * 3)
}

pub fn admin_share(limit: u64) -> Share {
    share(limit, ADMIN_PART, reserve(limit) / 2)
}

fn share(limit: u64, part: u64, left: u64) -> Share {
    Share {
        connections: usize::try_from(limit / part).unwrap_or(usize::MAX).max(2),
        below: limit.saturating_sub(left),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_an_eighth_of_the_limit_within_bounds() {
        assert_eq!(reserve_from(60), 44);
        assert_eq!(reserve_from(1024), 896);
        assert_eq!(reserve_from(1 << 20), (1 << 20) - 256);
        assert_eq!(reserve_from(8), 0);
    }

    #[test]
    fn connections_that_say_nothing_leave_descriptors_to_those_that_speak() {
        assert_eq!(pending_room(1024), 672);
        assert!(pending_room(20_000) > 10_000);
        assert_eq!(pending_room(8), 1);
        assert_eq!(connections_room(1024), 784);
        assert_eq!(connections_room(8), 1);
    }

    #[test]
    fn each_listener_has_descriptors_that_the_others_cannot_take_and_the_log_has_its_own() {
        for limit in [60, 1024, 1 << 20] {
            let (mqtt, flight, admin) =
                (reserve_from(limit), flight_share(limit), admin_share(limit));
            assert!(mqtt < flight.below && flight.below < admin.below && admin.below < limit);
        }
        let flight = flight_share(1024);
        assert_eq!((flight.connections, flight.below), (256, 928));
        let admin = admin_share(1024);
        assert_eq!((admin.connections, admin.below), (64, 960));
    }
}
