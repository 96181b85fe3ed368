//! Matching a topic with the tree of filters, which may stop and go on later.
//!
//! A node is reached by taking each level of the topic by its name or by `+`. These choices name a place in the tree
//! whatever filters come and go meanwhile, and are the order of the walk: by name first.

use super::entries::Entries;
use super::index::{Edge, Node};

/// Bytes of an edge: comparing this many with the levels of a topic costs as much as visiting a node.
const NODE_BYTES: usize = 32;

/// Where a walk goes on: for each level on the way whether it is taken by `+`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place(pub(super) Vec<bool>);

/// One walk, or a part of it.
pub(super) struct Walk<'a, F> {
    found: &'a mut F,
    work: u32,
    work_max: u32,
    has_visited: bool,
    /// Where it stopped, in reverse. Only written then.
    stopped_at: Option<Vec<bool>>,
}

impl<'a, F> Walk<'a, F> {
    pub fn new(work_max: u32, found: &'a mut F) -> Self {
        Self {
            found,
            work: 0,
            work_max,
            has_visited: false,
            stopped_at: None,
        }
    }

    /// The work of the walk, and where it stopped.
    pub fn end(self) -> (u32, Option<Place>) {
        let place = self.stopped_at.map(|mut path| {
            path.reverse();
            Place(path)
        });
        (self.work.max(1), place)
    }

    pub fn found<E>(&mut self, entries: &Entries<E>)
    where
        F: FnMut(&Entries<E>) -> u32,
    {
        self.work = self.work.saturating_add((self.found)(entries));
    }

    /// Visits a node and those below it; `rest` are the levels of the topic there. Returns whether the walk goes on.
    fn visit<E>(&mut self, node: &Node<E>, rest: &[&str]) -> bool
    where
        F: FnMut(&Entries<E>) -> u32,
    {
        // One at least, or a walk would never go on.
        if self.work >= self.work_max && self.has_visited {
            self.stopped_at = Some(Vec::new());
            return false;
        }
        self.has_visited = true;
        self.work = self.work.saturating_add(1);
        self.found(&node.below);
        let Some((level, next)) = rest.split_first() else {
            self.found(&node.here);
            return true;
        };
        if let Some(edge) = node.named(level)
            && !self.follow(edge, next)
        {
            return self.stop_below(edge, false);
        }
        if let Some(edge) = node.any.as_deref()
            && !self.follow(edge, next)
        {
            return self.stop_below(edge, true);
        }
        true
    }

    /// Visits the node at the end of an edge if the levels on the way match.
    fn follow<E>(&mut self, edge: &Edge<E>, rest: &[&str]) -> bool
    where
        F: FnMut(&Entries<E>) -> u32,
    {
        match self.pass(edge, rest) {
            Some(rest) => self.visit(&edge.node, rest),
            None => true,
        }
    }

    /// The levels of the topic after an edge, if those on the way match.
    fn pass<'t, 's, E>(&mut self, edge: &Edge<E>, rest: &'t [&'s str]) -> Option<&'t [&'s str]> {
        let Some(own) = edge.rest.as_deref() else {
            return Some(rest);
        };
        let (compared, after) = after_levels(own.as_bytes(), rest);
        let passed = u32::try_from(compared / NODE_BYTES).unwrap_or(u32::MAX);
        let passed = passed.saturating_add(u32::from(after.is_none()));
        self.work = self.work.saturating_add(passed);
        after
    }

    /// Notes by which edge the walk came to where it stopped.
    fn stop_below<E>(&mut self, edge: &Edge<E>, is_any: bool) -> bool {
        let path = self.stopped_at.get_or_insert_default();
        let rest = edge.rest.as_deref();
        path.extend(choices(rest).rev());
        path.push(is_any);
        false
    }

    /// Goes on at a place below a node. `is_hidden` if `+` does not match the level there.
    pub fn descend<E>(
        &mut self,
        node: &Node<E>,
        rest: &[&str],
        path: &[bool],
        is_hidden: bool,
    ) -> bool
    where
        F: FnMut(&Entries<E>) -> u32,
    {
        let Some((level, next)) = rest.split_first() else {
            return true;
        };
        if path.is_empty() && !is_hidden {
            return self.visit(node, rest);
        }
        if path.first() != Some(&true)
            && let Some(edge) = node.named(level)
            && !self.follow_to(edge, next, path.get(1..).unwrap_or_default())
        {
            return self.stop_below(edge, false);
        }
        let any = node.any.as_deref().filter(|_| !is_hidden);
        if let Some(edge) = any {
            let goes_on = match path {
                [true, path @ ..] => self.follow_to(edge, next, path),
                _ => self.follow(edge, next),
            };
            return goes_on || self.stop_below(edge, true);
        }
        true
    }

    /// Goes on at a place behind the first level of an edge, which may have been parted or joined since.
    fn follow_to<E>(&mut self, edge: &Edge<E>, rest: &[&str], path: &[bool]) -> bool
    where
        F: FnMut(&Entries<E>) -> u32,
    {
        let Some(rest) = self.pass(edge, rest) else {
            return true;
        };
        let mut path = path;
        for choice in choices(edge.rest.as_deref()) {
            match path {
                [] => break,
                [place, after @ ..] if *place == choice => path = after,
                // All of the edge was visited.
                [true, ..] => return true,
                [false, ..] => {
                    path = &[];
                    break;
                }
            }
        }
        if path.is_empty() {
            self.visit(&edge.node, rest)
        } else {
            self.descend(&edge.node, rest, path, false)
        }
    }
}

/// For each level after the first one of an edge whether it is a `+`.
fn choices(rest: Option<&str>) -> impl DoubleEndedIterator<Item = bool> + '_ {
    rest.into_iter()
        .flat_map(|rest| rest.split('/'))
        .map(|level| level == "+")
}

/// How many bytes of an edge were compared with the levels of a topic, and which levels follow if they match.
fn after_levels<'a, 'b>(own: &[u8], mut levels: &'a [&'b str]) -> (usize, Option<&'a [&'b str]>) {
    let mut at = 0;
    while let Some((name, after)) = levels.split_first() {
        // A `+` is a level of its own, because a filter with another one is not valid.
        if own.get(at) == Some(&b'+') {
            at += 1;
        } else if own[at..].starts_with(name.as_bytes()) {
            at += name.len();
        } else {
            return (at, None);
        }
        levels = after;
        match own.get(at) {
            None => return (at, Some(levels)),
            Some(b'/') => at += 1,
            Some(_) => return (at, None),
        }
    }
    (at, None)
}

#[cfg(test)]
#[path = "walk_tests.rs"]
mod tests;
