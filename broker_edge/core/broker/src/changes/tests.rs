use std::fs;
use std::path::{Path, PathBuf};

use super::{CHANGES, notes};
use crate::config::{Config, Source};

/// Settings as given by `--set`.
fn config(settings: &[&str]) -> Config {
    let settings = settings.iter().map(|&setting| setting.to_owned()).collect();
    Config::load(&Source::with_environment(None, settings)).expect("valid settings")
}

/// An ACL file for this test, and the setting that names it.
fn acl(name: &str, text: &str) -> (PathBuf, String) {
    let file = std::env::temp_dir().join(format!("headwater-{name}-{}", std::process::id()));
    fs::write(&file, text).expect("written");
    let setting = format!("auth.acl_file={}", file.display());
    (file, setting)
}

/// The notes with this key, without the key.
fn of<'a>(notes: &'a str, key: &str) -> Vec<&'a str> {
    let word = format!(": [{key}] ");
    let lines = notes.lines();
    lines
        .filter_map(|line| Some(line.split_once(&word)?.0))
        .collect()
}

#[test]
fn each_line_of_the_acl_that_means_something_else_is_named() {
    let text = "user ann\ntopic replay a/#\ntopic read b/%c\n\npattern readwrite devices/%c/#\npattern deny x/%c\npattern read u/%u\n";
    let (file, setting) = acl("lines", text);
    let notes = notes(&config(&["auth.password_file=users", &setting]));
    let place = |line: usize| format!("{}:{line}", file.display());
    assert_eq!(of(&notes, "client-ids"), [place(5), place(6)]);
    assert_eq!(of(&notes, "groups"), [place(2)]);
    assert!(of(&notes, "operators").is_empty(), "{notes}");
    let line = notes.lines().find(|line| line.contains("client-ids"));
    let line = line.expect("there is one");
    assert!(
        line.contains("`pattern readwrite devices/%c/#`") && line.contains("auth.client_ids: any")
    );
    fs::remove_file(file).expect("removed");
}

#[test]
fn users_without_an_acl_file_are_told_that_they_are_no_operators() {
    let notes = notes(&config(&["auth.password_file=users"]));
    assert_eq!(of(&notes, "operators"), ["auth.acl_file"]);
    assert_eq!(of(&notes, "groups"), ["auth.acl_file"]);
    let caps = of(&notes, "quotas");
    assert!(caps.contains(&"mqtt.max_sessions"), "{notes}");
    assert!(caps.contains(&"mqtt.max_session_bytes"), "{notes}");
    assert!(notes.contains("gets at most 50000"), "{notes}");
}

#[test]
fn what_the_settings_answer_already_is_no_note() {
    let (file, setting) = acl("answered", "pattern readwrite devices/%c/#\n");
    let any = notes(&config(&[
        "auth.password_file=users",
        &setting,
        "auth.client_ids=any",
    ]));
    assert!(of(&any, "client-ids").is_empty(), "{any}");
    let named = notes(&config(&[
        "auth.password_file=users",
        "auth.operators=[root]",
    ]));
    assert!(of(&named, "operators").is_empty(), "{named}");
    fs::remove_file(file).expect("removed");
}

#[test]
fn strangers_beyond_loopback_are_told_that_they_are_no_operators() {
    let open = notes(&config(&["auth.allow_anonymous=true"]));
    assert!(of(&open, "operators").is_empty(), "{open}");
    let exposed = notes(&config(&[
        "auth.allow_anonymous=true",
        "listeners.flight.bind=0.0.0.0:8815",
        "listeners.ws.bind=127.0.0.1:8083",
    ]));
    assert_eq!(of(&exposed, "operators"), ["auth.allow_anonymous"]);
    assert_eq!(of(&exposed, "doors"), ["listeners.flight.bind"]);
    assert_eq!(of(&exposed, "origins"), ["listeners.ws.bind"]);
    assert!(of(&exposed, "quotas").is_empty(), "{exposed}");
}

#[test]
fn a_broker_of_nobody_but_this_machine_hears_only_what_concerns_it() {
    let notes = notes(&config(&[]));
    let keys: Vec<_> = CHANGES
        .iter()
        .map(|change| change.key)
        .filter(|key| !of(&notes, key).is_empty())
        .collect();
    assert_eq!(keys, ["records", "hosts"], "{notes}");
}

#[test]
fn what_a_line_of_the_acl_says_to_a_terminal_is_shown_and_not_done() {
    let (file, setting) = acl(
        "escapes",
        "pattern write a\u{1b}[2K/%c\rpattern write all-is-well/%c\n",
    );
    let notes = notes(&config(&["auth.password_file=users", &setting]));
    fs::remove_file(file).expect("it is there");
    let is_plain = |c: char| c == '\n' || !c.is_control();
    assert!(notes.chars().all(is_plain), "{notes:?}");
    assert!(
        notes.contains("\\u{1b}[2K") && notes.contains("\\r"),
        "{notes}"
    );
}

#[test]
fn an_acl_file_that_cannot_be_read_is_a_note_and_no_error() {
    let notes = notes(&config(&[
        "auth.password_file=users",
        "auth.acl_file=no/such/acl",
    ]));
    assert_eq!(of(&notes, "unread"), ["auth.acl_file"]);
    assert!(notes.contains("no/such/acl"), "{notes}");
}

/// docs/upgrade.md has exactly one section per change, in the same order.
#[test]
fn the_table_and_docs_upgrade_have_the_same_changes() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/upgrade.md");
    let text = fs::read_to_string(&file).expect("docs/upgrade.md is there");
    let headings: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("### `")?.split_once('`'))
        .map(|(key, _)| key)
        .collect();
    let keys: Vec<_> = CHANGES.iter().map(|change| change.key).collect();
    assert_eq!(headings, keys);
}
