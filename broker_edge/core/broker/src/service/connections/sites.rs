//! Connections by the address that they come from, and what each network holds: who holds the most gives up first.
//!
//! One host may use many addresses of its network. Networks are therefore compared first, then the addresses of one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::peer::network_of;

/// The numbers of the connections of each site. The sites of a network are side by side.
#[derive(Default)]
pub struct Sites(BTreeMap<IpAddr, BTreeSet<u64>>);

/// What the sites of one network hold.
#[derive(Clone, Copy)]
pub struct Held {
    pub network: IpAddr,
    pub connections: usize,
    /// The most connections of one of its sites.
    pub of_site: usize,
}

impl Sites {
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn insert(&mut self, site: IpAddr, number: u64) {
        self.0.entry(site).or_default().insert(number);
    }

    pub fn remove(&mut self, site: IpAddr, number: u64) {
        if let Some(numbers) = self.0.get_mut(&site) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.0.remove(&site);
            }
        }
    }

    pub fn count(&self, site: IpAddr) -> usize {
        self.0.get(&site).map_or(0, BTreeSet::len)
    }

    /// Every connection.
    pub fn all(&self) -> impl Iterator<Item = &u64> {
        self.0.values().flatten()
    }

    pub fn of_site(&self, site: IpAddr) -> impl Iterator<Item = &u64> {
        self.0.get(&site).into_iter().flatten()
    }

    /// What each network holds, in the order of their addresses.
    pub fn networks(&self) -> Vec<Held> {
        let mut all: Vec<Held> = Vec::new();
        for (site, numbers) in &self.0 {
            let network = network_of(*site);
            match all.last_mut().filter(|held| held.network == network) {
                Some(held) => {
                    held.connections += numbers.len();
                    held.of_site = held.of_site.max(numbers.len());
                }
                None => all.push(Held {
                    network,
                    connections: numbers.len(),
                    of_site: numbers.len(),
                }),
            }
        }
        all
    }

    /// The connections of those sites of these networks that hold the most there. The networks are in the order of
    /// [`Sites::networks`].
    pub fn of_largest_in<'a>(&'a self, networks: &[Held]) -> impl Iterator<Item = &'a u64> {
        let is_largest = |site: IpAddr, count: usize| {
            let found = networks.binary_search_by_key(&network_of(site), |held| held.network);
            found.is_ok_and(|at| networks[at].of_site == count)
        };
        let largest = self
            .0
            .iter()
            .filter(move |(site, numbers)| is_largest(**site, numbers.len()));
        largest.flat_map(|(_, numbers)| numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sites_of_a_network_are_counted_together_and_its_largest_are_found() {
        let mut sites = Sites::default();
        let texts = [
            "192.0.2.1",
            "192.0.2.9",
            "192.0.3.1",
            "2001:db8:1:1::",
            "2001:db8:1:2::",
        ];
        for (text, number) in texts.iter().zip(0..) {
            sites.insert(text.parse().expect("an address"), number);
        }
        sites.insert("192.0.2.9".parse().expect("an address"), 5);
        let networks = sites.networks();
        let held: Vec<(String, usize, usize)> = networks
            .iter()
            .map(|held| (held.network.to_string(), held.connections, held.of_site))
            .collect();
        let expected = [
            ("192.0.2.0", 3, 2),
            ("192.0.3.0", 1, 1),
            ("2001:db8:1::", 2, 1),
        ];
        assert_eq!(
            held,
            expected.map(|(text, all, one)| (text.to_owned(), all, one))
        );
        let largest: Vec<u64> = sites.of_largest_in(&networks).copied().collect();
        assert_eq!(largest, [1, 5, 2, 3, 4]);
        let largest: Vec<u64> = sites.of_largest_in(&networks[..1]).copied().collect();
        assert_eq!(largest, [1, 5]);
    }
}
