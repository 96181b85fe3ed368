//! Entries by filter. Filters without wildcards are looked up by hash; the others are in a tree of levels.
//!
//! Clients choose the filters, so the tree is bounded by their number and their bytes, not by their levels: levels that
//! do not branch are one edge, and a node is made only where filters part or end. Matching (`walk`) recurses once per
//! node on the way, so the caller limits the levels of a filter.

use std::collections::HashMap;

use super::entries::{Entries, Entry};
use super::walk::{Place, Walk};

#[derive(Debug)]
pub(super) struct Node<E> {
    /// By the first level of the edge.
    levels: HashMap<Box<str>, Box<Edge<E>>>,
    /// No first level has more bytes. Whoever publishes chooses how long a level is, and a longer one is not looked up.
    longest: u16,
    /// The edge that begins with `+`.
    pub(super) any: Option<Box<Edge<E>>>,
    /// Filters that end here.
    pub(super) here: Entries<E>,
    /// Filters that end with `#` below here.
    pub(super) below: Entries<E>,
}

/// The way to a node.
#[derive(Debug)]
pub(super) struct Edge<E> {
    /// The levels after the first one, some of which may be `+`. `None` if there are none: an empty text is one empty
    /// level.
    pub(super) rest: Option<Box<str>>,
    pub(super) node: Node<E>,
}

impl<E> Default for Node<E> {
    fn default() -> Self {
        Self {
            levels: HashMap::new(),
            longest: 0,
            any: None,
            here: Entries::default(),
            below: Entries::default(),
        }
    }
}

impl<E> Node<E> {
    fn is_empty(&self) -> bool {
        self.levels.is_empty() && self.any.is_none() && self.has_no_entries()
    }

    fn has_no_entries(&self) -> bool {
        self.here.is_empty() && self.below.is_empty()
    }

    pub(super) fn named(&self, level: &str) -> Option<&Edge<E>> {
        let may_be = level.len() <= usize::from(self.longest);
        may_be.then(|| self.levels.get(level).map(Box::as_ref))?
    }

    fn edge_mut(&mut self, level: &str) -> Option<&mut Edge<E>> {
        if level == "+" {
            self.any.as_deref_mut()
        } else {
            self.levels.get_mut(level).map(Box::as_mut)
        }
    }

    fn put_edge(&mut self, level: &str, edge: Edge<E>) -> &mut Edge<E> {
        if level == "+" {
            self.any.insert(Box::new(edge))
        } else {
            let bytes = u16::try_from(level.len()).unwrap_or(u16::MAX);
            self.longest = self.longest.max(bytes);
            let entry = self.levels.entry(level.into());
            entry.insert_entry(Box::new(edge)).into_mut()
        }
    }

    fn remove_edge(&mut self, level: &str) {
        if level == "+" {
            self.any = None;
        } else {
            self.levels.remove(level);
            if self.levels.is_empty() {
                self.levels = HashMap::new();
                self.longest = 0;
            }
        }
    }

    /// Takes the only edge of a node at which nothing ends.
    fn take_only_edge(&mut self) -> Option<(Box<str>, Box<Edge<E>>)> {
        let count = self.levels.len() + usize::from(self.any.is_some());
        if count != 1 || !self.has_no_entries() {
            return None;
        }
        match self.any.take() {
            Some(edge) => Some(("+".into(), edge)),
            None => std::mem::take(&mut self.levels).into_iter().next(),
        }
    }
}

impl<E> Edge<E> {
    /// Makes a node after the levels that the edge has in common with `filter`; returns the rest of the filter there.
    fn part<'a>(&mut self, filter: Option<&'a str>) -> Option<&'a str> {
        let (own, filter) = after_common(self.rest.as_deref(), filter);
        let Some(own) = own else { return filter };
        let (level, rest) = split_level(own);
        let (level, rest): (Box<str>, Option<Box<str>>) = (level.into(), rest.map(Into::into));
        let whole = self.rest.as_deref().unwrap_or_default();
        // Without the slash before the rest.
        let common = whole[..whole.len() - own.len()].strip_suffix('/');
        self.rest = common.map(Into::into);
        let node = std::mem::take(&mut self.node);
        self.node.put_edge(&level, Edge { rest, node });
        filter
    }

    /// Joins the edge with the only one that follows it, if nothing ends in between.
    fn join(&mut self) {
        let Some((level, next)) = self.node.take_only_edge() else {
            return;
        };
        let parts = [self.rest.as_deref(), Some(&*level), next.rest.as_deref()];
        let parts: Vec<&str> = parts.into_iter().flatten().collect();
        self.rest = Some(parts.join("/").into());
        self.node = next.node;
    }
}

/// What is left of both after the levels that they have in common. A `#` is no level of an edge.
fn after_common<'a, 'b>(
    mut own: Option<&'a str>,
    mut filter: Option<&'b str>,
) -> (Option<&'a str>, Option<&'b str>) {
    while let (Some(here), Some(there)) = (own, filter) {
        let ((level, rest), (wanted, wanted_rest)) = (split_level(here), split_level(there));
        if level != wanted {
            break;
        }
        (own, filter) = (rest, wanted_rest);
    }
    (own, filter)
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

    /// Returns how many nodes were visited, and at least one, with as many for the bytes that were compared: a measure of
    /// the time that it took.
    pub fn for_each_match(&self, topic: &str, found: &mut impl FnMut(&Entries<E>)) -> u32 {
        let mut found = |entries: &Entries<E>| {
            found(entries);
            0
        };
        self.match_from(topic, None, u32::MAX, &mut found).0
    }

    /// Finds the filters that match a topic, from a place on, until that was this much work. Returns the work and the
    /// place to go on at; `None` if all were found. `found` returns how much work it was itself.
    ///
    /// Filters may come and go in between: those that were there all the time are found once.
    pub fn match_from(
        &self,
        topic: &str,
        from: Option<&Place>,
        work_max: u32,
        found: &mut impl FnMut(&Entries<E>) -> u32,
    ) -> (u32, Option<Place>) {
        let mut walk = Walk::new(work_max, found);
        if from.is_none()
            && let Some(entries) = self.exact.get(topic)
        {
            walk.found(entries);
        }
        // Once, and not at each node: the levels may be long.
        let levels: Vec<&str> = topic.split('/').collect();
        // Wildcards at the first level do not match topics that begin with `$` (MQTT-4.7.2-1).
        let is_hidden = topic.starts_with('$');
        let path = from.map_or(&[][..], |place| &place.0);
        walk.descend(&self.root, &levels, path, is_hidden);
        walk.end()
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

fn entries_below<'a, E>(root: &'a mut Node<E>, filter: &str) -> &'a mut Entries<E> {
    let (mut node, mut rest) = (root, Some(filter));
    while let Some(text) = rest {
        let (level, next) = split_level(text);
        if level == "#" {
            return &mut node.below;
        }
        if node.edge_mut(level).is_some() {
            let edge = node.edge_mut(level).expect("it was just there");
            rest = edge.part(next);
            node = &mut edge.node;
        } else {
            let (levels, end) = without_multi_level(next);
            let edge = Edge {
                rest: levels.map(Into::into),
                node: Node::default(),
            };
            node = &mut node.put_edge(level, edge).node;
            rest = end;
        }
    }
    &mut node.here
}

/// The levels of a filter before a final `#`, and that.
fn without_multi_level(rest: Option<&str>) -> (Option<&str>, Option<&str>) {
    match rest {
        Some("#") => (None, rest),
        Some(text) if text.ends_with("/#") => (Some(&text[..text.len() - 2]), Some("#")),
        _ => (rest, None),
    }
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
    let Some(edge) = node.edge_mut(level) else {
        return false;
    };
    let (own, rest) = after_common(edge.rest.as_deref(), rest);
    if own.is_some() {
        return false;
    }
    let removed = match rest {
        Some(rest) => remove_below(&mut edge.node, rest, remove),
        None => remove(&mut edge.node.here),
    };
    if edge.node.is_empty() {
        node.remove_edge(level);
    } else {
        edge.join();
    }
    removed
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
