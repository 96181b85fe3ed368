//! Faults that a fault build (`--features faults`) injects into itself: it ends at a named point, fails or delays a
//! file operation, lets the clock jump, or makes a mistake on purpose. `docs/torture.md` describes the syntax.
//!
//! In every other build none of this is compiled: [`failpoint!`] is empty and [`is_sabotaged`] is always false.
#![cfg_attr(
    not(feature = "faults"),
    allow(dead_code, reason = "only a fault build uses the faults")
)]

// Test builds contain these too, so the tests of the faults need no second build.
#[cfg(any(test, feature = "faults"))]
mod faulty_files;
#[cfg(any(test, feature = "faults"))]
mod jumping_clock;
#[cfg(any(test, feature = "faults"))]
mod plan;

#[cfg(not(feature = "faults"))]
mod none;
mod sabotage;
#[cfg(feature = "faults")]
mod seams;

#[cfg(not(feature = "faults"))]
pub use none::is_sabotaged;
#[cfg(not(feature = "faults"))]
pub(crate) use none::{epoch_of_start, set_recovering, trusts_checksums};
#[cfg(feature = "faults")]
pub use plan::{POINTS, check_environment, is_sabotaged, pass};
#[cfg(feature = "faults")]
pub(crate) use plan::{epoch_of_start, set_recovering, trusts_checksums};
pub use sabotage::Sabotage;

/// A point at which a fault build can be told to end.
#[cfg(feature = "faults")]
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {
        $crate::faults::pass($name)
    };
}

/// A point at which a fault build can be told to end; empty in this build.
#[cfg(not(feature = "faults"))]
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {};
}
