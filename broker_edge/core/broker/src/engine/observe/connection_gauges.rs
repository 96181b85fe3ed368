//! Number of connected clients by transport and version, and the highest number connected at once.

use headwater_mqtt::Version;

use crate::metrics::Metrics;

use super::{Count, Observe};

/// Updated when a client is admitted and when its connection ends. There are few kinds.
#[derive(Debug, Default)]
pub struct ConnectionGauges {
    kinds: Vec<Kind>,
    connected: usize,
    connected_max: usize,
    changed: bool,
}

#[derive(Debug)]
struct Kind {
    transport: &'static str,
    version: Version,
    connected: i64,
    /// The part of the gauge that is of this engine.
    told: i64,
}

impl ConnectionGauges {
    fn add(&mut self, transport: &'static str, version: Version, count: i64) {
        self.changed = true;
        let same = |kind: &&mut Kind| kind.transport == transport && kind.version == version;
        match self.kinds.iter_mut().find(same) {
            Some(kind) => kind.connected += count,
            None => self.kinds.push(Kind {
                transport,
                version,
                connected: count,
                told: 0,
            }),
        }
    }

    /// Adds what has changed to the gauges, which engines share.
    pub fn publish(&mut self, metrics: &Metrics) {
        if std::mem::take(&mut self.changed) {
            for kind in &mut self.kinds {
                let more = kind.connected - std::mem::replace(&mut kind.told, kind.connected);
                let version = name_of(kind.version);
                metrics.detail.add_clients(kind.transport, version, more);
            }
        }
    }

    /// The engine is gone.
    pub fn take_back(&mut self, metrics: &Metrics) {
        for kind in &mut self.kinds {
            kind.connected = 0;
        }
        self.changed = true;
        self.publish(metrics);
    }
}

impl Observe {
    /// A client was admitted.
    pub fn enter(&mut self, transport: &'static str, version: Version) {
        self.count(Count::ClientsAccepted, 1);
        let gauges = &mut self.connection_gauges;
        gauges.connected += 1;
        gauges.connected_max = gauges.connected_max.max(gauges.connected);
        gauges.add(transport, version, 1);
    }

    /// The connection of an admitted client has ended.
    pub fn leave(&mut self, transport: &'static str, version: Version) {
        self.connection_gauges.connected -= 1;
        self.connection_gauges.add(transport, version, -1);
    }

    /// Number of connected clients.
    pub fn connected(&self) -> usize {
        self.connection_gauges.connected
    }

    /// The highest number of clients connected at once.
    pub fn connected_max(&self) -> usize {
        self.connection_gauges.connected_max
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
