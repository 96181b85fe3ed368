//! Number of connected clients by transport and version, and the highest number connected at once.

use headwater_mqtt::Version;

use crate::metrics::Metrics;

/// Updated when a client is admitted and when its connection ends. There are few kinds.
#[derive(Debug, Default)]
pub struct ConnectionGauges {
    kinds: Vec<(&'static str, Version, i64)>,
    connected: usize,
    connected_max: usize,
    changed: bool,
}

impl ConnectionGauges {
    pub fn enter(&mut self, transport: &'static str, version: Version) {
        self.connected += 1;
        self.connected_max = self.connected_max.max(self.connected);
        self.add(transport, version, 1);
    }

    pub fn leave(&mut self, transport: &'static str, version: Version) {
        self.connected -= 1;
        self.add(transport, version, -1);
    }

    fn add(&mut self, transport: &'static str, version: Version, count: i64) {
        self.changed = true;
        let of_kind =
            |(of, with, _): &&mut (&str, Version, i64)| *of == transport && *with == version;
        match self.kinds.iter_mut().find(of_kind) {
            Some((_, _, held)) => *held += count,
            None => self.kinds.push((transport, version, count)),
        }
    }

    pub fn connected(&self) -> usize {
        self.connected
    }

    pub fn connected_max(&self) -> usize {
        self.connected_max
    }

    /// Sets the gauges if anything changed.
    pub fn publish(&mut self, metrics: &Metrics) {
        if std::mem::take(&mut self.changed) {
            for (transport, version, count) in &self.kinds {
                let version = name_of(*version);
                metrics.detail.set_clients(transport, version, *count);
            }
        }
    }
}

/// The version as users write it.
pub fn name_of(version: Version) -> &'static str {
    match version {
        Version::V31 => "3.1",
        Version::V311 => "3.1.1",
        Version::V5 => "5",
    }
}
