//! The imports between the files and folders of the log are those that `ARCHITECTURE.md` draws, without a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::imports::{Arrows, between_rooms, drawing, imports, sources};

/// Top-level files that hold plain values: every folder may import them.
const VALUES: [&str; 3] = ["ids", "error", "config"];

/// A file that can be reached from itself.
fn circle(arrows: &Arrows) -> Option<&String> {
    arrows.keys().find(|start| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![*start]);
        while let Some(file) = next.pop() {
            for target in arrows.get(file).into_iter().flatten() {
                if target == *start {
                    return true;
                }
                if seen.insert(target) {
                    next.push(target);
                }
            }
        }
        false
    })
}

#[test]
fn imports_of_the_log_run_as_the_drawing_says_and_in_no_circle() {
    let mut files = BTreeMap::new();
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    sources(&src, "", &mut files);
    // `fuzz` calls the readers of every room, and is in no release.
    files.retain(|file, _| !src.join(file).is_dir() && file != "fuzz");
    let arrows = imports(&files, "crate::");
    assert!(arrows.len() > 60, "the files are found");
    assert_eq!(circle(&arrows), None, "between files");
    let rooms = between_rooms(&arrows, &VALUES);
    assert_eq!(circle(&rooms), None, "between folders");
    let drawn = drawing("ARCHITECTURE.md", "0017-log-rooms.md");
    // Plain values, and the routing of topics, which only the log and the tools use.
    for (from, targets) in rooms
        .iter()
        .filter(|(from, _)| !VALUES.contains(&&***from) && *from != "route")
    {
        let allowed = drawn.get(from).cloned().unwrap_or_default();
        let others = targets.iter().filter(|to| *to != "route");
        let wrong: Vec<_> = others.filter(|to| !allowed.contains(*to)).collect();
        assert!(wrong.is_empty(), "{from} imports {wrong:?}");
    }
}

#[test]
fn an_import_that_closes_a_circle_is_found() {
    let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let files = BTreeMap::from([
        file("a/one", "use crate::b::two::Two;"),
        file("b/two", "use super::three::Three;"),
        file("b/three", "fn f() { crate::a::one::f() }"),
        file("c", ""),
    ]);
    let arrows = imports(&files, "crate::");
    assert!(circle(&arrows).is_some());
    assert!(circle(&between_rooms(&arrows, &VALUES)).is_some());
}
