//! Finds settings and ACL lines whose meaning has changed since an older version.
//!
//! `headwaterd --check` prints them line by line. `docs/upgrade.md` has a section for each entry of [`CHANGES`]; a test
//! compares the two. To add a change, add a row to `table.rs` with a function that finds the lines, and a section to
//! `docs/upgrade.md`. This module only reports: all these lines are still valid.

mod acl_lines;
mod table;

use std::path::Path;

use crate::auth::acl::Acl;
use crate::auth::file;
use crate::config::Config;
use crate::one_line::one_line;

pub use table::CHANGES;

use acl_lines::{RuleLine, operators, rules};

/// The version that the notes compare to.
pub const SINCE: &str = "583ec94";

/// One change of meaning.
pub struct Change {
    /// The keyword in the output of `--check` and in the headings of docs/upgrade.md.
    pub key: &'static str,
    /// Finds the affected lines of an installation.
    find: fn(&Facts<'_>) -> Vec<Finding>,
}

impl Change {
    const fn new(key: &'static str, find: fn(&Facts<'_>) -> Vec<Finding>) -> Change {
        Change { key, find }
    }
}

/// A line whose meaning has changed.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// `FILE:LINE` of the ACL file, or the key of a setting.
    pub place: String,
    /// The new meaning, and what to do.
    pub meaning: String,
}

/// The input of the changes.
struct Facts<'a> {
    config: &'a Config,
    acl_file: Option<&'a Path>,
    rules: Vec<RuleLine<'a>>,
    /// The operators in the ACL file.
    operators: Vec<&'a str>,
    /// Line numbers of rules that contain `%c`.
    client_id_lines: Vec<usize>,
}

impl Facts<'_> {
    /// `FILE:LINE` of a line of the ACL file.
    fn line(&self, number: usize) -> String {
        let file = self.acl_file.unwrap_or(Path::new("auth.acl_file"));
        format!("{}:{number}", file.display())
    }

    /// Whether users are configured, so that per-user rights and shares apply.
    fn has_users(&self) -> bool {
        self.config.auth.is_configured()
    }
}

/// One line per finding, in the order of the table and of the file; empty if nothing has changed.
pub fn notes(config: &Config) -> String {
    let acl_file = config.auth.acl_file.as_deref();
    let mut notes = String::new();
    let read = acl_file.map_or_else(|| Ok(Default::default()), readable);
    if let Err(error) = &read {
        note(&mut notes, "auth.acl_file", "unread", error);
    }
    let (text, client_id_lines) = read.unwrap_or_default();
    let facts = Facts {
        config,
        acl_file,
        rules: rules(&text),
        operators: operators(&text),
        client_id_lines,
    };
    for change in CHANGES {
        for finding in (change.find)(&facts) {
            note(&mut notes, &finding.place, change.key, &finding.meaning);
        }
    }
    if notes.is_empty() {
        return notes;
    }
    format!(
        "the meaning of these lines has changed since {SINCE} (see docs/upgrade.md under the word in brackets):\n{notes}"
    )
}

fn note(notes: &mut String, place: &str, key: &str, meaning: &str) {
    // The notes quote lines of the file.
    notes.push_str(&one_line(&format!("{place}: [{key}] {meaning}")));
    notes.push('\n');
}

/// The text of a valid ACL file, and the line numbers of its rules with `%c`.
fn readable(path: &Path) -> Result<(String, Vec<usize>), String> {
    let not_checked = |error| format!("its lines are not checked: {error}");
    let acl = Acl::load(path).map_err(not_checked)?;
    let text = file::read(path).map_err(not_checked)?;
    Ok((text, acl.client_id_rules().collect()))
}

#[cfg(test)]
mod tests;
