//! Starts and stops a broker: the order of its parts.

mod listen;
mod member;
mod office;
pub(crate) mod private;
mod start_error;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use headwater_log::{Log, LogId, RecoveryReport, Seams};

use crate::auth::AuthService;
use crate::cluster::{Joined, OnEnd};
use crate::config::{Config, Listening};
use crate::data_plane::{self, DataPlane, DataPlaneContext, LoopParts};
use crate::event_loop::{Command, CommandSender};
use crate::log_settings::log_config;
use crate::metrics::Metrics;
use crate::reload::Reloads;
use crate::service::{self, ServiceContext, ServiceEndpoint};
use crate::transport::BoundListener;
use crate::transport::certificates::{Certificates, TlsError};
use listen::{address, listen, listen_mesh, listen_mqtt};
pub use member::StartOptions;
use member::{Member, join};
pub use office::Elsewhere;
use office::Office;
pub use start_error::StartError;

/// A running broker. Dropping it stops it; [`shutdown`](Self::shutdown) stops it explicitly.
pub struct Broker {
    /// The data plane's addresses by listener name, in the order of the configuration; `mqtt` is first.
    mqtt: Vec<(&'static str, SocketAddr)>,
    certificates: Arc<Certificates>,
    flight: SocketAddr,
    admin: SocketAddr,
    log: Log,
    reloads: Arc<Reloads>,
    commands: CommandSender,
    /// `None` once stopped.
    running: Option<Running>,
}

enum Running {
    Alone {
        data_plane: DataPlane,
        office: Office,
    },
    Member(Member),
}

impl Broker {
    /// Binds the listeners, recovers the log, restores the state, and serves. When it returns, every configured
    /// address accepts connections.
    ///
    /// # Errors
    /// One sentence with the address, folder or file, and what to do.
    pub fn start(config: Config) -> Result<Broker, StartError> {
        Self::start_with(config, StartOptions::default())
    }

    /// As [`Self::start`]. A node of a cluster waits for etcd first; it accepts connections then, and serves clients when
    /// it leads.
    ///
    /// # Errors
    /// As [`Self::start`], and what is wrong with the cluster.
    pub fn start_with(config: Config, options: StartOptions) -> Result<Broker, StartError> {
        // Bind the listeners first, so that a busy port is reported before the log is recovered.
        let (mqtt, mut certificates) = listen_mqtt(&config)?;
        let flight = listen("flight", config.listeners.flight.bind.0)?;
        let admin = listen("admin", config.listeners.admin.bind.0)?;
        let mesh = listen_mesh(&config)?;
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
        let certificates = Arc::new(certificates);
        certificates.show(&metrics.transport);
        let reloads = reloads_of(&metrics, &auth, &certificates);
        let loop_parts = LoopParts::new().map_err(thread("MQTT data plane"))?;
        private::create_dir(&config.data_dir).map_err(|reason| StartError::Folder {
            dir: config.data_dir.clone(),
            reason,
        })?;
        for warning in private::warnings(&config) {
            tracing::warn!("{warning}");
        }
        let (log, report, joined) = match &mesh {
            None => {
                let (log, report) = Log::open(log_config(&config), Seams::system())?;
                (log, report, None)
            }
            Some(mesh) => {
                let at = Listening {
                    mesh: address(mesh)?,
                    mqtt: mqtt_at[0].1,
                    flight: flight_at,
                    admin: admin_at,
                };
                let advertised = config.cluster.advertised(&config, at);
                let (joined, report) = join(&config, advertised, &options, &reloads)?;
                (joined.log().clone(), report, Some(joined))
            }
        };
        tell(&log, &report);
        let commands = loop_parts.commands();
        let context = ServiceContext {
            metrics,
            commands: commands.clone(),
            auth,
            reloads: Arc::clone(&reloads),
            cluster: joined.as_ref().map(Joined::inbox),
        };
        let node = joined
            .zip(mesh)
            .map(|(joined, mesh)| (joined, mesh, options.ended));
        let doors = (mqtt, flight, admin);
        match start_on(&config, &log, loop_parts, context, doors, node) {
            Ok(running) => Ok(Broker {
                mqtt: mqtt_at,
                certificates,
                flight: flight_at,
                admin: admin_at,
                log,
                reloads,
                commands,
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

    /// Whether the loop of the data plane answers within this time.
    pub fn responds(&self, within: Duration) -> bool {
        let (answer, answered) = sync_channel(1);
        self.commands.ask(Command::Ping(answer)).is_ok() && answered.recv_timeout(within).is_ok()
    }

    /// Sends clients elsewhere, and closes their connections: another node leads the log from now on.
    pub fn leave_office(&mut self, elsewhere: Elsewhere) {
        if let Some(Running::Alone { data_plane, office }) = &mut self.running {
            office.leave(&data_plane.commands(), elsewhere);
        }
    }

    /// Serves clients again: this node leads the log.
    ///
    /// # Errors
    /// Sessions, groups or retained messages cannot be read from the log. Clients are still sent elsewhere.
    pub fn open_office(&mut self) -> Result<(), StartError> {
        match &mut self.running {
            Some(Running::Alone { data_plane, office }) => {
                office.open(&self.log, &data_plane.commands())
            }
            _ => Ok(()),
        }
    }

    /// Closes the listeners and connections, ends the calls in progress, writes and syncs what is queued, and marks the
    /// clean stop.
    pub fn shutdown(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        match self.running.take() {
            None => return,
            Some(Running::Alone { data_plane, office }) => {
                drop(data_plane);
                drop(office);
            }
            Some(Running::Member(member)) => drop(member),
        }
        self.log.shutdown();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What is read again while the broker runs.
fn reloads_of(
    metrics: &Arc<Metrics>,
    auth: &Arc<AuthService>,
    certificates: &Arc<Certificates>,
) -> Arc<Reloads> {
    let reloads = Reloads::new(Arc::clone(metrics));
    let (reloaded, auth) = (Arc::clone(auth), Arc::clone(auth));
    reloads.add(move || reloaded.reload().map_err(|error| error.to_string()));
    let (certificates, shown) = (Arc::clone(certificates), Arc::clone(metrics));
    reloads.add(move || {
        let result = certificates.reload();
        certificates.show(&shown.transport);
        auth.review();
        result.map_err(|error| error.to_string())
    });
    Arc::new(reloads)
}

fn thread(what: &'static str) -> impl Fn(std::io::Error) -> StartError {
    move |reason| StartError::Thread { what, reason }
}

fn start_on(
    config: &Config,
    log: &Log,
    loop_parts: LoopParts,
    context: ServiceContext,
    (mqtt, flight, admin): (Vec<BoundListener>, ServiceEndpoint, ServiceEndpoint),
    node: Option<(Joined, TcpListener, Option<OnEnd>)>,
) -> Result<Running, StartError> {
    let (metrics, auth) = (Arc::clone(&context.metrics), Arc::clone(&context.auth));
    let service = service::start(config, log.clone(), context, flight, admin)
        .map_err(thread("service runtime"))?;
    let mut office = Office::new(service);
    // A node serves clients when it leads.
    let state = match &node {
        None => Some(office.restore(log)?),
        Some(_) => None,
    };
    let context = DataPlaneContext {
        config: config.clone(),
        log: log.clone(),
        metrics,
        auth,
        listeners: mqtt,
    };
    let data_plane =
        data_plane::start(loop_parts, context, state).map_err(thread("MQTT data plane"))?;
    if let Some((joined, mesh, ended)) = node {
        let member = Member::run(joined, mesh, data_plane, office, ended)?;
        return Ok(Running::Member(member));
    }
    office.hold(log);
    Ok(Running::Alone { data_plane, office })
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
