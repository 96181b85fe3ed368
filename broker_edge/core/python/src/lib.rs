//! `broker_edge._core`: the broker inside a Python process.
//!
//! The only crate that depends on Python. It turns arguments into settings, releases the interpreter around every wait,
//! and turns errors into two exceptions, in [`native::raise`]. It contains no logic of its own. Without the feature
//! `python` it is empty, so that the workspace builds without an interpreter.
#![forbid(unsafe_code)]

#[cfg(feature = "python")]
mod native;
