//! The settings of a broker: one YAML file, environment variables and `--set` over it, defaults under it.
//!
//! Each setting is declared once, in the file of its section ([`declare`] says how). Here are the root of the tree and
//! the rules that join settings. The layers are in [`layers`], units in [`units`], what derives for people and tools in
//! [`print`](mod@print) and [`reference`](mod@reference). This module opens only the file that it is given and never
//! guesses a value that it could not read.

mod auth;
mod check;
mod cluster;
mod declare;
mod error;
mod file;
pub mod keys;
mod layers;
mod listeners;
mod log;
mod mqtt;
mod print;
mod quotas;
mod reference;
mod renamed;
mod service;
pub mod units;

use std::path::PathBuf;

pub use auth::{AuthSettings, CertificateSettings, CertificateUser, ClientIds, TokenSettings};
pub(crate) use check::is_filter;
pub use cluster::{
    AdvertiseSettings, Advertised, ClusterSettings, EtcdSettings, Listening, MeshTlsSettings,
};
use declare::{Kind, settings};
pub use error::ConfigError;
pub use layers::Source;
pub use listeners::{
    ClientAuth, Listeners, PlainListener, SecureListener, SecureWebListener, ServiceListener,
    TlsSettings, TlsVersion, WebListener,
};
pub use log::{Ack, ClassSettings, Classes, Disk, DiskAction, LogSettings, Retention, Sync};
pub use mqtt::{BrokerSettings, LogFormat, MqttSettings, SysSettings};
pub use print::{json_schema, to_json, to_yaml};
pub use quotas::{Quota, QuotaSettings};
pub use reference::{reference_json, reference_yaml};
pub use service::{AdminSettings, FlightSettings};

settings! {
    /// All settings. Each has a default, so an empty file is a valid one.
    pub struct Config {
        /// Folder of the log. A relative path starts at the working directory of the broker.
        data_dir: PathBuf = PathBuf::from("headwater-data"), Kind::Folder;
    }
    sections {
        listeners: Listeners;
        log: LogSettings;
        mqtt: MqttSettings;
        flight: FlightSettings;
        broker: BrokerSettings;
        admin: AdminSettings;
        sys: SysSettings;
        auth: AuthSettings;
        quotas: QuotaSettings;
        /// A node of a cluster: several brokers keep one log, and one of them serves clients.
        cluster: ClusterSettings;
    }
}

impl Config {
    /// Reads the layers of `source` (file, then environment, then `--set`) over the defaults and checks the result.
    ///
    /// # Errors
    /// The first mistake, as one sentence: the key, its place, and what to write.
    pub fn load(source: &Source) -> Result<Config, ConfigError> {
        Self::load_with_notes(source).map(|(config, _)| config)
    }

    /// As [`load`](Self::load), with a line for each setting that is given by an old name or has no effect any more.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_with_notes(source: &Source) -> Result<(Config, Vec<String>), ConfigError> {
        let (config, notes) = layers::resolve(source)?;
        config.check()?;
        Ok((config, notes))
    }

    /// The address of Flight at `authority` (`host:port`), as clients write it.
    pub fn flight_url(&self, authority: &str) -> String {
        let has_tls = self.listeners.flight.tls.is_on();
        format!(
            "{}://{authority}",
            if has_tls { "grpc+tls" } else { "grpc" }
        )
    }

    /// The limits of every key, and the rules that join keys.
    fn check(&self) -> Result<(), ConfigError> {
        check::check_limits(self)?;
        self.listeners.check()?;
        if !self.auth.allow_anonymous && !self.auth.is_configured() {
            for (key, bind) in self.listeners.addresses() {
                if !bind.ip().is_loopback() {
                    return Err(ConfigError::Exposed { key, bind });
                }
            }
        }
        if self.mqtt.receive_budget_bytes < self.mqtt.max_packet_bytes {
            let reason = format!(
                "{} is below mqtt.max_packet_bytes ({}): no packet of that size could ever be received",
                self.mqtt.receive_budget_bytes, self.mqtt.max_packet_bytes
            );
            return Err(ConfigError::bad_value("mqtt.receive_budget_bytes", reason));
        }
        self.cluster.check(self)?;
        self.check_space()
    }

    /// Whether other machines can reach no listener, neither by its address nor through a proxy.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.listeners
            .addresses()
            .all(|(_, bind)| bind.ip().is_loopback())
            && !self.listeners.are_proxied()
    }

    /// The rules that join keys of retention and disk.
    fn check_space(&self) -> Result<(), ConfigError> {
        let disk = &self.log.disk;
        if disk.warn_at > disk.act_at {
            let reason = format!(
                "{} is above log.disk.act_at ({}): the warning would come too late",
                disk.warn_at, disk.act_at
            );
            return Err(ConfigError::bad_value("log.disk.warn_at", reason));
        }
        let classes = &self.log.classes;
        for (name, class) in [
            ("control", &classes.control),
            ("artifacts", &classes.artifacts),
            ("telemetry", &classes.telemetry),
        ] {
            if let (Some(bytes), Some(hard)) = (class.retention.bytes, class.retention.hard_bytes)
                && hard < bytes
            {
                let reason = format!(
                    "{hard} is below retention.bytes ({bytes}): nothing could ever be held"
                );
                let key = format!("log.classes.{name}.retention.hard_bytes");
                return Err(ConfigError::bad_value(&key, reason));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
