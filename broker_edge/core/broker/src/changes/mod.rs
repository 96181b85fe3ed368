//! What in the settings and in the ACL file of an older version means something else to this one.
//!
//! `headwaterd --check` prints it line by line; `docs/upgrade.md` has a section for each entry of [`CHANGES`], which a
//! test compares. To add a change: a row in `table.rs`, with a function that finds the lines, and its section there.
//! Nothing is changed here, and nothing is refused: all of it is valid.

mod acl_lines;
mod table;

use std::path::Path;

use crate::auth::acl::Acl;
use crate::auth::file;
use crate::config::Config;

pub use table::CHANGES;

use acl_lines::{RuleLine, operators, rules};

/// The version that the notes compare with.
pub const SINCE: &str = "583ec94";

/// One change, for everybody whom it may concern.
pub struct Change {
    /// A word that is the same in the output of `--check` and in the headings of docs/upgrade.md.
    pub key: &'static str,
    /// The lines of an installation that it is about.
    find: fn(&Facts<'_>) -> Vec<Finding>,
}

/// A line that means something else now.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// `FILE:LINE` of the ACL file, or the key of a setting.
    pub place: String,
    /// What it means now, and what to do.
    pub meaning: String,
}

/// What the changes look at.
struct Facts<'a> {
    config: &'a Config,
    acl_file: Option<&'a Path>,
    rules: Vec<RuleLine<'a>>,
    /// By the ACL file.
    operators: Vec<&'a str>,
    /// Lines of rules in which the client id stands.
    client_id_lines: Vec<usize>,
}

impl Facts<'_> {
    /// The place of a line of the ACL file.
    fn line(&self, number: usize) -> String {
        let file = self.acl_file.unwrap_or(Path::new("auth.acl_file"));
        format!("{}:{number}", file.display())
    }

    /// Whether there are users, so that rights and shares of theirs count.
    fn has_users(&self) -> bool {
        self.config.auth.is_configured()
    }
}

/// A line for each finding, in the order of the table and of the lines; empty when nothing has changed.
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
        "since {SINCE} these lines mean something else (docs/upgrade.md, by the word in brackets):\n{notes}"
    )
}

fn note(notes: &mut String, place: &str, key: &str, meaning: &str) {
    // Lines of the file are quoted, and a terminal would obey what is in them.
    for c in format!("{place}: [{key}] {meaning}").chars() {
        if c.is_control() {
            notes.extend(c.escape_default());
        } else {
            notes.push(c);
        }
    }
    notes.push('\n');
}

/// The text of an ACL file that the broker takes, and its lines with a rule in which `%c` stands.
fn readable(path: &Path) -> Result<(String, Vec<usize>), String> {
    let not_looked_at = |error| format!("its lines are not looked at: {error}");
    let acl = Acl::load(path).map_err(not_looked_at)?;
    let text = file::read(path).map_err(not_looked_at)?;
    Ok((text, acl.client_id_rules().collect()))
}

#[cfg(test)]
mod tests;
