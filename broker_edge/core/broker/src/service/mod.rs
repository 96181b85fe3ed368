//! The service runtime: Flight and admin HTTP, on their own threads.
//!
//! It reads the log through the log's public interface and never touches a connection of the data plane. Work that may
//! wait for the disk runs on a bounded number of blocking threads, never on an async thread.

mod admin;
mod admin_guard;
mod artifact_manifest;
mod artifacts;
mod backup;
mod bearer;
mod browser;
mod budget;
mod byte_range;
mod caller;
mod clients;
mod columns;
mod connection_slots;
mod error;
mod flight;
mod gaps;
mod gate;
mod group;
mod groups;
mod headers;
mod holds;
mod http;
mod incoming;
mod ipc;
mod limits;
mod offsets;
mod operate;
mod plan;
mod poll_backoff;
mod produce;
mod progress;
mod put;
mod put_body;
mod read;
mod request;
mod rows;
mod scan;
mod shares;
mod wire;

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use headwater_log::{ClassConfig, Holders, Log, Partition, PartitionId};
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::auth::{AuthService, ListenerKind};
use crate::broker::log_config;
use crate::config::{AdminSettings, Config, FlightSettings};
use crate::descriptors::{admin_share, flight_share, open_files_max};
use crate::event_loop::CommandSender;
use crate::hosts::Hosts;
use crate::metrics::Metrics;
use crate::reload::Reloads;
use crate::state::StateStore;
use crate::transport::certificates::TlsContext;
use bearer::Bearers;
use browser::Browser;
use columns::Constants;
use error::Refusal;
use gate::Gate;
use groups::Groups;
use holds::GroupHolds;
use incoming::Incoming;
use limits::Limits;
use progress::Progress;
use shares::Shares;

/// The niceness of the service's threads, above the rest of the broker.
const NICE: i32 = 10;
/// Blocking threads beside those of reads, for actions and produced batches.
const OTHER_BLOCKING_THREADS: usize = 32;
/// HTTP/2 flow control window, per stream and per connection.
const WINDOW_BYTES: u32 = 8 << 20;
/// The largest headers of a call, with room for a token.
const HEADERS_BYTES_MAX: u32 = 16 << 10;
/// The most calls that a client may reset before they are processed, and the most that may end by protocol errors. One
/// more closes the connection, because flooding costs a client nothing.
const RESETS_MAX: usize = 20;
const MISTAKES_MAX: usize = 64;
/// How often a connection is pinged, and how long it may take to answer.
const ALIVE_EVERY: Duration = Duration::from_secs(30);
const ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long calls in progress may take to finish when the broker stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The settings of the service.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    flight: FlightSettings,
    admin: AdminSettings,
    classes: Vec<ClassConfig>,
    data_dir: PathBuf,
    backup_dir: Option<PathBuf>,
    /// The largest single append to a partition.
    append_bytes: usize,
    group_idle: Option<Duration>,
    limits: Limits,
}

impl ServiceConfig {
    pub fn new(config: &Config) -> ServiceConfig {
        let log = log_config(config);
        // Half the queue, so that a produced batch never has to wait for an empty queue.
        let append_bytes = (log.queue_bytes / 2).min(4 << 20);
        ServiceConfig {
            flight: config.flight.clone(),
            admin: config.admin.clone(),
            classes: log.classes,
            data_dir: config.data_dir.clone(),
            backup_dir: config.log.backup_dir.clone(),
            append_bytes,
            group_idle: config.log.group_idle.map(|idle| idle.0),
            limits: Limits::of(config),
        }
    }
}

/// State that all calls share.
pub(crate) struct Shared {
    config: ServiceConfig,
    log: Log,
    log_id: String,
    metrics: Arc<Metrics>,
    /// Sends commands to the event loop.
    commands: CommandSender,
    auth: Arc<AuthService>,
    bearers: Bearers,
    reloads: Arc<Reloads>,
    groups: Groups,
    holds: Arc<GroupHolds>,
    progress: Vec<Progress>,
    reads: Arc<Semaphore>,
    shares: Shares,
    /// Created by the first read.
    constants: OnceLock<Arc<Constants>>,
    /// Locked during a backup.
    backing_up: Mutex<()>,
    /// True when the broker stops, which ends following reads.
    stopping: watch::Receiver<bool>,
}

impl Shared {
    fn partition(&self, number: u32) -> Result<&Partition, Refusal> {
        self.log
            .partition(PartitionId(number))
            .ok_or_else(|| Refusal::not_found(format!("there is no partition {number}")))
    }
}

/// What the service gets from the rest of the broker, beside the log and its state.
pub struct ServiceContext {
    pub metrics: Arc<Metrics>,
    /// Sends commands to the event loop.
    pub commands: CommandSender,
    pub auth: Arc<AuthService>,
    pub reloads: Arc<Reloads>,
}

/// The running service.
pub struct Service {
    running: Option<Running>,
    stop: watch::Sender<bool>,
    holds: Arc<GroupHolds>,
}

struct Running {
    runtime: Runtime,
    flight: JoinHandle<()>,
    admin: JoinHandle<()>,
}

impl Running {
    /// Waits a bounded time for the calls in progress, then ends the threads.
    fn end(self) {
        let both = async { tokio::join!(self.flight, self.admin) };
        if self
            .runtime
            .block_on(async { tokio::time::timeout(STOP_TIMEOUT, both).await })
            .is_err()
        {
            tracing::warn!("some calls did not finish in time and were aborted");
        }
        self.runtime.shutdown_timeout(STOP_TIMEOUT);
    }
}

/// A bound listener, with its certificate if it uses TLS.
pub(crate) struct ServiceEndpoint {
    pub listener: TcpListener,
    pub tls: Option<Arc<TlsContext>>,
}

/// Lowers the priority of a service thread below the event loop and the log. Dozens of these threads may be busy at
/// once, and the scheduler would give each as much CPU as the one loop that all MQTT clients share.
fn give_way() {
    if let Err(error) = rustix::process::nice(NICE) {
        tracing::debug!(%error, "could not lower the priority of Flight and HTTP threads");
    }
}

/// Serves Flight and admin HTTP on bound listeners.
///
/// # Errors
/// The system refuses threads or the listeners.
pub(crate) fn start(
    config: ServiceConfig,
    log: Log,
    state: Arc<StateStore>,
    context: ServiceContext,
    flight: ServiceEndpoint,
    admin: ServiceEndpoint,
) -> std::io::Result<Service> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(usize::from(config.flight.threads))
        .max_blocking_threads(usize::from(config.flight.max_reads) + OTHER_BLOCKING_THREADS)
        .thread_name("service")
        .on_thread_start(give_way)
        .enable_all()
        .build()?;
    let (stop, stopping) = watch::channel(false);
    let progress: Vec<Progress> = log.partitions().iter().map(Progress::of).collect();
    let state_progress = progress[state.partition().id().0 as usize].clone();
    let holds = Arc::new(GroupHolds::new(&log, Arc::clone(&state), config.group_idle));
    let shared = Arc::new(Shared {
        reads: Arc::new(Semaphore::new(usize::from(config.flight.max_reads))),
        shares: Shares::new(&config.limits, &context.metrics.flight.read_memory),
        constants: OnceLock::new(),
        backing_up: Mutex::default(),
        groups: Groups::new(state, state_progress, Arc::clone(&holds), &config.limits),
        holds: Arc::clone(&holds),
        log_id: log.id().to_string(),
        progress,
        config,
        log,
        metrics: context.metrics,
        commands: context.commands,
        auth: context.auth,
        bearers: Bearers::new()?,
        reloads: context.reloads,
        stopping: stopping.clone(),
    });
    let entered = runtime.enter();
    let gates = Gates::new(&shared);
    let browser = Browser {
        hosts: Hosts::new(&shared.config.admin.hosts),
        metrics: Arc::clone(&shared.metrics),
        scheme: if admin.tls.is_some() { "https" } else { "http" },
    };
    let flight = Incoming::new(flight.listener, flight.tls, gates.flight)?;
    let admin = Incoming::new(admin.listener, admin.tls, gates.admin)?;
    drop(entered);
    let flight = runtime.spawn(serve_flight(Arc::clone(&shared), flight, stopping.clone()));
    let admin = runtime.spawn(admin::serve(shared, admin, browser, stopping));
    let running = Running {
        runtime,
        flight,
        admin,
    };
    Ok(Service {
        running: Some(running),
        stop,
        holds,
    })
}

/// The gate of each listener.
struct Gates {
    flight: Arc<Gate>,
    admin: Arc<Gate>,
}

impl Gates {
    fn new(shared: &Arc<Shared>) -> Gates {
        let open_files = open_files_max();
        let (flight, admin) = (&shared.config.flight, &shared.config.admin);
        let flight = gate::Limits::new(
            flight_share(open_files),
            flight.max_connections,
            flight.max_pending_connections,
            flight.max_connections_per_ip,
            flight.max_connections_per_user,
            flight.connect_timeout.0,
        );
        let admin = gate::Limits::new(
            admin_share(open_files),
            admin.max_connections,
            admin.max_pending_connections,
            admin.max_connections_per_ip,
            admin.max_connections_per_user,
            admin.connect_timeout.0,
        );
        let gate = |line, limits| {
            let gate = Gate::new(line, limits, Arc::clone(&shared.metrics));
            let (of_reload, auth_service) = (Arc::downgrade(&gate), Arc::downgrade(&shared.auth));
            shared.auth.watch(move || {
                if let (Some(gate), Some(auth_service)) =
                    (of_reload.upgrade(), auth_service.upgrade())
                {
                    gate.review(&auth_service.current());
                }
            });
            gate
        };
        Gates {
            flight: gate(ListenerKind::Flight, flight),
            admin: gate(ListenerKind::Admin, admin),
        }
    }
}

async fn serve_flight(shared: Arc<Shared>, incoming: Incoming, stopping: watch::Receiver<bool>) {
    let message_bytes = shared.config.flight.max_message_bytes.as_usize();
    let service = FlightServiceServer::new(flight::Flight::new(Arc::clone(&shared)))
        .max_decoding_message_size(message_bytes)
        .max_encoding_message_size(usize::MAX);
    let served = tonic::transport::Server::builder()
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_concurrent_streams(u32::from(shared.config.flight.max_streams))
        .http2_max_header_list_size(HEADERS_BYTES_MAX)
        .http2_max_pending_accept_reset_streams(Some(RESETS_MAX))
        .http2_max_local_error_reset_streams(Some(MISTAKES_MAX))
        .http2_keepalive_interval(Some(ALIVE_EVERY))
        .http2_keepalive_timeout(Some(ALIVE_TIMEOUT))
        .add_service(wire::WireService { service, shared })
        .serve_with_incoming_shutdown(incoming, stopped(stopping))
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "the Flight server ended");
    }
}

/// Completes when the broker stops.
async fn stopped(mut stopping: watch::Receiver<bool>) {
    // An error means that the sender is gone, which also means stop.
    let _ = stopping.wait_for(|stop| *stop).await;
}

impl Service {
    /// Ends following reads, gives other calls a few seconds to finish, and closes the listeners.
    pub fn stop(mut self) {
        self.end();
    }

    /// Retention asks this before it removes records that groups may need.
    pub fn holders(&self) -> Arc<dyn Holders> {
        Arc::clone(&self.holds) as Arc<dyn Holders>
    }

    fn end(&mut self) {
        let _ = self.stop.send(true);
        if let Some(running) = self.running.take() {
            // On a separate thread: a broker may be dropped in async code, where blocking would panic.
            let waiting = std::thread::spawn(move || running.end());
            let _ = waiting.join();
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.end();
    }
}
