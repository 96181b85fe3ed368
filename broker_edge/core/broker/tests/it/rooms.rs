//! The imports between the rooms of the engine go down only, as ADR 0019 draws them; and those of the service as
//! ARCHITECTURE.md draws them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::imports::{Arrows, between_rooms, drawing, imports, sources};

/// Top-level files that hold plain values, which every room may import, and parts of `mod`.
const TOP: [&str; 6] = ["ids", "env", "effects", "settings", "lend", "due"];

/// Every `room -> room` of the engine that goes up in the drawing.
fn upward(files: &BTreeMap<String, String>) -> BTreeSet<String> {
    let rooms = between_rooms(&imports(files, "crate::engine::"), &TOP);
    let drawn = drawing("docs/adr/0019-engine-owners.md", "### Rooms");
    against(&rooms, &drawn, &TOP)
}

/// The arrows between rooms that are not drawn.
fn against(rooms: &Arrows, drawn: &Arrows, top: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (from, targets) in rooms.iter().filter(|(from, _)| !top.contains(&&***from)) {
        let below = drawn.get(from).cloned().unwrap_or_default();
        found.extend(
            targets
                .difference(&below)
                .map(|to| format!("{from} -> {to}")),
        );
    }
    found
}

/// The functions for `make fuzz` drive the whole, as tests do.
fn is_test(file: &str) -> bool {
    file.starts_with("tests") || file.starts_with("fuzz")
}

#[test]
fn imports_of_the_engine_go_down() {
    let mut files = BTreeMap::new();
    let engine = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine");
    sources(&engine, "", &mut files);
    files.retain(|file, _| !is_test(file) && file != "mod");
    assert!(files.len() > 70, "the files are found");
    let upward = upward(&files);
    assert!(upward.is_empty(), "these go upward: {upward:?}");
}

#[test]
fn imports_of_the_service_go_down() {
    let mut files = BTreeMap::new();
    let service = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/service");
    sources(&service, "", &mut files);
    files.retain(|file, _| !is_test(file));
    assert!(files.len() > 40, "the files are found");
    let values = ["error", "limits"];
    let rooms = between_rooms(&imports(&files, "crate::service::"), &values);
    let drawn = drawing("ARCHITECTURE.md", "`broker_edge/core/broker/src/service`");
    let upward = against(&rooms, &drawn, &values);
    assert!(upward.is_empty(), "these go upward: {upward:?}");
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
