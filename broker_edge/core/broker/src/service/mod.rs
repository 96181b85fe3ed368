//! The service runtime: Flight and admin HTTP, on their own threads.
//!
//! It reads the log through the log's public interface and never touches a connection of the data plane. Work that may
//! wait for the disk runs on a bounded number of blocking threads, never on an async thread.

pub(crate) mod admin;
pub(crate) mod arrow;
pub(crate) mod authenticate;
mod blocking;
mod callers;
mod connections;
pub(crate) mod error;
mod flight;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
pub(crate) mod groups;
pub(crate) mod ingest;
pub(crate) mod limits;
mod live;
pub(crate) mod office;
mod records;
pub(crate) mod request;
mod samples;
mod shared;

use std::net::TcpListener;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use headwater_log::{Holders, Log};
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::auth::{self, AuthService, ListenerKind};
use crate::cluster::inbox::Inbox;
use crate::config::{Config, FlightSettings};
use crate::descriptors::{admin_share, flight_share, open_files_max};
use crate::event_loop::CommandSender;
use crate::hosts::Hosts;
use crate::log_settings::log_config;
use crate::metrics::Metrics;
use crate::reload::Reloads;
use crate::state::StateStore;
use crate::transport::certificates::TlsContext;
use admin::browser::Browser;
use callers::bearer::Bearers;
use callers::sessions::Sessions;
use callers::shares::Shares;
use connections::gate::{self, Gate};
use connections::incoming::Incoming;
use flight::wire::WireService;
use groups::Groups;
use groups::holds::GroupHolds;
use groups::progress::Progress;
use groups::tenure::Leader;
use limits::Limits;
use office::{Office, OfficeSlot};
use samples::Samples;
use shared::{Addresses, Shared, stopped};

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

/// What the service gets from the rest of the broker, beside the log and its state.
pub struct ServiceContext {
    pub metrics: Arc<Metrics>,
    /// Sends commands to the event loop.
    pub commands: CommandSender,
    pub auth: Arc<AuthService>,
    pub reloads: Arc<Reloads>,
    /// Of a node of a cluster.
    pub cluster: Option<Arc<Inbox>>,
}

/// The running service.
pub struct Service {
    running: Option<Running>,
    stop: watch::Sender<bool>,
    shared: Arc<Shared>,
}

struct Running {
    runtime: Runtime,
    flight: JoinHandle<()>,
    admin: JoinHandle<()>,
    _review: auth::Watcher,
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

fn runtime_of(flight: &FlightSettings) -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(usize::from(flight.threads))
        .max_blocking_threads(usize::from(flight.max_reads) + OTHER_BLOCKING_THREADS)
        .thread_name("service")
        .on_thread_start(give_way)
        .enable_all()
        .build()
}

/// Serves Flight and admin HTTP on bound listeners. Until [`Service::open`], clients are told that this node does not
/// serve them.
///
/// # Errors
/// The system refuses threads or the listeners.
pub(crate) fn start(
    config: &Config,
    log: Log,
    context: ServiceContext,
    flight: ServiceEndpoint,
    admin: ServiceEndpoint,
) -> std::io::Result<Service> {
    let runtime = runtime_of(&config.flight)?;
    let (stop, stopping) = watch::channel(false);
    let addresses = Addresses {
        flight: flight.listener.local_addr()?,
        admin: admin.listener.local_addr()?,
    };
    let shared = share(config, log, context, addresses, stopping.clone())?;
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
    runtime.spawn(live::sample(Arc::clone(&shared), stopping.clone()));
    let admin = runtime.spawn(admin::serve(Arc::clone(&shared), admin, browser, stopping));
    let running = Running {
        runtime,
        flight,
        admin,
        _review: gates.review,
    };
    Ok(Service {
        running: Some(running),
        stop,
        shared,
    })
}

/// What all calls share.
///
/// # Errors
/// The system provides no random bytes.
fn share(
    config: &Config,
    log: Log,
    context: ServiceContext,
    addresses: Addresses,
    stopping: watch::Receiver<bool>,
) -> std::io::Result<Arc<Shared>> {
    let progress: Vec<Progress> = log.partitions().iter().map(Progress::of).collect();
    let limits = Limits::of(config);
    Ok(Arc::new(Shared {
        shares: Shares::new(&limits, &context.metrics.flight.read_memory),
        samples: Samples::new(config.admin.max_streams),
        constants: OnceLock::new(),
        costly_appends: Mutex::default(),
        backing_up: Mutex::default(),
        office: OfficeSlot::default(),
        log_id: log.id().to_string(),
        addresses,
        progress,
        limits,
        classes: log_config(config).classes,
        config: config.clone(),
        log,
        metrics: context.metrics,
        commands: context.commands,
        auth: context.auth,
        bearers: Bearers::new()?,
        sessions: Sessions::new(config.listeners.admin.tls.is_on()),
        reloads: context.reloads,
        cluster: context.cluster,
        stopping,
    }))
}

/// The gate of each listener.
struct Gates {
    flight: Arc<Gate>,
    admin: Arc<Gate>,
    /// Reviews both after a reload.
    review: auth::Watcher,
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
        )
        .with_entry_slots(admin_share(open_files));
        let gate = |line, limits| Gate::new(line, limits, Arc::clone(&shared.metrics));
        let flight = gate(ListenerKind::Flight, flight);
        let admin = gate(ListenerKind::Admin, admin);
        let (reviewed, auth) = ([&flight, &admin].map(Arc::clone), Arc::clone(&shared.auth));
        let review: auth::Watcher = Arc::new(move || {
            reviewed
                .iter()
                .for_each(|gate| gate.review(&auth.current()));
        });
        shared.auth.watch(&review);
        Gates {
            flight,
            admin,
            review,
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
        .add_service(WireService { service, shared })
        .serve_with_incoming_shutdown(incoming, stopped(stopping))
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "the Flight server ended");
    }
}

impl Service {
    /// Serves clients with this state. Retention is to ask what it returns before it removes records that groups may
    /// need.
    pub fn open(&self, state: Arc<StateStore>) -> Arc<dyn Holders> {
        open_office(&self.shared, state)
    }

    /// Ends to serve clients, and says where they are served.
    pub fn leave(&self, leader: Leader) {
        self.shared.office.leave(leader);
    }
}

fn open_office(shared: &Shared, state: Arc<StateStore>) -> Arc<dyn Holders> {
    let idle = shared.config.log.group_idle.map(|idle| idle.0);
    let holds = Arc::new(GroupHolds::new(&shared.log, Arc::clone(&state), idle));
    let progress = shared.progress[state.partition().id().0 as usize].clone();
    let office = shared.office.open(|tenure| Office {
        groups: Groups::new(
            state,
            (progress, tenure.clone()),
            Arc::clone(&holds),
            &shared.limits,
        ),
        holds: Arc::clone(&holds),
        tenure,
    });
    Arc::clone(&office.holds) as Arc<dyn Holders>
}

/// Ends following reads, gives other calls a few seconds to finish, and closes the listeners.
impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(running) = self.running.take() {
            // On a separate thread: a broker may be dropped in async code, where blocking would panic.
            let waiting = std::thread::spawn(move || running.end());
            let _ = waiting.join();
        }
    }
}
