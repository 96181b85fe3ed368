//! Limits new connections: per second, and per address.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::engine::ConnKey;
use crate::peer::site_of;

/// A token bucket that holds the connections of one second.
#[derive(Debug)]
pub struct Rate {
    per_second: u64,
    /// Thousandths of a connection.
    tokens: u64,
    filled_ms: u64,
}

impl Rate {
    pub fn new(per_second: u32) -> Self {
        let per_second = u64::from(per_second);
        Self {
            per_second,
            tokens: per_second * 1000,
            filled_ms: 0,
        }
    }

    /// Takes the token of one connection, or returns the milliseconds until one is available.
    pub fn take(&mut self, now_ms: u64) -> Result<(), u64> {
        let elapsed_ms = now_ms.saturating_sub(self.filled_ms).min(1000);
        self.filled_ms = now_ms;
        let full = self.per_second * 1000;
        self.tokens = full.min(self.tokens + elapsed_ms * self.per_second);
        match self.tokens.checked_sub(1000) {
            Some(left) => {
                self.tokens = left;
                Ok(())
            }
            None => Err((1000 - self.tokens).div_ceil(self.per_second)),
        }
    }

    /// Returns the last token, because no connection was accepted.
    pub fn give_back(&mut self) {
        self.tokens += 1000;
    }
}

/// Connections by address, tracked only if there is a limit.
#[derive(Debug)]
pub struct PerAddress {
    max: Option<u32>,
    counts: HashMap<IpAddr, u32>,
    /// The addresses of open connections.
    of: HashMap<ConnKey, IpAddr>,
}

impl PerAddress {
    pub fn new(max: Option<u32>) -> Self {
        Self {
            max,
            counts: HashMap::new(),
            of: HashMap::new(),
        }
    }

    /// Counts a connection from `address`; returns false without counting when the limit is reached.
    pub fn enter(&mut self, address: IpAddr) -> bool {
        let Some(max) = self.max else {
            return true;
        };
        let count = self.counts.entry(site_of(address)).or_default();
        if *count >= max {
            return false;
        }
        *count += 1;
        true
    }

    /// Uncounts a connection that closed before it got a key.
    pub fn leave(&mut self, address: IpAddr) {
        if self.max.is_none() {
            return;
        }
        let site = site_of(address);
        if let Some(count) = self.counts.get_mut(&site) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&site);
            }
        }
    }

    /// Assigns the key of a counted connection.
    pub fn opened(&mut self, key: ConnKey, address: IpAddr) {
        if self.max.is_some() {
            self.of.insert(key, address);
        }
    }

    pub fn closed(&mut self, key: ConnKey) {
        if self.max.is_some()
            && let Some(address) = self.of.remove(&key)
        {
            self.leave(address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_brings_as_many_connections_as_the_rate_and_no_more() {
        let mut rate = Rate::new(100);
        let taken =
            |rate: &mut Rate, now_ms| (0..1000).filter(|_| rate.take(now_ms).is_ok()).count();
        assert_eq!(taken(&mut rate, 5), 100, "a burst of a second");
        assert_eq!(rate.take(5), Err(10), "then each has to wait for its turn");
        assert_eq!(taken(&mut rate, 14), 0);
        assert_eq!(taken(&mut rate, 15), 1);
        assert_eq!(taken(&mut rate, 515), 50);
        assert_eq!(
            taken(&mut rate, 100_000),
            100,
            "an idle hour saves nothing up"
        );
    }

    #[test]
    fn an_address_has_its_own_limit_and_gets_back_what_it_leaves() {
        let mut per_address = PerAddress::new(Some(2));
        let (one, other) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        assert!(per_address.enter(one) && per_address.enter(one));
        assert!(!per_address.enter(one));
        assert!(per_address.enter(other));
        let key = ConnKey::from_bits(3);
        per_address.opened(key, one);
        per_address.closed(key);
        per_address.closed(key);
        assert!(per_address.enter(one) && !per_address.enter(one));
    }

    #[test]
    fn addresses_of_one_network_of_ipv6_count_together() {
        let mut per_address = PerAddress::new(Some(1));
        assert!(per_address.enter("2001:db8:1:2::1".parse().unwrap()));
        assert!(!per_address.enter("2001:db8:1:2:ffff::9".parse().unwrap()));
        assert!(per_address.enter("2001:db8:1:3::1".parse().unwrap()));
        assert!(per_address.enter("192.0.2.1".parse().unwrap()));
        assert!(!per_address.enter("::ffff:192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn without_a_limit_nothing_is_kept() {
        let mut per_address = PerAddress::new(None);
        let address = "192.0.2.1".parse().unwrap();
        assert!((0..100).all(|_| per_address.enter(address)));
        per_address.opened(ConnKey::from_bits(1), address);
        assert!(per_address.counts.is_empty() && per_address.of.is_empty());
    }
}
