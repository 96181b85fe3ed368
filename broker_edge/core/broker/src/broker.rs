//! Starts and stops a broker: the order of its parts.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

use headwater_log::{
    Class, ClassConfig, DiskAction as LogDiskAction, DiskConfig, Log, LogConfig, LogId, OpenError,
    RecoveryReport, Seams, SyncMode,
};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::auth::{self, AuthService};
use crate::config::{Ack, ClassSettings, Config, Disk, DiskAction, LogSettings, Sync, TlsSettings};
use crate::data_plane::{self, DataPlane, DataPlaneConfig, LoopParts};
use crate::hosts::{Hosts, Origins};
use crate::metrics::Metrics;
use crate::reload::Reloads;
use crate::service::{self, Service, ServiceConfig, ServiceContext, ServiceEndpoint};
use crate::state::{Compaction, StateError, StateStore};
use crate::transport::certificates::{Certificates, TlsError};
use crate::transport::{BACKLOG, BoundListener, ListenerProtocol};

/// State records are compacted only above this size.
const COMPACT_AFTER_BYTES: u64 = 4 << 20;

/// Why a broker did not start. The parts that had started were stopped again.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(
        "cannot listen on {address} for {listener}: {reason}; set listeners.{listener}.bind to a free address"
    )]
    Listen {
        listener: &'static str,
        address: SocketAddr,
        reason: std::io::Error,
    },
    #[error("cannot use the data folder {dir}: {reason}; set data_dir to a folder that the broker may write", dir = dir.display())]
    Folder {
        dir: PathBuf,
        reason: std::io::Error,
    },
    #[error(transparent)]
    Auth(#[from] auth::StartError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Log(#[from] OpenError),
    #[error("cannot restore the broker's state: {0}")]
    State(#[from] StateError),
    #[error("cannot start the {what}: {reason}")]
    Thread {
        what: &'static str,
        reason: std::io::Error,
    },
}

/// A running broker. Dropping it stops it; [`shutdown`](Self::shutdown) stops it explicitly.
pub struct Broker {
    /// The data plane's addresses by listener name, in the order of the configuration; `mqtt` is first.
    mqtt: Vec<(&'static str, SocketAddr)>,
    certificates: Arc<Certificates>,
    flight: SocketAddr,
    admin: SocketAddr,
    log: Log,
    reloads: Arc<Reloads>,
    /// In the order in which they stop; `None` once stopped.
    running: Option<Running>,
}

struct Running {
    data_plane: DataPlane,
    service: Service,
    compaction: Compaction,
}

impl Broker {
    /// Binds the listeners, recovers the log, restores the state, and serves. When it returns, all three addresses
    /// accept connections.
    ///
    /// # Errors
    /// One sentence with the address, folder or file, and what to do.
    pub fn start(config: Config) -> Result<Broker, StartError> {
        // Bind the listeners first, so that a busy port is reported before the log is recovered.
        let (mqtt, mut certificates) = listen_mqtt(&config)?;
        let flight = listen("flight", config.listeners.flight.bind.0)?;
        let admin = listen("admin", config.listeners.admin.bind.0)?;
        let (flight_at, admin_at) = (address(&flight)?, address(&admin)?);
        let (flight_tls, admin_tls) = (&config.listeners.flight.tls, &config.listeners.admin.tls);
        let flight = ServiceEndpoint {
            listener: flight,
            tls: certificates.load("flight", flight_tls, &["h2"])?,
        };
        let admin = ServiceEndpoint {
            listener: admin,
            tls: certificates.load("admin", admin_tls, &["http/1.1"])?,
        };
        let mqtt_at = mqtt
            .iter()
            .map(|bound| Ok((bound.speaks.name(), address(&bound.listener)?)))
            .collect::<Result<Vec<_>, StartError>>()?;

        let auth = AuthService::start(&config.auth, config.is_local())?;
        if !config.is_local() && config.auth.acl_file.is_none() {
            tracing::warn!(
                "other machines can reach this broker and there is no ACL: every admitted client may use every topic; set auth.acl_file"
            );
        }
        let metrics = Arc::new(Metrics::default());
        let reloads = Arc::new(Reloads::new(Arc::clone(&metrics)));
        let reloaded = Arc::clone(&auth);
        reloads.add(move || reloaded.reload().map_err(|error| error.to_string()));
        let certificates = Arc::new(certificates);
        certificates.show(&metrics.transport);
        let (reloaded, shown) = (Arc::clone(&certificates), Arc::clone(&metrics));
        reloads.add(move || {
            let result = reloaded.reload();
            reloaded.show(&shown.transport);
            result.map_err(|error| error.to_string())
        });
        std::fs::create_dir_all(&config.data_dir).map_err(|reason| StartError::Folder {
            dir: config.data_dir.clone(),
            reason,
        })?;
        let (log, report) = Log::open(log_config(&config), Seams::system())?;
        tell(&log, &report);
        let parts = Parts {
            metrics,
            auth,
            reloads: Arc::clone(&reloads),
        };
        match start_on(&config, &log, parts, mqtt, flight, admin) {
            Ok(running) => Ok(Broker {
                mqtt: mqtt_at,
                certificates,
                flight: flight_at,
                admin: admin_at,
                log,
                reloads,
                running: Some(running),
            }),
            Err(error) => {
                log.shutdown();
                Err(error)
            }
        }
    }

    /// The first address of plain MQTT.
    pub fn mqtt_address(&self) -> SocketAddr {
        let (_, address) = self.mqtt[0];
        address
    }

    /// The addresses of a listener of the data plane: `mqtt`, `mqtts`, `ws` or `wss`.
    pub fn addresses(&self, listener: &str) -> Vec<SocketAddr> {
        let of_listener = self.mqtt.iter().filter(|(name, _)| *name == listener);
        of_listener.map(|(_, address)| *address).collect()
    }

    /// Reloads certificates, keys and authorities, for new connections.
    ///
    /// # Errors
    /// What is wrong with a file. Its listener keeps the old files; the other listeners are renewed.
    pub fn reload_certificates(&self) -> Result<(), TlsError> {
        self.certificates.reload()
    }

    pub fn flight_address(&self) -> SocketAddr {
        self.flight
    }

    pub fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    pub fn log_id(&self) -> LogId {
        self.log.id()
    }

    /// Reloads users, token keys and the ACL. An invalid part keeps its old contents.
    ///
    /// # Errors
    /// What is wrong with a file, in one sentence.
    pub fn reload(&self) -> Result<(), String> {
        self.reloads.run()
    }

    /// Closes the listeners and connections, ends the calls in progress, writes and syncs what is queued, and marks the
    /// clean stop.
    pub fn shutdown(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        running.data_plane.stop();
        running.service.stop();
        drop(running.compaction);
        self.log.shutdown();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the parts of a broker share besides the log.
struct Parts {
    metrics: Arc<Metrics>,
    auth: Arc<AuthService>,
    reloads: Arc<Reloads>,
}

fn start_on(
    config: &Config,
    log: &Log,
    parts: Parts,
    mqtt: Vec<BoundListener>,
    flight: ServiceEndpoint,
    admin: ServiceEndpoint,
) -> Result<Running, StartError> {
    let thread = |what| move |reason| StartError::Thread { what, reason };
    let state = Arc::new(StateStore::open(log, COMPACT_AFTER_BYTES)?);
    let metrics = parts.metrics;
    let compaction = Compaction::start(&state).map_err(thread("compaction of the state"))?;
    let loop_parts = LoopParts::new().map_err(thread("MQTT data plane"))?;
    let service_config = ServiceConfig::new(config);
    let context = ServiceContext {
        metrics: Arc::clone(&metrics),
        commands: loop_parts.commands(),
        auth: Arc::clone(&parts.auth),
        reloads: parts.reloads,
    };
    let service = service::start(
        service_config,
        log.clone(),
        Arc::clone(&state),
        context,
        flight,
        admin,
    )
    .map_err(thread("service runtime"))?;
    let data_plane_config = DataPlaneConfig {
        mqtt: config.mqtt.clone(),
        broker: config.broker.clone(),
        quotas: config.quotas.clone(),
        ack_written: acks_written(&config.log),
        sys_interval: config.sys.interval.0,
    };
    let data_plane = data_plane::start(
        loop_parts,
        data_plane_config,
        log.clone(),
        state,
        metrics,
        parts.auth,
        mqtt,
    )
    .map_err(thread("MQTT data plane"))?;
    // Retention may begin only now, because it must ask the holders of old records first.
    log.hold_with(&service.holders());
    Ok(Running {
        data_plane,
        service,
        compaction,
    })
}

/// Binds the listeners of the data plane and reads their certificates.
fn listen_mqtt(config: &Config) -> Result<(Vec<BoundListener>, Certificates), StartError> {
    let listeners = &config.listeners;
    let hosts = Hosts::new(&config.admin.hosts);
    let mut bound = Vec::new();
    let mut certificates = Certificates::default();
    let no_tls = TlsSettings::default();
    let (mqtt, mqtts, ws, wss) = (
        &listeners.mqtt,
        &listeners.mqtts,
        &listeners.ws,
        &listeners.wss,
    );
    for (name, bind, proxy, tls, origins) in [
        ("mqtt", &mqtt.bind, mqtt.proxy_protocol, &no_tls, &[][..]),
        (
            "mqtts",
            &mqtts.bind,
            mqtts.proxy_protocol,
            &mqtts.tls,
            &[][..],
        ),
        ("ws", &ws.bind, ws.proxy_protocol, &no_tls, &ws.origins[..]),
        (
            "wss",
            &wss.bind,
            wss.proxy_protocol,
            &wss.tls,
            &wss.origins[..],
        ),
    ] {
        if bind.0.is_empty() {
            continue;
        }
        let tls = certificates.load(name, tls, &[])?;
        let origins = Arc::new(Origins::new(origins, &hosts));
        for address in &bind.0 {
            bound.push(BoundListener {
                listener: reserve(name, *address)?,
                speaks: ListenerProtocol {
                    proxy,
                    tls: tls.clone(),
                    websocket: matches!(name, "ws" | "wss"),
                    origins: Arc::clone(&origins),
                },
            });
        }
    }
    Ok((bound, certificates))
}

/// Binds an address early, so that a busy one is reported before anything else happens. Clients cannot connect yet.
fn reserve(listener: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    let bind = || -> std::io::Result<TcpListener> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        // A restart must not wait until the connections of the previous process time out.
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            // Allows [::] and 0.0.0.0 side by side, each for its own protocol.
            socket.set_only_v6(true)?;
        }
        socket.bind(&address.into())?;
        Ok(socket.into())
    };
    bind().map_err(|reason| StartError::Listen {
        listener,
        address,
        reason,
    })
}

fn listen(listener: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    let socket = reserve(listener, address)?;
    SockRef::from(&socket)
        .listen(BACKLOG)
        .map_err(|reason| StartError::Listen {
            listener,
            address,
            reason,
        })?;
    Ok(socket)
}

fn address(listener: &TcpListener) -> Result<SocketAddr, StartError> {
    listener.local_addr().map_err(|reason| StartError::Thread {
        what: "listener",
        reason,
    })
}

/// The settings of the log. The internal class comes first, because it is always partition 0.
pub(crate) fn log_config(config: &Config) -> LogConfig {
    let settings = &config.log;
    let classes = &settings.classes;
    LogConfig {
        dir: config.data_dir.clone(),
        // The settings were checked to contain a UUID.
        expected_id: settings
            .id
            .as_deref()
            .and_then(|id| id.to_lowercase().parse().ok()),
        sync: match settings.sync {
            Sync::Always => SyncMode::Always,
            Sync::Interval => SyncMode::Interval(settings.sync_interval.0),
            Sync::Never => SyncMode::Never,
        },
        segment_bytes: settings.segment_bytes.0,
        tail_bytes: settings.tail_bytes.as_usize(),
        queue_bytes: settings.queue_bytes.as_usize(),
        maintain_every: Some(std::time::Duration::from_secs(1)),
        disk: disk_config(&settings.disk),
        removes_at_once: false,
        classes: vec![
            ClassConfig::new(Class::Internal),
            class_config(Class::Control, &classes.control),
            class_config(Class::Artifacts, &classes.artifacts),
            class_config(Class::Telemetry, &classes.telemetry),
        ],
    }
}

/// Whether MQTT acknowledges records that are written but not yet synced. With `sync: never` nothing is ever synced.
fn acks_written(log: &LogSettings) -> bool {
    match log.sync {
        Sync::Always => false,
        Sync::Interval => log.ack == Ack::Written,
        Sync::Never => true,
    }
}

fn disk_config(disk: &Disk) -> DiskConfig {
    DiskConfig {
        budget_bytes: disk.budget.map(|budget| budget.0),
        warn_percent: disk.warn_at,
        act_percent: disk.act_at,
        action: match disk.action {
            DiskAction::Refuse => LogDiskAction::Refuse,
            DiskAction::Trim => LogDiskAction::Trim,
        },
    }
}

fn class_config(class: Class, settings: &ClassSettings) -> ClassConfig {
    ClassConfig {
        class,
        partitions: settings.partitions,
        filters: settings.filters.clone(),
        template: settings.template.clone(),
        retention_bytes: settings.retention.bytes.map(|bytes| bytes.0),
        retention_age: settings.retention.age.map(|age| age.0),
        honours_holds: settings.retention.hold_for_groups,
        retention_hard_bytes: settings.retention.hard_bytes.map(|bytes| bytes.0),
    }
}

/// Logs what recovery found.
fn tell(log: &Log, report: &RecoveryReport) {
    if report.created {
        tracing::info!(log_id = %log.id(), "created a new log");
        return;
    }
    for found in &report.partitions {
        let (start, end) = (found.log_start.0, found.high_watermark.0);
        tracing::info!(
            partition = found.name,
            log_start = start,
            high_watermark = end,
            "opened"
        );
        if found.torn_bytes > 0 {
            tracing::warn!(
                partition = found.name,
                bytes = found.torn_bytes,
                "cut off an unfinished write"
            );
        }
        for gap in &found.gaps {
            let (start, end) = (gap.range.start.0, gap.range.end.0);
            tracing::error!(
                partition = found.name,
                start,
                end,
                reason = gap.reason,
                "offsets are lost"
            );
        }
        for note in &found.notes {
            tracing::warn!(partition = found.name, "{note}");
        }
    }
}
