//! The incomplete input of connections before their CONNECT, by the network and address of the client: who holds the
//! most gives up first.
//!
//! One host may use many addresses of its network. Networks are therefore compared first, then the addresses of one.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use crate::peer::{network_of, site_of};

use super::arrivals::ArrivalKey;

/// What a holder counts at least: so one that asks for much is never paid for by thousands that hold next to nothing.
const CHARGE_MIN: usize = 64;

/// Who holds something, and since when.
#[derive(Debug, Clone, Copy)]
pub struct Holder {
    pub key: ArrivalKey,
    pub address: IpAddr,
    pub opened_ms: u64,
}

/// Every change and every search takes a logarithm of the number of holders.
#[derive(Debug, Default)]
pub struct HeldBytes {
    total: usize,
    networks: HashMap<IpAddr, usize>,
    sites: HashMap<IpAddr, usize>,
    /// The networks, by what they hold.
    networks_by_bytes: BTreeSet<(usize, IpAddr)>,
    /// The sites, by their network and what they hold.
    sites_by_bytes: BTreeSet<(IpAddr, usize, IpAddr)>,
    /// The holders, by their site and age.
    by_age: BTreeSet<(IpAddr, u64, ArrivalKey)>,
}

impl HeldBytes {
    pub fn total(&self) -> usize {
        self.total
    }

    /// How many hold something.
    pub fn len(&self) -> usize {
        self.by_age.len()
    }

    /// Counts what an arrival holds, of which nothing is counted yet.
    pub fn hold(&mut self, holder: Holder, bytes: usize) {
        if bytes > 0 {
            let site = site_of(holder.address);
            self.by_age.insert((site, holder.opened_ms, holder.key));
            let charge = bytes.max(CHARGE_MIN);
            self.total += charge;
            self.change(site, |held| held + charge);
        }
    }

    /// Uncounts all of what an arrival holds.
    pub fn release(&mut self, holder: Holder, bytes: usize) {
        if bytes > 0 {
            let site = site_of(holder.address);
            self.by_age.remove(&(site, holder.opened_ms, holder.key));
            let charge = bytes.max(CHARGE_MIN);
            self.total -= charge;
            self.change(site, |held| held - charge);
        }
    }

    fn change(&mut self, site: IpAddr, change: impl Fn(usize) -> usize) {
        let network = network_of(site);
        let (before, after) = replace(&mut self.networks, network, &change);
        self.networks_by_bytes.remove(&(before, network));
        if after > 0 {
            self.networks_by_bytes.insert((after, network));
        }
        let (before, after) = replace(&mut self.sites, site, &change);
        self.sites_by_bytes.remove(&(network, before, site));
        if after > 0 {
            self.sites_by_bytes.insert((network, after, site));
        }
    }

    /// The oldest holder of the site that holds the most in the network that does.
    pub fn greediest(&self) -> Option<ArrivalKey> {
        let (_, network) = self.networks_by_bytes.last()?;
        let sites = (*network, 0, *network)..(*network, usize::MAX, *network);
        let (_, _, site) = self.sites_by_bytes.range(sites).next_back()?;
        let holders = (*site, 0, ArrivalKey::from_bits(0))..;
        let (_, _, key) = self.by_age.range(holders).next()?;
        Some(*key)
    }
}

/// Replaces a count and returns it before and after.
fn replace(
    counts: &mut HashMap<IpAddr, usize>,
    of: IpAddr,
    change: impl Fn(usize) -> usize,
) -> (usize, usize) {
    let before = counts.get(&of).copied().unwrap_or(0);
    let after = change(before);
    if after > 0 {
        counts.insert(of, after);
    } else {
        counts.remove(&of);
    }
    (before, after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(address: &str, index: u64) -> Holder {
        Holder {
            key: ArrivalKey::from_bits(index),
            address: address.parse().expect("an address"),
            opened_ms: index,
        }
    }

    /// Holds bytes for each, and returns who gives up, one after the other.
    fn order(holders: &[(&str, usize)]) -> Vec<usize> {
        let mut held = HeldBytes::default();
        for ((address, bytes), index) in holders.iter().zip(0..) {
            held.hold(holder(address, index), *bytes);
        }
        let mut order = Vec::new();
        while let Some(key) = held.greediest() {
            let (address, bytes) = holders[key.index()];
            held.release(holder(address, key.index() as u64), bytes);
            order.push(key.index());
        }
        let HeldBytes {
            total,
            networks,
            sites,
            networks_by_bytes,
            sites_by_bytes,
            by_age,
        } = held;
        assert_eq!(
            (total, by_age.len(), networks.len(), sites.len()),
            (0, 0, 0, 0)
        );
        assert_eq!((networks_by_bytes.len(), sites_by_bytes.len()), (0, 0));
        order
    }

    #[test]
    fn the_oldest_of_the_greediest_address_of_the_greediest_network_gives_up() {
        let one_network = [("192.0.2.1", 600), ("192.0.2.1", 500), ("192.0.2.9", 900)];
        assert_eq!(order(&one_network), [0, 2, 1]);
        let two_networks = [("192.0.2.1", 600), ("192.0.2.2", 600), ("192.0.3.1", 1000)];
        assert_eq!(order(&two_networks), [1, 2, 0]);
    }

    #[test]
    fn the_addresses_of_an_ipv6_network_count_together() {
        let holders = [
            ("2001:db8:1:1::1", 300),
            ("2001:db8:1:1::2", 300),
            ("2001:db8:1:2::1", 400),
            ("2001:db8:2::1", 900),
        ];
        assert_eq!(order(&holders), [0, 3, 2, 1]);
    }

    #[test]
    fn those_that_hold_next_to_nothing_count_enough_that_few_have_to_give_up() {
        let mut held = HeldBytes::default();
        for index in 0..10 {
            held.hold(holder("192.0.2.1", index), 1);
        }
        held.hold(holder("192.0.2.1", 10), 0);
        assert_eq!(held.total(), 10 * CHARGE_MIN);
    }
}
