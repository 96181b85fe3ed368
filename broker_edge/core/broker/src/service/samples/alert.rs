//! What is wrong now and what to do about it, as pages are told.

use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alert {
    pub name: &'static str,
    pub severity: Severity,
    pub summary: String,
    pub remedy: &'static str,
}

/// The worst comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Critical,
    Warning,
}
