//! Traffic totals of each connection, and the rates of active connections.
//!
//! Counters are updated once per read, per write and per run of deliveries, never per packet. Rates are kept only for
//! connections with messages in the last seconds, so an idle one costs only its counters.

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::engine::containers::slab::{Marks, Slab};
use crate::engine::observe::{Count, Observe};
use crate::engine::session::connection::{Phase, Traffic};
use crate::engine::{ConnKey, Connection};

use super::Clients;

/// Per second, over the last seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Rates {
    pub received_bytes: f64,
    pub sent_bytes: f64,
    pub received_messages: f64,
    pub sent_messages: f64,
}

/// The rates of a connection with recent traffic.
#[derive(Debug)]
struct ActiveRate {
    seen: Traffic,
    rates: Rates,
}

/// The connections with recent traffic. Each is listed at most once, and leaves after some idle seconds.
#[derive(Debug, Default)]
pub struct ActiveRates {
    active_rates: FxHashMap<ConnKey, ActiveRate>,
    looked_at_ms: u64,
}

/// The mark of a connection in this list.
const ACTIVE: u8 = 2;
/// A rate below this counts as zero.
const SILENCE: f64 = 0.05;
/// Weight of the last second in a rate; the rest is the previous rate.
const WEIGHT: f64 = 0.5;

impl ActiveRates {
    /// Counts bytes and messages of a connection.
    #[inline]
    pub fn count(
        &mut self,
        key: ConnKey,
        (conn, marks): (&mut Connection, &mut Marks),
        add: impl FnOnce(&mut Traffic),
    ) {
        let seen = conn.traffic;
        add(&mut conn.traffic);
        if conn.traffic.has_messages() && conn.phase == Phase::Open && marks.set(ACTIVE) {
            let rates = Rates::default();
            self.active_rates.insert(key, ActiveRate { seen, rates });
        }
    }

    fn rates(&self, key: ConnKey) -> Rates {
        self.active_rates
            .get(&key)
            .map_or_else(Rates::default, |mover| mover.rates)
    }

    /// Computes the rates from the traffic since the last call.
    fn look(&mut self, conns: &mut Slab<Connection>, now_ms: u64) {
        let seconds = now_ms.saturating_sub(self.looked_at_ms) as f64 / 1000.0;
        if seconds <= 0.0 {
            return;
        }
        self.looked_at_ms = now_ms;
        self.active_rates.retain(|key, mover| {
            let Some((conn, marks)) = conns.get_marked(*key) else {
                return false;
            };
            mover.rates.take(&mover.seen, &conn.traffic, seconds);
            let is_still = mover.seen == conn.traffic && mover.rates.is_silent();
            mover.seen = conn.traffic;
            if is_still {
                marks.clear(ACTIVE);
            }
            !is_still
        });
        if self.active_rates.is_empty() {
            self.active_rates.shrink_to_fit();
        }
    }
}

impl Clients {
    /// Counts bytes received from a connection.
    pub fn count_received(&mut self, key: ConnKey, bytes: usize, observe: &mut Observe) {
        observe.count(Count::BytesReceived, bytes as u64);
        if let Some(entry) = self.conns.get_marked(key) {
            let add = |traffic: &mut Traffic| traffic.received_bytes += bytes as u64;
            self.active_rates.count(key, entry, add);
        }
    }

    /// Counts publishes received from a connection.
    pub fn count_messages(&mut self, key: ConnKey, messages: u64) {
        if let Some(entry) = self.conns.get_marked(key) {
            let add = |traffic: &mut Traffic| traffic.received_messages += messages;
            self.active_rates.count(key, entry, add);
        }
    }

    /// The rates of a connection.
    pub fn rates(&self, key: ConnKey) -> Rates {
        self.active_rates.rates(key)
    }

    /// Computes the rates from the traffic since the last call.
    pub fn look_at_rates(&mut self, now_ms: u64) {
        self.active_rates.look(&mut self.conns, now_ms);
    }
}

impl Rates {
    fn take(&mut self, before: &Traffic, after: &Traffic, seconds: f64) {
        let blend = |rate: &mut f64, before: u64, after: u64| {
            let now = after.saturating_sub(before) as f64 / seconds;
            *rate += WEIGHT * (now - *rate);
        };
        blend(
            &mut self.received_bytes,
            before.received_bytes,
            after.received_bytes,
        );
        blend(&mut self.sent_bytes, before.sent_bytes, after.sent_bytes);
        blend(
            &mut self.received_messages,
            before.received_messages,
            after.received_messages,
        );
        blend(
            &mut self.sent_messages,
            before.sent_messages,
            after.sent_messages,
        );
    }

    fn is_silent(&self) -> bool {
        let rates = [
            self.received_bytes,
            self.sent_bytes,
            self.received_messages,
            self.sent_messages,
        ];
        rates.into_iter().all(|rate| rate < SILENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Peer;

    #[test]
    fn a_rate_follows_what_moves_and_a_still_connection_is_forgotten() {
        assert!(size_of::<Traffic>() <= 32, "what an idle connection pays");
        let mut conns = Slab::default();
        let key = conns.insert(Connection::new(Peer::nobody(), 0));
        let mut active_rates = ActiveRates::default();
        let add = |traffic: &mut Traffic| {
            traffic.received_bytes += 1000;
            traffic.received_messages += 10;
        };
        if let Some(conn) = conns.get_mut(key) {
            conn.phase = Phase::Open;
        }
        for second in 1..=10 {
            active_rates.count(key, conns.get_marked(key).expect("it is open"), add);
            active_rates.look(&mut conns, second * 1000);
        }
        let rates = active_rates.rates(key);
        assert!((rates.received_bytes - 1000.0).abs() < 2.0, "{rates:?}");
        assert!((rates.received_messages - 10.0).abs() < 0.1, "{rates:?}");
        for second in 11..=40 {
            active_rates.look(&mut conns, second * 1000);
        }
        assert!(active_rates.active_rates.is_empty());
        assert_eq!(active_rates.rates(key), Rates::default());
        active_rates.count(key, conns.get_marked(key).expect("it is open"), add);
        assert_eq!(active_rates.active_rates.len(), 1, "it counts again");
    }
}
