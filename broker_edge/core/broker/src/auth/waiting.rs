//! The queue of credential checks, divided so that a flood only fills its own part.
//!
//! A source is a listener and a client address. Each listener has an eighth of the slots reserved; the others go to the
//! first to come. When none are left, the source with the most slots gives up its newest one, if that makes the two
//! sources more equal. Listeners are served in turn, and so are the sources of each: a source with one check waits for
//! at most one check of each other source.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use crate::peer::site_of;
use crate::words::words;

words! {
    /// The listener of a request, by its name in the configuration.
    pub enum ListenerKind {
        /// MQTT, including WebSocket.
        Mqtt = "mqtt",
        Flight = "flight",
        Admin = "admin",
    }
}

const KINDS: usize = ListenerKind::ALL.len();
/// One in this many slots is reserved for each listener.
const RESERVED_PART: usize = 8;

/// The source of a request, as far as it is known before the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Source {
    kind: ListenerKind,
    site: IpAddr,
}

impl Source {
    pub fn new(kind: ListenerKind, address: IpAddr) -> Source {
        let site = site_of(address);
        Source { kind, site }
    }
}

/// The part of one listener.
#[derive(Debug)]
struct Part<T> {
    waiting: usize,
    by_site: HashMap<IpAddr, VecDeque<T>>,
    /// Sites with waiting checks, in the order of service.
    turns: VecDeque<IpAddr>,
}

impl<T> Default for Part<T> {
    fn default() -> Self {
        Part {
            waiting: 0,
            by_site: HashMap::new(),
            turns: VecDeque::new(),
        }
    }
}

impl<T> Part<T> {
    fn held_by(&self, site: IpAddr) -> usize {
        self.by_site.get(&site).map_or(0, VecDeque::len)
    }

    fn push(&mut self, site: IpAddr, job: T) {
        let jobs = self.by_site.entry(site).or_default();
        if jobs.is_empty() {
            self.turns.push_back(site);
        }
        jobs.push_back(job);
        self.waiting += 1;
    }

    fn pop(&mut self) -> Option<T> {
        let site = self.turns.pop_front()?;
        let jobs = self.by_site.get_mut(&site)?;
        let job = jobs.pop_front()?;
        self.waiting -= 1;
        if jobs.is_empty() {
            self.by_site.remove(&site);
        } else {
            self.turns.push_back(site);
        }
        Some(job)
    }

    /// Removes the newest check of a site.
    fn give_up(&mut self, site: IpAddr) -> Option<T> {
        let jobs = self.by_site.get_mut(&site)?;
        let job = jobs.pop_back()?;
        self.waiting -= 1;
        if jobs.is_empty() {
            self.by_site.remove(&site);
            self.turns.retain(|turn| *turn != site);
        }
        Some(job)
    }

    /// The site with the most slots.
    fn greediest(&self) -> Option<(IpAddr, usize)> {
        let sites = self.by_site.iter().map(|(site, jobs)| (*site, jobs.len()));
        sites.max_by_key(|(_, held)| *held)
    }
}

/// The result of queueing a check.
#[derive(Debug, PartialEq, Eq)]
pub enum Queued<T> {
    Waits,
    /// Queued in place of this one.
    Instead(T),
    /// No slot was free.
    Full(T),
}

#[derive(Debug)]
pub struct Waiting<T> {
    max: usize,
    parts: [Part<T>; KINDS],
    /// The part to serve next.
    next: usize,
}

impl<T> Waiting<T> {
    pub fn new(max: usize) -> Self {
        Waiting {
            max,
            parts: std::array::from_fn(|_| Part::default()),
            next: 0,
        }
    }

    pub fn push(&mut self, source: Source, job: T) -> Queued<T> {
        let (kind, site) = (source.kind as usize, source.site);
        if self.has_place(kind) {
            self.parts[kind].push(site, job);
            return Queued::Waits;
        }
        let held = self.parts[kind].held_by(site);
        let Some((from, greedy, most)) = self.greediest(kind) else {
            return Queued::Full(job);
        };
        // Otherwise two sources with equal numbers would keep replacing each other.
        if most <= held + 1 {
            return Queued::Full(job);
        }
        match self.parts[from].give_up(greedy) {
            Some(other) => {
                self.parts[kind].push(site, job);
                Queued::Instead(other)
            }
            None => Queued::Full(job),
        }
    }

    /// Takes the next check to serve.
    pub fn pop(&mut self) -> Option<T> {
        for _ in 0..self.parts.len() {
            let part = &mut self.parts[self.next];
            self.next = (self.next + 1) % KINDS;
            if let Some(job) = part.pop() {
                return Some(job);
            }
        }
        None
    }

    fn reserved(&self) -> usize {
        self.max / RESERVED_PART
    }

    fn has_place(&self, kind: usize) -> bool {
        let reserved = self.reserved();
        if self.parts[kind].waiting < reserved {
            return true;
        }
        let taken: usize = (0..KINDS)
            .map(|at| {
                let waiting = self.parts[at].waiting;
                if at == kind {
                    waiting
                } else {
                    waiting.max(reserved)
                }
            })
            .sum();
        taken < self.max
    }

    /// The source with the most slots, among those that `kind` may take a slot from.
    fn greediest(&self, kind: usize) -> Option<(usize, IpAddr, usize)> {
        let reserved = self.reserved();
        (0..KINDS)
            .filter(|at| *at == kind || self.parts[*at].waiting > reserved)
            .filter_map(|at| {
                let (site, held) = self.parts[at].greediest()?;
                Some((at, site, held))
            })
            .max_by_key(|(_, _, held)| *held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(kind: ListenerKind, site: u8) -> Source {
        Source::new(kind, IpAddr::from([192, 0, 2, site]))
    }

    fn fill(waiting: &mut Waiting<u32>, source: Source, count: u32) {
        for job in 0..count {
            let _ = waiting.push(source, job);
        }
    }

    #[test]
    fn a_flood_of_one_source_leaves_places_to_every_other_address_and_listener() {
        let mut waiting = Waiting::new(64);
        fill(&mut waiting, source(ListenerKind::Flight, 1), 5000);
        for kind in ListenerKind::ALL.iter().copied() {
            for site in 2..10 {
                let queued = waiting.push(source(kind, site), 7);
                assert!(!matches!(queued, Queued::Full(_)), "{kind:?} {site}");
            }
        }
        assert!(matches!(
            waiting.push(source(ListenerKind::Flight, 1), 9),
            Queued::Full(9)
        ));
    }

    #[test]
    fn a_listener_keeps_its_own_places_against_floods_of_many_addresses() {
        let mut waiting = Waiting::new(64);
        for site in 0..=255 {
            let _ = waiting.push(source(ListenerKind::Mqtt, site), 0);
        }
        for kind in [ListenerKind::Flight, ListenerKind::Admin] {
            for site in 0..8 {
                assert_eq!(waiting.push(source(kind, site), 1), Queued::Waits);
            }
            assert_eq!(waiting.push(source(kind, 9), 1), Queued::Full(1));
        }
        let total: usize = waiting.parts.iter().map(|part| part.waiting).sum();
        assert_eq!(total, 64);
    }

    #[test]
    fn sources_and_listeners_are_served_in_turn() {
        let mut waiting = Waiting::new(64);
        fill(&mut waiting, source(ListenerKind::Mqtt, 1), 20);
        assert_eq!(
            waiting.push(source(ListenerKind::Mqtt, 2), 100),
            Queued::Waits
        );
        assert_eq!(
            waiting.push(source(ListenerKind::Admin, 1), 200),
            Queued::Waits
        );
        let served: Vec<u32> = std::iter::from_fn(|| waiting.pop()).collect();
        assert_eq!(served[..4], [0, 200, 100, 1]);
        assert_eq!(served.len(), 22);
    }

    #[test]
    fn an_ipv6_network_is_one_source() {
        let ip = |text: &str| Source::new(ListenerKind::Mqtt, text.parse().unwrap());
        assert_eq!(ip("2001:db8:1:2::1"), ip("2001:db8:1:2:ffff::9"));
        assert_ne!(ip("2001:db8:1:2::1"), ip("2001:db8:1:3::1"));
    }

    #[test]
    fn one_place_is_given_to_whoever_comes_first() {
        let mut waiting = Waiting::new(1);
        assert_eq!(
            waiting.push(source(ListenerKind::Mqtt, 1), 1),
            Queued::Waits
        );
        assert_eq!(
            waiting.push(source(ListenerKind::Flight, 2), 2),
            Queued::Full(2)
        );
        assert_eq!(waiting.pop(), Some(1));
        assert_eq!(waiting.pop(), None);
        assert_eq!(
            waiting.push(source(ListenerKind::Flight, 2), 2),
            Queued::Waits
        );
    }
}
