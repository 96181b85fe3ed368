//! The interface to MQTT: what the broker passes to the data plane, and how it stops it.
//!
//! One loop thread serves every connection. It gets an open log and bound sockets. When [`start`] returns, sessions and
//! retained messages are restored and the listeners are registered.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use headwater_log::Log;
use mio::{Poll, Waker};

use crate::auth::AuthService;
use crate::config::{BrokerSettings, MqttSettings, Quota, QuotaSettings};
use crate::descriptors::{connections_room, open_files_max};
use crate::engine::{Engine, Now, QuotaKind, QuotaLimits, Settings};
use crate::event_loop::{
    CommandSender, Commands, EventLoop, LoopSettings, LoopWaker, WAKER, queue,
};
use crate::metrics::Metrics;
use crate::state::StateStore;
use crate::transport::BoundListener;

/// The settings of the data plane.
#[derive(Clone, Debug)]
pub struct DataPlaneConfig {
    pub mqtt: MqttSettings,
    pub broker: BrokerSettings,
    pub quotas: QuotaSettings,
    /// Acknowledge records that are written but not yet synced.
    pub ack_written: bool,
    pub sys_interval: Duration,
}

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

/// Starts serving bound listeners.
///
/// # Errors
/// The system refuses a thread or a poll, or retained messages cannot be read from the log.
pub(crate) fn start(
    loop_parts: LoopParts,
    config: DataPlaneConfig,
    log: Log,
    state: Arc<StateStore>,
    metrics: Arc<Metrics>,
    auth: Arc<AuthService>,
    listeners: Vec<BoundListener>,
) -> io::Result<DataPlane> {
    let LoopParts {
        poll,
        waker,
        sender,
        commands,
    } = loop_parts;
    for partition in log.partitions() {
        let waker = Arc::clone(&waker);
        partition.watch(Arc::new(move || waker.wake()));
    }
    let (ready, started) = sync_channel(1);
    // The engine is built on the thread that owns it, because it is not `Send`.
    let thread = std::thread::Builder::new()
        .name("loop-0".to_owned())
        .spawn(move || {
            let settings = settings(&config);
            let loop_settings = LoopSettings {
                mqtt: &config.mqtt,
                broker: &config.broker,
            };
            let loop_metrics = Arc::clone(&metrics);
            let event_loop = Engine::new(settings, log, state, metrics, start_of_time())
                .map_err(io::Error::other)
                .and_then(|mut engine| {
                    let own = Arc::clone(&waker);
                    engine.set_auth(auth, Arc::new(move || own.wake()));
                    EventLoop::new(
                        poll,
                        waker,
                        commands,
                        listeners,
                        engine,
                        loop_metrics,
                        &loop_settings,
                    )
                });
            match event_loop {
                Ok(event_loop) => {
                    // An error means that the starter is gone; then the command channel is closed as well.
                    let _ = ready.send(Ok(()));
                    event_loop.run();
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            }
        })?;
    started.recv().map_err(io::Error::other)??;
    Ok(DataPlane {
        commands: sender,
        thread: Some(thread),
    })
}

fn settings(config: &DataPlaneConfig) -> Settings {
    Settings {
        mqtt: config.mqtt.clone(),
        quotas: quotas(config),
        ack_written: config.ack_written,
        sys_interval_ms: u64::try_from(config.sys_interval.as_millis()).unwrap_or(u64::MAX),
        ..Settings::default()
    }
}

/// A tenant's limits are those set, otherwise half of the total. A user's limits are those of its tenant.
fn quotas(config: &DataPlaneConfig) -> QuotaLimits {
    let (mqtt, broker) = (&config.mqtt, &config.broker);
    let of = |kind: QuotaKind, quota: &Quota| match kind {
        QuotaKind::Sessions => quota.sessions.map(u64::from),
        QuotaKind::Connections => quota.connections.map(u64::from),
        QuotaKind::Subscriptions => quota.subscriptions.map(u64::from),
        QuotaKind::SharedGroups => quota.shared_groups.map(u64::from),
        QuotaKind::SharedMembers => quota.shared_members.map(u64::from),
        QuotaKind::Retained => quota.retained.map(u64::from),
        QuotaKind::RetainedBytes => quota.retained_bytes.map(|bytes| bytes.0),
        QuotaKind::SessionBytes => quota.session_bytes.map(|bytes| bytes.0),
        QuotaKind::Topics => quota.topics.map(u64::from),
    };
    let in_all = |kind: QuotaKind| match kind {
        QuotaKind::Sessions => mqtt.max_sessions.into(),
        // The descriptors may allow fewer connections than configured, and half of an unreachable number would be no
        // limit.
        QuotaKind::Connections => {
            u64::from(broker.max_connections).min(connections_room(open_files_max()))
        }
        QuotaKind::Subscriptions => mqtt.max_total_subscriptions.into(),
        QuotaKind::SharedGroups => mqtt.max_shared_groups.into(),
        QuotaKind::SharedMembers => mqtt.max_shared_members.into(),
        QuotaKind::Retained => mqtt.max_retained.into(),
        QuotaKind::RetainedBytes => mqtt.max_retained_bytes.0,
        QuotaKind::SessionBytes => mqtt.max_session_bytes.0,
        QuotaKind::Topics => u64::MAX,
    };
    let half = |kind| match in_all(kind) {
        u64::MAX => u64::MAX,
        all => all.div_ceil(2),
    };
    let tenant = QuotaKind::ALL.map(|kind| of(kind, &config.quotas.tenant).unwrap_or(half(kind)));
    let mut user = tenant;
    for (limit, kind) in user.iter_mut().zip(QuotaKind::ALL) {
        *limit = of(kind, &config.quotas.user).unwrap_or(*limit);
    }
    QuotaLimits { tenant, user }
}

/// The start time of the loop's clock.
fn start_of_time() -> Now {
    let wall = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Now {
        mono_ms: 0,
        wall_us: i64::try_from(wall.as_micros()).unwrap_or(i64::MAX),
    }
}

impl DataPlane {
    /// Closes every connection, stores the sessions and waits for the loop.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        self.commands.stop();
        if thread.join().is_err() {
            tracing::error!("the loop thread panicked");
        }
    }
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        self.end();
    }
}
