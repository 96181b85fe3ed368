//! The imports between the rooms of the engine go down only, as ADR 0019 draws them, except for those listed here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::imports::{between_rooms, drawing, imports, sources};

/// Top-level files that hold plain values, which every room may import, and `commit`, which is a part of `mod`.
const TOP: [&str; 5] = ["ids", "env", "effects", "settings", "commit"];

/// Imports upward that are left from the time before the rooms. This list only shrinks.
const UPWARD: &str = "
protocol: operate
lifecycle: protocol
qos2: protocol
delivery: catch_up qos2
session_store: lifecycle qos2
shared_groups: catch_up delivery session_store
observe: operate
session: observe protocol qos2
retained: catch_up
routing: session shared_groups
quotas: retained routing session shared_groups
";

/// Every `room -> room` that goes up in the drawing.
fn upward(files: &BTreeMap<String, String>) -> BTreeSet<String> {
    let rooms = between_rooms(&imports(files, "crate::engine::"), &TOP);
    let drawn = drawing("docs/adr/0019-engine-owners.md", "### Rooms");
    let mut found = BTreeSet::new();
    for (from, targets) in rooms.iter().filter(|(from, _)| !TOP.contains(&&***from)) {
        let below = drawn.get(from).cloned().unwrap_or_default();
        found.extend(
            targets
                .difference(&below)
                .map(|to| format!("{from} -> {to}")),
        );
    }
    found
}

#[test]
fn imports_of_the_engine_go_down_except_for_those_that_are_left() {
    let mut files = BTreeMap::new();
    let engine = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine");
    sources(&engine, "", &mut files);
    files.retain(|file, _| !file.starts_with("tests") && file != "mod");
    assert!(files.len() > 70, "the files are found");
    let upward = upward(&files);
    let mut left = BTreeSet::new();
    for line in UPWARD.trim().lines() {
        let (from, targets) = line.split_once(':').expect("a room and its targets");
        left.extend(
            targets
                .split_whitespace()
                .map(|to| format!("{from} -> {to}")),
        );
    }
    let new: Vec<_> = upward.difference(&left).collect();
    assert!(new.is_empty(), "these go upward: {new:?}");
    let gone: Vec<_> = left.difference(&upward).collect();
    assert!(gone.is_empty(), "take these off the list: {gone:?}");
}

#[test]
fn an_import_that_goes_upward_is_found() {
    let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let files = BTreeMap::from([
        file("session", "use super::routing::router::Options;"),
        file("routing/router", "use crate::engine::session::Session;"),
        file("ids", ""),
    ]);
    assert_eq!(
        upward(&files),
        BTreeSet::from(["routing -> session".to_owned()])
    );
}
