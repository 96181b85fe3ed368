//! One run of a log that uses all its functions. Tests interrupt it, or fail it, at every single call.

use std::time::Duration;

use super::machine::{Crash, Machine, Spec};

pub fn spec(topic: u8, bytes: usize) -> Spec {
    Spec {
        topic,
        bytes,
        retain: topic == 3,
        key: bytes.is_multiple_of(7).then_some(topic),
    }
}

pub type Act = fn(&mut Machine);

/// Appends of all kinds, sealing, saving of indexes, removal, reuse of a segment, marks, a clean stop, a crash.
pub const SCRIPT: &[Act] = &[
    |m| m.append(1, &[spec(0, 100), spec(1, 700)], true),
    |m| m.append(2, &[spec(2, 70)], false),
    |m| m.append(0, &[spec(3, 10)], false),
    |m| m.append_unique(1, 3, 600),
    |m| m.append(1, &[spec(1, 6000)], false),
    |m| m.append(1, &[spec(3, 9000), spec(3, 40)], true),
    |m| m.maintain(),
    |m| m.append(1, &[spec(2, 8000)], true),
    |m| m.remove(1, 100),
    |m| m.append(1, &[spec(2, 3000), spec(2, 5000)], false),
    |m| m.append(1, &[spec(0, 2500)], true),
    |m| m.append(1, &[spec(1, 6000)], false),
    |m| m.append(0, &[spec(1, 9000)], true),
    |m| m.append(0, &[spec(1, 9000)], true),
    |m| m.pass(Duration::from_secs(6)),
    |m| m.maintain(),
    |m| m.append(1, &[spec(1, 30)], true),
    |m| m.append(2, &[spec(1, 2000)], true),
    |m| m.stop(None, &[]),
    |m| m.append(1, &[spec(1, 900), spec(2, 1100)], true),
    |m| m.append(2, &[spec(1, 50)], false),
    |m| m.crash(Crash::Kill, &[]),
    |m| m.append(1, &[spec(0, 1500)], true),
    |m| m.remove(1, 60),
];
