//! Answers from the log: reads, plans and offsets.

pub mod offsets;
pub mod outbox;
pub mod plan;
pub mod plan_budget;
pub mod poll_backoff;
pub mod read;
pub mod scan;
pub mod shown;
