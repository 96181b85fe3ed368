//! The imports between the files and folders of the log are those that `ARCHITECTURE.md` draws, without a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

type Arrows = BTreeMap<String, BTreeSet<String>>;

/// Top-level files that hold plain values: every folder may import them.
const VALUES: [&str; 3] = ["ids", "error", "config"];

/// The module of every source file, such as `index/store`, with its text up to its tests.
fn sources(dir: &Path, prefix: &str, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).expect("the folder can be listed") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("a name").to_string_lossy();
        if path.is_dir() {
            sources(&path, &format!("{prefix}{name}/"), found);
        } else if !name.ends_with("_tests") && name != "mod" && name != "lib" {
            let text = fs::read_to_string(&path).expect("it is text");
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("");
            found.insert(format!("{prefix}{name}"), code.to_owned());
        }
    }
}

/// Which files each file names by `crate::` or `super::`.
fn imports(sources: &BTreeMap<String, String>) -> Arrows {
    let mut arrows = Arrows::new();
    for (file, text) in sources {
        let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
        let within = format!("{folder}/");
        for (marker, base) in [("crate::", ""), ("super::", &*within)] {
            for (at, _) in text.match_indices(marker) {
                let path = &text[at + marker.len()..];
                let end = path.find(|c: char| !(c.is_alphanumeric() || "_:".contains(c)));
                let parts: Vec<&str> = path[..end.unwrap_or(path.len())].split("::").collect();
                // The longest path that is a file.
                let target = (1..=parts.len())
                    .rev()
                    .map(|length| format!("{base}{}", parts[..length].join("/")))
                    .find(|target| sources.contains_key(target) && target != file);
                arrows.entry(file.clone()).or_default().extend(target);
            }
        }
    }
    arrows
}

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

/// The folder of a file, or the file itself at the top.
fn room(file: &str) -> String {
    file.split('/').next().unwrap_or(file).to_owned()
}

fn between_rooms(arrows: &Arrows) -> Arrows {
    let mut rooms = Arrows::new();
    for (file, targets) in arrows {
        let others = targets.iter().map(|target| room(target));
        let others = others.filter(|other| *other != room(file) && !VALUES.contains(&&**other));
        rooms.entry(room(file)).or_default().extend(others);
    }
    rooms
}

/// The drawing: each room with everything that is below it.
fn drawing() -> Arrows {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../ARCHITECTURE.md");
    let text = fs::read_to_string(path).expect("ARCHITECTURE.md");
    let (_, after) = text.split_once("0017-log-rooms.md").expect("the drawing");
    let block = after.split("```").nth(1).expect("a block");
    let mut drawn = Arrows::new();
    for line in block.lines().rev() {
        let Some((from, rest)) = line.split_once("->") else {
            continue;
        };
        let to = rest.split_whitespace().next().expect("a target").to_owned();
        let mut below = drawn.get(&to).cloned().unwrap_or_default();
        below.insert(to);
        drawn.insert(from.trim().to_owned(), below);
    }
    drawn
}

#[test]
fn imports_of_the_log_run_as_the_drawing_says_and_in_no_circle() {
    let mut files = BTreeMap::new();
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    sources(&src, "", &mut files);
    let arrows = imports(&files);
    assert!(arrows.len() > 60, "the files are found");
    assert_eq!(circle(&arrows), None, "between files");
    let rooms = between_rooms(&arrows);
    assert_eq!(circle(&rooms), None, "between folders");
    let drawn = drawing();
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
    let arrows = imports(&files);
    assert!(circle(&arrows).is_some());
    assert!(circle(&between_rooms(&arrows)).is_some());
}
