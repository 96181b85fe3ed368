//! The settings of a broker: one YAML file, environment variables and `--set` over it, defaults under it.
//!
//! What is here: the types, their defaults, and [`Config::load`]. The table of keys with meaning and limits is in
//! [`keys`], the layering in [`layers`], human units in [`units`]. This module opens nothing but the file it is given
//! and never fills in a value that it could not understand.

mod auth;
mod error;
pub mod keys;
mod layers;
mod listeners;
mod print;
pub mod units;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use auth::{AuthSettings, CertificateSettings, CertificateUser, ClientIds, TokenSettings};
pub use error::ConfigError;
pub use layers::Source;
pub use listeners::{
    ClientAuth, Listeners, PlainListener, SecureListener, SecureWebListener, ServiceListener,
    TlsSettings, TlsVersion, WebListener,
};
pub use print::{json_schema, to_json, to_yaml};
use units::{Age, ByteSize};

/// All settings. Every field has a default, so an empty file is a valid one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub data_dir: PathBuf,
    #[serde(deserialize_with = "or_default")]
    pub listeners: Listeners,
    #[serde(deserialize_with = "or_default")]
    pub log: LogSettings,
    #[serde(deserialize_with = "or_default")]
    pub mqtt: MqttSettings,
    #[serde(deserialize_with = "or_default")]
    pub flight: FlightSettings,
    #[serde(deserialize_with = "or_default")]
    pub broker: BrokerSettings,
    #[serde(deserialize_with = "or_default")]
    pub admin: AdminSettings,
    #[serde(deserialize_with = "or_default")]
    pub sys: SysSettings,
    #[serde(deserialize_with = "or_default")]
    pub auth: AuthSettings,
    #[serde(deserialize_with = "or_default")]
    pub quotas: QuotaSettings,
}

/// How much of what all clients share one tenant and one user may have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QuotaSettings {
    #[serde(deserialize_with = "or_default")]
    pub tenant: Quota,
    #[serde(deserialize_with = "or_default")]
    pub user: Quota,
}

/// `None`: half of what there may be in all, and a user as much as its tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    pub sessions: Option<u32>,
    pub connections: Option<u32>,
    pub subscriptions: Option<u32>,
    pub shared_groups: Option<u32>,
    pub shared_members: Option<u32>,
    pub retained: Option<u32>,
    pub retained_bytes: Option<ByteSize>,
    pub session_bytes: Option<ByteSize>,
    pub topics: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogSettings {
    /// The log id that the data folder must have; a new folder gets it.
    pub id: Option<String>,
    pub sync: Sync,
    /// Only with `sync: interval`.
    pub sync_interval: Age,
    /// Only with `sync: interval`.
    pub ack: Ack,
    /// `None`: a group holds until it is removed.
    pub group_idle: Option<Age>,
    #[serde(deserialize_with = "or_default")]
    pub disk: Disk,
    pub segment_bytes: ByteSize,
    pub tail_bytes: ByteSize,
    pub heads_bytes: ByteSize,
    pub queue_bytes: ByteSize,
    /// Where backups that are asked for over Flight go; without it they are refused.
    pub backup_dir: Option<PathBuf>,
    #[serde(deserialize_with = "or_default")]
    pub classes: Classes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sync {
    Always,
    Interval,
    Never,
}

/// Up to where MQTT acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ack {
    Synced,
    Written,
}

/// The disk budget of the whole log. Shares are percent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Disk {
    /// `None`: what the log has plus what the file system has left.
    pub budget: Option<ByteSize>,
    pub warn_at: u8,
    pub act_at: u8,
    pub action: DiskAction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskAction {
    Refuse,
    Trim,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Classes {
    #[serde(deserialize_with = "or_default")]
    pub control: ClassSettings,
    #[serde(deserialize_with = "or_default")]
    pub artifacts: ClassSettings,
    #[serde(deserialize_with = "or_default")]
    pub telemetry: ClassSettings,
}

/// The derived default is only what a typed parse needs; the real ones differ by class, see [`Classes`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClassSettings {
    pub partitions: u32,
    pub filters: Vec<String>,
    pub template: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub retention: Retention,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// Of one partition, like all of these. `None` keeps everything.
    pub bytes: Option<ByteSize>,
    pub age: Option<Age>,
    pub hold_for_groups: bool,
    /// Of one partition. `None`: what a group holds stays.
    pub hard_bytes: Option<ByteSize>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MqttSettings {
    pub max_packet_bytes: ByteSize,
    /// Bodies of packets that are being received, all connections together.
    pub receive_budget_bytes: ByteSize,
    pub max_inflight: u16,
    pub receive_maximum: u16,
    pub topic_alias_maximum: u16,
    pub max_subscriptions: u32,
    pub max_filter_bytes: ByteSize,
    pub max_sessions: u32,
    pub max_retained: u32,
    pub max_retained_bytes: ByteSize,
    /// Filters and wills, all sessions together.
    pub max_session_bytes: ByteSize,
    pub max_topic_levels: u16,
    pub delivery_aliases: u16,
    pub max_shared_groups: u16,
    pub max_shared_members: u32,
    pub max_total_subscriptions: u32,
    /// Zero: a record stays with its member while that is connected.
    pub shared_redelivery_after: Age,
    /// From the first packet of the socket to a whole CONNECT, handshakes of TLS and WebSocket included.
    pub connect_timeout: Age,
    /// Of a CONNECT, and of the request that opens a WebSocket.
    pub max_connect_bytes: ByteSize,
    pub session_expiry_max: Age,
    pub out_buffer_bytes: ByteSize,
    /// Of one client. `None`: as many as it can.
    pub max_messages_per_second: Option<u32>,
    pub max_bytes_per_second: Option<ByteSize>,
    pub max_topics: u32,
    pub max_topic_bytes: u32,
    pub max_qos: u8,
    pub retain_available: bool,
    pub wildcard_available: bool,
    /// `None`: what the client asks for.
    pub keep_alive_max: Option<Age>,
    pub server_reference: Option<String>,
    pub response_information: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlightSettings {
    pub threads: u16,
    pub max_reads: u16,
    /// `None`: half of `max_reads`.
    pub max_reads_per_user: Option<u16>,
    /// What all readers together have been sent and have not taken.
    pub read_budget_bytes: ByteSize,
    pub stall_timeout: Age,
    pub max_message_bytes: ByteSize,
    /// Calls of one connection at the same time.
    pub max_streams: u16,
    pub max_connections: u16,
    /// Of one address, while they show no user. `None`: no limit of its own.
    pub max_connections_per_ip: Option<u16>,
    /// Of one user. `None`: half of `max_connections`.
    pub max_connections_per_user: Option<u16>,
    /// Connections that have not made an authenticated call.
    pub max_pending_connections: u16,
    /// From the first packet of the socket to the first authenticated call.
    pub connect_timeout: Age,
    /// `None`: `mqtt.max_packet_bytes`.
    pub max_record_bytes: Option<ByteSize>,
    pub max_groups: u32,
    /// `None`: half of `max_groups`.
    pub max_groups_per_user: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BrokerSettings {
    pub loops: u16,
    pub max_connections: u32,
    /// `None`: no limit of its own.
    pub max_connections_per_ip: Option<u32>,
    /// Connections that have not sent their CONNECT.
    pub max_pending_connections: u32,
    /// Connections accepted in a second.
    pub max_connect_rate: u32,
    pub log_format: LogFormat,
}

/// How the broker talks on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

/// Limits of the admin listener.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdminSettings {
    pub max_connections: u16,
    /// These are as in [`FlightSettings`].
    pub max_connections_per_ip: Option<u16>,
    pub max_connections_per_user: Option<u16>,
    pub max_pending_connections: u16,
    pub connect_timeout: Age,
    /// Names by which a browser may call this listener, beside addresses, `localhost` and the machine's own name.
    pub hosts: Vec<String>,
    pub max_body_bytes: ByteSize,
    pub request_timeout: Age,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SysSettings {
    /// Zero: there is no `$SYS`.
    pub interval: Age,
}

/// A section whose keys are all commented out is null in YAML and means its defaults.
fn or_default<'de, D: serde::Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl Default for Config {
    fn default() -> Self {
        Config {
            data_dir: PathBuf::from("headwater-data"),
            listeners: Listeners::default(),
            log: LogSettings::default(),
            mqtt: MqttSettings::default(),
            flight: FlightSettings::default(),
            broker: BrokerSettings::default(),
            admin: AdminSettings::default(),
            sys: SysSettings::default(),
            auth: AuthSettings::default(),
            quotas: QuotaSettings::default(),
        }
    }
}

impl Default for LogSettings {
    fn default() -> Self {
        LogSettings {
            id: None,
            sync: Sync::Always,
            sync_interval: Age::from_secs(1),
            ack: Ack::Synced,
            group_idle: Some(Age::from_days(7)),
            disk: Disk::default(),
            segment_bytes: ByteSize::mib(64),
            tail_bytes: ByteSize::mib(32),
            heads_bytes: ByteSize::mib(8),
            queue_bytes: ByteSize::mib(8),
            backup_dir: None,
            classes: Classes::default(),
        }
    }
}

impl Default for Disk {
    fn default() -> Self {
        Disk {
            budget: None,
            warn_at: 80,
            act_at: 95,
            action: DiskAction::Refuse,
        }
    }
}

impl Default for Classes {
    fn default() -> Self {
        let class = |partitions, filters: &[&str], template: Option<&str>| ClassSettings {
            partitions,
            filters: filters.iter().map(|filter| (*filter).to_owned()).collect(),
            template: template.map(str::to_owned),
            retention: Retention::default(),
        };
        let device = Some("devices/{device}/#");
        let mut classes = Classes {
            control: class(1, &["devices/+/actions", "$receipts", "$gaps"], device),
            artifacts: class(1, &["artifacts/#"], None),
            telemetry: class(2, &["#"], device),
        };
        classes.control.retention = Retention {
            bytes: None,
            age: Some(Age::from_days(30)),
            hold_for_groups: true,
            hard_bytes: Some(ByteSize::gib(4)),
        };
        classes.telemetry.retention = Retention {
            bytes: Some(ByteSize::gib(8)),
            age: Some(Age::from_days(1)),
            hold_for_groups: true,
            hard_bytes: Some(ByteSize::gib(16)),
        };
        classes
    }
}

impl Default for MqttSettings {
    fn default() -> Self {
        MqttSettings {
            max_packet_bytes: ByteSize::mib(1),
            receive_budget_bytes: ByteSize::mib(64),
            max_inflight: 100,
            receive_maximum: 1024,
            topic_alias_maximum: 10,
            max_subscriptions: 1024,
            max_filter_bytes: ByteSize::kib(256),
            max_sessions: 100_000,
            max_retained: 100_000,
            max_retained_bytes: ByteSize::mib(256),
            max_session_bytes: ByteSize::mib(128),
            max_topic_levels: 64,
            delivery_aliases: 32,
            max_shared_groups: 10_000,
            max_shared_members: 1_000_000,
            max_total_subscriptions: 10_000_000,
            shared_redelivery_after: Age::from_secs(30),
            connect_timeout: Age::from_secs(10),
            max_connect_bytes: ByteSize::kib(64),
            session_expiry_max: Age::from_days(30),
            out_buffer_bytes: ByteSize::kib(256),
            max_messages_per_second: None,
            max_bytes_per_second: None,
            max_topics: 50_000,
            max_topic_bytes: 65_535,
            max_qos: 2,
            retain_available: true,
            wildcard_available: true,
            keep_alive_max: None,
            server_reference: None,
            response_information: None,
        }
    }
}

impl Default for FlightSettings {
    fn default() -> Self {
        FlightSettings {
            threads: 2,
            max_reads: 32,
            max_reads_per_user: None,
            read_budget_bytes: ByteSize::mib(128),
            stall_timeout: Age::from_secs(60),
            max_message_bytes: ByteSize::mib(64),
            max_streams: 128,
            max_connections: 256,
            max_connections_per_ip: None,
            max_connections_per_user: None,
            max_pending_connections: 128,
            connect_timeout: Age::from_secs(10),
            max_record_bytes: None,
            max_groups: 1_000,
            max_groups_per_user: None,
        }
    }
}

impl Default for BrokerSettings {
    fn default() -> Self {
        BrokerSettings {
            loops: 1,
            max_connections: 100_000,
            max_connections_per_ip: None,
            max_pending_connections: 16_384,
            max_connect_rate: 10_000,
            log_format: LogFormat::Text,
        }
    }
}

impl Default for AdminSettings {
    fn default() -> Self {
        AdminSettings {
            max_connections: 64,
            max_connections_per_ip: None,
            max_connections_per_user: None,
            max_pending_connections: 32,
            connect_timeout: Age::from_secs(10),
            hosts: Vec::new(),
            max_body_bytes: ByteSize::kib(64),
            request_timeout: Age::from_secs(10),
        }
    }
}

impl Default for SysSettings {
    fn default() -> Self {
        SysSettings {
            interval: Age::from_secs(10),
        }
    }
}

impl Config {
    /// Reads the layers of `source` (file, then environment, then `--set`) over the defaults and checks the result.
    ///
    /// # Errors
    /// The first thing that is wrong, as one sentence that names the key, where it stands, and what to write.
    pub fn load(source: &Source) -> Result<Config, ConfigError> {
        let config = layers::resolve(source)?;
        config.check()?;
        Ok(config)
    }

    /// Limits of every key, and the rules that join keys.
    fn check(&self) -> Result<(), ConfigError> {
        keys::check_limits(self)?;
        self.listeners.check()?;
        if !self.auth.allow_anonymous && !self.auth.is_configured() {
            for (key, bind) in self.listeners.addresses() {
                if !bind.ip().is_loopback() {
                    return Err(ConfigError::Exposed { key, bind });
                }
            }
        }
        if self.mqtt.receive_budget_bytes < self.mqtt.max_packet_bytes {
            return Err(ConfigError::Joined {
                key: "mqtt.receive_budget_bytes",
                reason: format!(
                    "{} is below mqtt.max_packet_bytes ({}): no packet of that size could ever be received",
                    self.mqtt.receive_budget_bytes, self.mqtt.max_packet_bytes
                ),
            });
        }
        self.check_space()
    }

    /// Whether no listener is reached from another machine: not by its address, and not through a proxy.
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
            return Err(ConfigError::Joined {
                key: "log.disk.warn_at",
                reason: format!(
                    "{} is above log.disk.act_at ({}): the warning would come too late",
                    disk.warn_at, disk.act_at
                ),
            });
        }
        let classes = &self.log.classes;
        for (key, class) in [
            ("log.classes.control.retention.hard_bytes", &classes.control),
            (
                "log.classes.artifacts.retention.hard_bytes",
                &classes.artifacts,
            ),
            (
                "log.classes.telemetry.retention.hard_bytes",
                &classes.telemetry,
            ),
        ] {
            if let (Some(bytes), Some(hard)) = (class.retention.bytes, class.retention.hard_bytes)
                && hard < bytes
            {
                return Err(ConfigError::Joined {
                    key,
                    reason: format!(
                        "{hard} is below retention.bytes ({bytes}): nothing could ever be held"
                    ),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
