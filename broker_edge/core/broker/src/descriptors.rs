//! How the file descriptors of the process are shared out, so that clients, however many, never keep the log from opening
//! a file, and a flood on one listener never closes the others.
//!
//! The system gives the lowest number that is free, so a number says how many are taken. From `reserve_from` on they are
//! not for MQTT. Of that reserve a quarter is for Flight and a quarter for admin HTTP; the other half is for the log, its
//! service and its tools alone.

/// The reserve is this part of the limit, within bounds.
const RESERVE_PART: u64 = 8;
const RESERVE_MIN: u64 = 16;
pub const RESERVE_MAX: u64 = 256;
/// Connections of Flight and of admin HTTP are these parts of the limit at most.
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

/// How many connections may wait before they speak MQTT, whatever is set: a quarter is left to those that do.
pub fn pending_room(limit: u64) -> usize {
    usize::try_from(reserve_from(limit) / 4 * 3)
        .unwrap_or(usize::MAX)
        .max(1)
}

/// How many MQTT connections there are descriptors for, beside the files that are open already.
pub fn connections_room(limit: u64) -> u64 {
    (reserve_from(limit) / 8 * 7).max(1)
}

/// What a service listener may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Connections, whatever is set.
    pub connections: usize,
    /// They get numbers below this one.
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
