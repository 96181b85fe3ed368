//! `broker_edge._core`: the broker inside a Python process.
//!
//! The only crate that knows Python. It turns arguments into settings, releases the interpreter around everything that
//! waits, and turns errors into two exceptions, in [`native::raise`]. It decides nothing itself. Without the feature
//! `python` it is empty, so that the workspace builds where there is no interpreter.
#![forbid(unsafe_code)]

#[cfg(feature = "python")]
mod native;
