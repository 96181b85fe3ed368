//! Which files and folders import each other, and a drawing of which may. The broker's tests use it too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

pub type Arrows = BTreeMap<String, BTreeSet<String>>;

/// The module of every source file, such as `index/store`, with its text up to its tests.
pub fn sources(dir: &Path, prefix: &str, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).expect("the folder can be listed") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("a name").to_string_lossy();
        if path.is_dir() {
            sources(&path, &format!("{prefix}{name}/"), found);
        } else if !name.ends_with("_tests") && name != "lib" {
            let text = fs::read_to_string(&path).expect("it is text");
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("");
            let module = format!("{prefix}{name}");
            let module = module.strip_suffix("/mod").unwrap_or(&module);
            found.insert(module.to_owned(), code.to_owned());
        }
    }
}

/// Which files each file names by `super::` or from the root of all files, such as `crate::`.
pub fn imports(sources: &BTreeMap<String, String>, root: &str) -> Arrows {
    let mut arrows = Arrows::new();
    for (file, text) in sources {
        let within = file
            .rsplit_once('/')
            .map_or(String::new(), |(folder, _)| format!("{folder}/"));
        for (marker, base) in [(root, ""), ("super::", &*within)] {
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

/// The folder of a file, or the file itself at the top.
fn room(file: &str) -> String {
    file.split('/').next().unwrap_or(file).to_owned()
}

/// The arrows between folders. Files of plain values at the top may be imported by all.
pub fn between_rooms(arrows: &Arrows, values: &[&str]) -> Arrows {
    let mut rooms = Arrows::new();
    for (file, targets) in arrows {
        let others = targets.iter().map(|target| room(target));
        let others = others.filter(|other| *other != room(file) && !values.contains(&&**other));
        rooms.entry(room(file)).or_default().extend(others);
    }
    rooms
}

/// The drawing that follows this text in a page at the top of the repository: each room with everything below it.
pub fn drawing(page: &str, before: &str) -> Arrows {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let text = fs::read_to_string(path.join(page)).expect("the page");
    let (_, after) = text.split_once(before).expect("the drawing");
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
