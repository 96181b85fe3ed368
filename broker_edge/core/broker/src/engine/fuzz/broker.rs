//! The broker of a script: an engine on a log in memory, with a clock that the script moves.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use headwater_log::{Class, Clock, Log, LogConfig, Offset, Seams, SyncMode, Watcher};

use crate::config::MqttSettings;
use crate::config::units::ByteSize;
use crate::engine::{Engine, Now, Settings};
use crate::fuzz::memory_files::MemoryFiles;
use crate::metrics::Metrics;
use crate::state::StateStore;

/// When a script begins, in Unix microseconds.
pub(super) const START_US: i64 = 1_700_000_000_000_000;
const READ_BYTES: usize = 1 << 20;

/// The wall clock of the log, in Unix microseconds.
pub(super) struct ScriptClock(pub(super) AtomicI64);

impl Clock for ScriptClock {
    fn now_us(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    fn steady(&self) -> Duration {
        let since_us = self.now_us() - START_US;
        Duration::from_micros(u64::try_from(since_us).unwrap_or(0))
    }
}

/// An engine and its open log.
pub(super) struct Broker {
    pub(super) engine: Engine,
    pub(super) log: Log,
    /// Told when the log has moved.
    pub(super) moved: Receiver<()>,
    _watcher: Watcher,
}

impl Broker {
    pub(super) fn open(files: &MemoryFiles, clock: &Arc<ScriptClock>, now: Now) -> Self {
        let mut config = LogConfig::new("/log");
        config.sync = SyncMode::Never;
        config.segment_bytes = 32 << 10;
        config.tail_bytes = 64 << 10;
        config.queue_bytes = 1 << 20;
        config.maintain_every = None;
        config
            .classes
            .retain(|class| matches!(class.class, Class::Internal | Class::Telemetry));
        let seams = Seams {
            files: Arc::new(files.clone()),
            clock: Arc::clone(clock) as Arc<dyn Clock>,
        };
        let (log, _) = Log::open(config, seams).expect("a log opens in its own folder");
        let state = StateStore::open(&log, 16 << 10).expect("state follows from the log");
        let (tell, moved) = channel();
        let watcher: Watcher = Arc::new(move || {
            // An error means that the script has ended.
            let _ = tell.send(());
        });
        for partition in log.partitions() {
            partition.watch(&watcher);
        }
        static METRICS: OnceLock<Arc<Metrics>> = OnceLock::new();
        let metrics = Arc::clone(METRICS.get_or_init(Arc::default));
        let engine = Engine::new(settings(), log.clone(), Arc::new(state), metrics, now)
            .expect("the engine reads its log");
        Self {
            engine,
            log,
            moved,
            _watcher: watcher,
        }
    }

    /// The number of offsets assigned, if all of them are readable.
    pub(super) fn quiet_at(&self) -> Option<u64> {
        let mut given = 0;
        for partition in self.log.partitions() {
            let next = partition.next_offset();
            if next != partition.high_watermark() {
                return None;
            }
            given += next.0;
        }
        Some(given)
    }

    pub(super) fn check_log(&self) {
        for partition in self.log.partitions() {
            let mut next: Offset = partition.log_start();
            while next < partition.high_watermark() {
                let batches = partition.read(next, READ_BYTES);
                let batches = batches.expect("nothing is damaged");
                let end = batches.iter().map(|batch| batch.next_offset()).max();
                assert!(end > Some(next), "offset {next:?} cannot be read");
                next = end.unwrap_or(next);
            }
        }
    }
}

/// Small, so that a script reaches the limits.
fn settings() -> Settings {
    Settings {
        mqtt: MqttSettings {
            receive_budget_bytes: ByteSize(256 << 10),
            max_inflight: 4,
            receive_maximum: 4,
            max_subscriptions: 4,
            max_sessions: 4,
            max_retained: 4,
            ..MqttSettings::default()
        },
        ..Settings::default()
    }
}
