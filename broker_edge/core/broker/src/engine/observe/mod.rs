//! What operators see: counts, gauges, the log of clients and `$SYS`.

mod client_log;
pub mod connection_gauges;
mod gauges;
pub mod sys_tree;
mod turn_metrics;

use std::sync::Arc;
use std::time::Instant;

use crate::metrics::Metrics;

use client_log::ClientLog;
use connection_gauges::ConnectionGauges;
pub use gauges::Gauges;
use sys_tree::SysTree;
pub use turn_metrics::Count;
use turn_metrics::TurnMetrics;

pub struct Observe {
    metrics: Arc<Metrics>,
    turn_metrics: TurnMetrics,
    /// Counts of the connected clients.
    connection_gauges: ConnectionGauges,
    sys: SysTree,
    client_log: ClientLog,
    /// The values that the gauges have from this engine.
    told: Gauges,
    turn_at: Instant,
}

impl Observe {
    pub fn new(metrics: Arc<Metrics>, now_ms: u64) -> Self {
        Self {
            metrics,
            turn_metrics: TurnMetrics::default(),
            connection_gauges: ConnectionGauges::default(),
            sys: SysTree::new(now_ms),
            client_log: ClientLog::default(),
            told: Gauges::default(),
            turn_at: Instant::now(),
        }
    }

    pub fn begin_turn(&mut self) {
        self.turn_at = Instant::now();
    }

    /// When the turn began.
    pub fn turn_at(&self) -> Instant {
        self.turn_at
    }

    pub fn end_turn(&self) {
        self.metrics.detail.turns.observe(self.turn_at.elapsed());
    }

    /// Brings the shared metrics up to date.
    pub fn publish(&mut self, present: Gauges) {
        self.connection_gauges.publish(&self.metrics);
        self.turn_metrics.publish(&self.metrics);
        self.tell(present);
    }

    pub fn set_draining(&mut self, is_draining: bool) {
        self.tell(Gauges {
            draining: i64::from(is_draining),
            ..self.told
        });
    }

    fn tell(&mut self, present: Gauges) {
        self.told.replace(present, &self.metrics);
    }
}

/// Other engines share the gauges.
impl Drop for Observe {
    fn drop(&mut self) {
        self.tell(Gauges::default());
        self.connection_gauges.take_back(&self.metrics);
    }
}
