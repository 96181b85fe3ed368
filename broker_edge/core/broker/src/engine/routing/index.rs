//! Entries by filter. Filters without wildcards are looked up by hash; the others are in a tree of levels. Matching
//! recurses once per level, so the caller limits the levels of a filter.

use std::collections::HashMap;

use super::entries::{Entries, Entry};

#[derive(Debug)]
struct Node<E> {
    levels: HashMap<Box<str>, Node<E>>,
    /// `+` at the next level.
    any: Option<Box<Node<E>>>,
    /// Filters that end here.
    here: Entries<E>,
    /// Filters that end with `#` below here.
    below: Entries<E>,
}

impl<E> Default for Node<E> {
    fn default() -> Self {
        Self {
            levels: HashMap::new(),
            any: None,
            here: Entries::default(),
            below: Entries::default(),
        }
    }
}

impl<E> Node<E> {
    fn is_empty(&self) -> bool {
        self.levels.is_empty()
            && self.any.is_none()
            && self.here.is_empty()
            && self.below.is_empty()
    }
}

/// Entries by filter. Most filters have one subscriber: a device's own topic.
#[derive(Debug)]
pub struct Index<E> {
    exact: HashMap<Box<str>, Entries<E>>,
    root: Node<E>,
}

impl<E> Default for Index<E> {
    fn default() -> Self {
        Self {
            exact: HashMap::new(),
            root: Node::default(),
        }
    }
}

impl<E: Entry> Index<E> {
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.root.is_empty() && self.exact.is_empty()
    }

    pub fn entries_of(&mut self, filter: &str) -> &mut Entries<E> {
        if has_wildcard(filter) {
            entries_below(&mut self.root, filter)
        } else if self.exact.contains_key(filter) {
            self.exact.get_mut(filter).expect("it was just there")
        } else {
            self.exact.entry(filter.into()).or_default()
        }
    }

    /// Calls `remove` on the entries of a filter and returns its result.
    pub fn remove(&mut self, filter: &str, remove: impl Fn(&mut Entries<E>) -> bool) -> bool {
        if has_wildcard(filter) {
            return remove_below(&mut self.root, filter, &remove);
        }
        let Some(entries) = self.exact.get_mut(filter) else {
            return false;
        };
        let removed = remove(entries);
        if entries.is_empty() {
            self.exact.remove(filter);
        }
        removed
    }

    pub fn for_each_match(&self, topic: &str, found: &mut impl FnMut(&Entries<E>)) {
        if let Some(entries) = self.exact.get(topic) {
            found(entries);
        }
        if topic.starts_with('$') {
            // Wildcards at the first level do not match topics that begin with `$` (MQTT-4.7.2-1).
            let (first, rest) = split_level(topic);
            if let Some(node) = self.root.levels.get(first) {
                visit(node, rest, found);
            }
        } else {
            visit(&self.root, Some(topic), found);
        }
    }
}

fn has_wildcard(filter: &str) -> bool {
    filter.bytes().any(|byte| matches!(byte, b'+' | b'#'))
}

/// The first level, and the text after its slash.
fn split_level(text: &str) -> (&str, Option<&str>) {
    match text.split_once('/') {
        Some((first, rest)) => (first, Some(rest)),
        None => (text, None),
    }
}

fn entries_below<'a, E>(mut node: &'a mut Node<E>, filter: &str) -> &'a mut Entries<E> {
    let mut rest = Some(filter);
    while let Some(text) = rest {
        let (level, next) = split_level(text);
        match level {
            "#" => return &mut node.below,
            "+" => node = node.any.get_or_insert_default(),
            _ => node = node.levels.entry(level.into()).or_default(),
        }
        rest = next;
    }
    &mut node.here
}

/// Removes an entry of a filter and the nodes that are then unused.
fn remove_below<E>(
    node: &mut Node<E>,
    filter: &str,
    remove: &impl Fn(&mut Entries<E>) -> bool,
) -> bool {
    let (level, rest) = split_level(filter);
    if level == "#" {
        return remove(&mut node.below);
    }
    let child = if level == "+" {
        node.any.as_deref_mut()
    } else {
        node.levels.get_mut(level)
    };
    let Some(child) = child else { return false };
    let removed = match rest {
        Some(rest) => remove_below(child, rest, remove),
        None => remove(&mut child.here),
    };
    if child.is_empty() {
        if level == "+" {
            node.any = None;
        } else {
            node.levels.remove(level);
        }
    }
    removed
}

/// `rest` is `None` after the last level.
fn visit<E>(node: &Node<E>, rest: Option<&str>, found: &mut impl FnMut(&Entries<E>)) {
    found(&node.below);
    let Some(text) = rest else {
        found(&node.here);
        return;
    };
    let (level, next) = split_level(text);
    if let Some(child) = node.levels.get(level) {
        visit(child, next, found);
    }
    if let Some(child) = &node.any {
        visit(child, next, found);
    }
}
