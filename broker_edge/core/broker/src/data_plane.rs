//! The interface to MQTT: what the broker passes to the data plane, and how it stops it.
//!
//! One loop thread serves every connection. It gets an open log and bound sockets. When [`start`] returns, sessions and
//! retained messages are restored and the listeners are registered.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use headwater_log::Log;
use mio::{Poll, Waker};

use crate::auth::AuthService;
use crate::clock::now_us;
use crate::config::{Config, Quota};
use crate::descriptors::{connections_room, open_files_max};
use crate::engine::{Now, QuotaKind, QuotaLimits, Settings};
use crate::event_loop::{
    CommandSender, Commands, Doors, EngineParts, LoopWaker, Seat, WAKER, queue,
};
use crate::log_settings::{acks_written, queued_records_max};
use crate::metrics::Metrics;
use crate::state::StateStore;
use crate::transport::BoundListener;

/// The running data plane. Stopping it closes every connection and waits for its threads.
pub struct DataPlane {
    commands: CommandSender,
    thread: Option<JoinHandle<()>>,
}

/// The poll and the command queue of a loop, created early so that other parts can already get its [`CommandSender`].
pub struct LoopParts {
    poll: Poll,
    waker: Arc<LoopWaker>,
    sender: CommandSender,
    commands: Commands,
}

impl LoopParts {
    /// # Errors
    /// The system refuses a poll.
    pub fn new() -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(LoopWaker::new(Waker::new(poll.registry(), WAKER)?));
        let (sender, commands) = queue(Arc::clone(&waker));
        Ok(Self {
            poll,
            waker,
            sender,
            commands,
        })
    }

    /// Sends commands to the loop. Commands sent before it runs wait for it.
    pub fn commands(&self) -> CommandSender {
        self.sender.clone()
    }
}

/// What the data plane is started with, beside its parts.
pub(crate) struct DataPlaneContext {
    pub config: Config,
    pub log: Log,
    pub metrics: Arc<Metrics>,
    pub auth: Arc<AuthService>,
    pub listeners: Vec<BoundListener>,
}

/// Takes connections of bound listeners: serves clients with this state, or without one sends them elsewhere until
/// [`Command::Open`](crate::event_loop::Command::Open).
///
/// # Errors
/// The system refuses a thread or a poll, or retained messages cannot be read from the log.
pub(crate) fn start(
    loop_parts: LoopParts,
    context: DataPlaneContext,
    state: Option<Arc<StateStore>>,
) -> io::Result<DataPlane> {
    let sender = loop_parts.commands();
    let (ready, started) = sync_channel(1);
    // The engine is built on the thread that owns it, because it is not `Send`.
    let thread = std::thread::Builder::new()
        .name("loop-0".to_owned())
        .spawn(move || match seat(loop_parts, context, state) {
            Ok((seat, parts)) => {
                // An error means that the starter is gone; then the command channel is closed as well.
                let _ = ready.send(Ok(()));
                seat.run(&parts);
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        })?;
    started.recv().map_err(io::Error::other)??;
    Ok(DataPlane {
        commands: sender,
        thread: Some(thread),
    })
}

impl DataPlane {
    /// Sends commands to the loop.
    pub fn commands(&self) -> CommandSender {
        self.commands.clone()
    }
}

fn seat(
    loop_parts: LoopParts,
    context: DataPlaneContext,
    state: Option<Arc<StateStore>>,
) -> io::Result<(Seat, EngineParts)> {
    let DataPlaneContext {
        config,
        log,
        metrics,
        auth,
        listeners,
    } = context;
    let parts = EngineParts {
        settings: settings(&config),
        log,
        metrics: Arc::clone(&metrics),
        auth,
        waker: Arc::clone(&loop_parts.waker),
    };
    // Before the listeners: nobody is accepted while the state is restored.
    let engine = state
        .map(|state| parts.build(state, start_of_time()))
        .transpose()?;
    let LoopParts {
        poll,
        waker,
        commands,
        ..
    } = loop_parts;
    let doors = Doors::new(poll, waker, commands, listeners, metrics, &config)?;
    let seat = match engine {
        Some(engine) => Seat::serving(doors, engine),
        None => Seat::standby(doors),
    };
    Ok((seat, parts))
}

fn settings(config: &Config) -> Settings {
    Settings {
        mqtt: config.mqtt.clone(),
        quotas: quotas(config),
        ack_written: acks_written(&config.log),
        sys_interval_ms: config.sys.interval.as_ms(),
        queued_records_max: queued_records_max(&config.log),
        ..Settings::default()
    }
}

/// A tenant's limits are those set, otherwise half of the total. A user's limits are those of its tenant.
fn quotas(config: &Config) -> QuotaLimits {
    let (mqtt, broker) = (&config.mqtt, &config.broker);
    // The descriptors may allow fewer connections than configured, and half of an unreachable number would be no limit.
    let connections = u64::from(broker.max_connections).min(connections_room(open_files_max()));
    // What is set for one, and how much all have.
    let of = |kind: QuotaKind, quota: &Quota| -> (Option<u64>, u64) {
        let (own, all) = match kind {
            QuotaKind::Sessions => (quota.sessions, mqtt.max_sessions.into()),
            QuotaKind::Connections => (quota.connections, connections),
            QuotaKind::Subscriptions => (quota.subscriptions, mqtt.max_total_subscriptions.into()),
            QuotaKind::SharedGroups => (quota.shared_groups, mqtt.max_shared_groups.into()),
            QuotaKind::SharedMembers => (quota.shared_members, mqtt.max_shared_members.into()),
            QuotaKind::Retained => (quota.retained, mqtt.max_retained.into()),
            QuotaKind::Topics => (quota.topics, u64::MAX),
            QuotaKind::RetainedBytes => {
                return (
                    quota.retained_bytes.map(|bytes| bytes.0),
                    mqtt.max_retained_bytes.0,
                );
            }
            QuotaKind::SessionBytes => {
                return (
                    quota.session_bytes.map(|bytes| bytes.0),
                    mqtt.max_session_bytes.0,
                );
            }
        };
        (own.map(u64::from), all)
    };
    let tenant = QuotaKind::ALL.map(|kind| match of(kind, &config.quotas.tenant) {
        (Some(own), _) => own,
        (None, u64::MAX) => u64::MAX,
        (None, all) => all.div_ceil(2),
    });
    let mut user = tenant;
    for (limit, kind) in user.iter_mut().zip(QuotaKind::ALL) {
        *limit = of(kind, &config.quotas.user).0.unwrap_or(*limit);
    }
    QuotaLimits { tenant, user }
}

/// The start time of the loop's clock.
fn start_of_time() -> Now {
    Now {
        mono_ms: 0,
        wall_us: now_us(),
    }
}

/// Closes every connection, stores the sessions and waits for the loop.
impl Drop for DataPlane {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        self.commands.stop();
        if thread.join().is_err() {
            tracing::error!("the loop thread panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use headwater_log::{LogConfig, Seams};

    use super::*;

    #[test]
    fn a_data_plane_leaves_nothing_on_an_open_log() {
        let dir = tempfile::tempdir().expect("a folder");
        let (log, _) = Log::open(LogConfig::new(dir.path()), Seams::system()).expect("a log");
        let state = Arc::new(StateStore::open(&log, 1 << 20).expect("an empty store"));
        let config = Config::default();
        let auth_service = AuthService::start(&config.auth, true).expect("no files");
        for _ in 0..3 {
            let loop_parts = LoopParts::new().expect("a poll");
            let waker = Arc::downgrade(&loop_parts.waker);
            let context = DataPlaneContext {
                config: config.clone(),
                log: log.clone(),
                metrics: Arc::default(),
                auth: Arc::clone(&auth_service),
                listeners: Vec::new(),
            };
            let data_plane = start(loop_parts, context, Some(Arc::clone(&state)));
            drop(data_plane.expect("no listeners"));
            assert!(
                waker.upgrade().is_none(),
                "the loop would be woken for ever"
            );
            assert_eq!(
                [Arc::strong_count(&state), Arc::strong_count(&auth_service)],
                [1; 2]
            );
        }
    }
}
