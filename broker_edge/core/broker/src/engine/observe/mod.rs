//! What operators see: counts, gauges, rates, the log of clients and `$SYS`.

mod client_log;
pub mod connection_gauges;
pub mod rates;
pub mod turn_metrics;

use std::time::Instant;

use super::operate::sys::SysTree;

use client_log::ClientLog;
use connection_gauges::ConnectionGauges;
use rates::ActiveRates;
use turn_metrics::TurnMetrics;

pub struct Observe {
    pub(super) turn_metrics: TurnMetrics,
    /// Counts of the connected clients.
    pub(super) connection_gauges: ConnectionGauges,
    /// Rates of the connections with recent traffic.
    pub(super) active_rates: ActiveRates,
    pub(super) client_log: ClientLog,
    pub(super) turn_at: Instant,
    pub(super) sys: SysTree,
}

impl Default for Observe {
    fn default() -> Self {
        Self {
            turn_metrics: TurnMetrics::default(),
            connection_gauges: ConnectionGauges::default(),
            active_rates: ActiveRates::default(),
            client_log: ClientLog::default(),
            turn_at: Instant::now(),
            sys: SysTree::default(),
        }
    }
}
