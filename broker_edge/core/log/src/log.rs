//! A log: the partitions of one folder, opened together, and the threads that write and maintain them.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::batch::layout::Identity;
use crate::config::{LogConfig, Seams};
use crate::error::{OpenError, ReadError};
use crate::failpoint;
use crate::ids::{Class, Epoch, LogId, Offset, PartitionId, Secret};
use crate::partition::{Gap, Holders, Partition};
use crate::read::batch_headers::Heads;
use crate::read::tail::Tail;
use crate::recovery::meta::{Meta, write_error};
use crate::recovery::sealed::{Findings, create, recover};
use crate::retention::age::AgeClock;
use crate::retention::maintenance::maintain;
use crate::route::{Route, Router};
use crate::state::context::{Context, INTERNAL_SEGMENT_BYTES};
use crate::state::core::Core;
use crate::state::disk_budget::{Disk, DiskUse};
use crate::state::stats::{Counted, Counters};
use crate::vfs::files::{Files, LockError, LockGuard};

/// Room for a header and a few batches: smaller segments would only cost files.
const SEGMENT_BYTES_MIN: u64 = 16 << 10;

/// What opening found, per partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The log did not exist before.
    pub created: bool,
    pub partitions: Vec<PartitionReport>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionReport {
    pub name: String,
    pub log_start: Offset,
    pub high_watermark: Offset,
    /// Bytes of an unfinished write that were cut off and kept aside.
    pub torn_bytes: u64,
    pub gaps: Vec<Gap>,
    pub rebuilt_indexes: usize,
    pub notes: Vec<String>,
}

/// A cheap handle; clones name the same log. The last one to go shuts it down.
#[derive(Clone)]
pub struct Log(Arc<Inner>);

struct Inner {
    id: LogId,
    partitions: Vec<Partition>,
    router: Router,
    stopping: Arc<Stopping>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    _lock: LockGuard,
}

#[derive(Default)]
struct Stopping {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Log {
    /// Opens or creates the log in `config.dir` and holds its lock until the last handle is gone.
    pub fn open(config: LogConfig, seams: Seams) -> Result<(Self, RecoveryReport), OpenError> {
        check_settings(&config)?;
        let dir = config.dir.as_path();
        seams
            .files
            .create_dir(dir)
            .map_err(|source| write_error(dir, source))?;
        let lock = lock(&seams, dir)?;
        let (mut meta, created) = load_or_create(&config, &seams)?;
        let id = meta.log_id(dir)?;
        let newest = Epoch(meta.epoch);
        let epoch = crate::faults::epoch_of_start(meta.epoch);
        failpoint!("recovery-begun");
        crate::faults::set_recovering(true);
        let contexts = contexts(&config, &seams, (id, meta.secret), epoch);
        let tail = Arc::new(Tail::new(contexts.len(), config.tail_bytes));
        let heads = Arc::new(Heads::new(config.heads_bytes));
        let mut report = RecoveryReport {
            created,
            partitions: Vec::new(),
        };
        let mut partitions = Vec::with_capacity(contexts.len());
        for context in contexts {
            let (parts, findings) = if newest == Epoch(0) {
                (create(&context)?, Findings::default())
            } else {
                recover(&context, newest)?
            };
            failpoint!("recovery-partition-done");
            let core = Core::new(context, parts, Arc::clone(&tail), Arc::clone(&heads));
            report.partitions.push(partition_report(&core, findings));
            partitions.push(Partition(Arc::new(core)));
        }
        // Before the first append, so that no epoch is used by two starts; and only when every partition folder is
        // there, so that one that is missing later is known to be lost.
        seams
            .files
            .sync_dir(dir)
            .map_err(|source| write_error(dir, source))?;
        crate::faults::set_recovering(false);
        failpoint!("meta-begun");
        meta.epoch = epoch.0;
        meta.save(&*seams.files, dir)?;
        failpoint!("meta-saved");
        let stopping = Arc::new(Stopping::default());
        let threads = start_threads(&partitions, &stopping, &config)?;
        failpoint!("start-threads");
        let router = Router::new(&config.classes);
        let threads = Mutex::new(threads);
        let inner = Inner {
            id,
            partitions,
            router,
            stopping,
            threads,
            _lock: lock,
        };
        Ok((Self(Arc::new(inner)), report))
    }

    #[must_use]
    pub fn id(&self) -> LogId {
        self.0.id
    }

    /// All partitions; the index is the partition's number.
    #[must_use]
    pub fn partitions(&self) -> &[Partition] {
        &self.0.partitions
    }

    #[must_use]
    pub fn partition(&self, id: PartitionId) -> Option<&Partition> {
        self.0.partitions.get(id.0 as usize)
    }

    /// The partition of a name such as `telemetry-0`.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<&Partition> {
        self.0
            .partitions
            .iter()
            .find(|partition| partition.name() == name)
    }

    /// Where records of a topic go. Pure: keep the answer per topic.
    #[must_use]
    pub fn route(&self, topic: &str) -> Route {
        self.0.router.route(topic)
    }

    /// Does now what the maintenance thread does from time to time: retention, index files, idle marks, spare segments.
    pub fn maintain(&self) {
        maintain(&self.0.partitions);
    }

    /// How the disk budget stands, as of the last look of the maintenance thread.
    #[must_use]
    pub fn disk_use(&self) -> DiskUse {
        self.0
            .partitions
            .first()
            .map(|first| first.0.context.disk.usage())
            .expect("a log has at least one partition")
    }

    /// Has retention ask `holders` before it removes what its class would let go.
    pub fn hold_with(&self, holders: &Arc<dyn Holders>) {
        for partition in &self.0.partitions {
            *partition.0.holders.write() = Some(Arc::clone(holders));
        }
    }

    /// Writes the indexes and lists of topics that are not on disk yet.
    pub(crate) fn save_indexes(&self) -> Result<(), ReadError> {
        for partition in &self.0.partitions {
            partition.0.save_indexes();
            // Reading them writes the list when it covers too little.
            partition.0.with_sealed_topics(|_| ())?;
        }
        Ok(())
    }

    /// Writes and syncs what is queued, marks the clean stop and refuses further appends. Idempotent.
    pub fn shutdown(&self) {
        self.0.shutdown();
    }
}

impl Inner {
    fn shutdown(&self) {
        *self.stopping.is_set.lock() = true;
        self.stopping.changed.notify_all();
        for partition in &self.partitions {
            partition.0.queue.lock().closing = true;
            partition.0.queue_changed.notify_all();
            // They may hold partitions, and would keep each other for ever.
            *partition.0.holders.write() = None;
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        let current = std::thread::current().id();
        for thread in threads {
            // A watcher that drops the last handle runs on a writer, which can not wait for itself.
            if thread.thread().id() != current && thread.join().is_err() {
                tracing::error!("a thread of the log has panicked");
            }
        }
        for partition in &self.partitions {
            // These may hold partitions as well. Nothing is removed any more: nobody could be asked.
            *partition.0.hooks.write() = vec![Arc::new(|_| false)];
            *partition.0.watchers.write() = Arc::default();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shutdown();
    }
}

fn check_settings(config: &LogConfig) -> Result<(), OpenError> {
    let wrong = |reason: String| Err(OpenError::Settings { reason });
    if config.classes.is_empty() {
        return wrong("a log needs at least one class".to_owned());
    }
    for (at, class) in config.classes.iter().enumerate() {
        if class.partitions == 0 {
            return wrong(format!(
                "class {} needs at least one partition",
                class.class
            ));
        }
        if config.classes[..at]
            .iter()
            .any(|before| before.class == class.class)
        {
            return wrong(format!("class {} is there twice", class.class));
        }
    }
    if config.segment_bytes < SEGMENT_BYTES_MIN {
        let reason = format!(
            "segment_bytes is {}, the least is {SEGMENT_BYTES_MIN}",
            config.segment_bytes
        );
        return wrong(reason);
    }
    Ok(())
}

fn lock(seams: &Seams, dir: &Path) -> Result<LockGuard, OpenError> {
    let path = dir.join("lock");
    seams.files.lock(&path).map_err(|error| match error {
        LockError::Held { holder } => OpenError::InUse {
            dir: dir.to_owned(),
            pid: holder,
        },
        LockError::Io(source) => write_error(&path, source),
    })
}

/// The checked `log.meta`, and whether it is new.
fn load_or_create(config: &LogConfig, seams: &Seams) -> Result<(Meta, bool), OpenError> {
    let (dir, files) = (config.dir.as_path(), &*seams.files);
    if let Some(meta) = Meta::load(files, dir)? {
        let found = meta.log_id(dir)?;
        if let Some(expected) = config.expected_id.filter(|expected| *expected != found) {
            return Err(OpenError::OtherLog {
                dir: dir.to_owned(),
                expected,
                found,
            });
        }
        meta.check(dir, &config.classes)?;
        return Ok((meta, false));
    }
    let listed = files.list(dir);
    let names = listed.map_err(|source| OpenError::Io {
        action: "list",
        path: dir.to_owned(),
        source,
    })?;
    let is_partition = |name: &String| {
        let class = name.rsplit_once('-').map(|(class, _)| class);
        class.is_some_and(|class| Class::from_name(class).is_some())
    };
    // The second stands where a restore has not finished.
    if names
        .iter()
        .any(|name| is_partition(name) || name == "restoring")
    {
        return Err(OpenError::MetaMissing {
            dir: dir.to_owned(),
        });
    }
    let failed = |source| OpenError::Io {
        action: "read",
        path: "/dev/urandom".into(),
        source,
    };
    let id = match config.expected_id {
        Some(id) => id,
        None => random_id().map_err(failed)?,
    };
    let secret = random_secret().map_err(failed)?;
    sync_names_of(files, dir)?;
    let meta = Meta::new(id, secret, seams.clock.now_us(), &config.classes);
    meta.save(files, dir)?;
    Ok((meta, true))
}

/// Makes the names that lead to a new log durable: with one of them a power cut would take all that was acknowledged.
pub(crate) fn sync_names_of(files: &dyn Files, dir: &Path) -> Result<(), OpenError> {
    for parent in dir.ancestors().skip(1) {
        let parent = if parent.as_os_str().is_empty() {
            Path::new(".")
        } else {
            parent
        };
        match files.sync_dir(parent) {
            // Not ours to open, so not made by us, or of a file system that has nothing to sync there.
            Err(error)
                if !matches!(
                    error.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput
                ) =>
            {
                return Err(write_error(parent, error));
            }
            _ => {}
        }
    }
    Ok(())
}

pub(crate) fn random_id() -> io::Result<LogId> {
    Ok(LogId::from_random(random()?))
}

pub(crate) fn random_secret() -> io::Result<Secret> {
    Ok(Secret::from_bytes(random()?))
}

fn random<const BYTES: usize>() -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn contexts(
    config: &LogConfig,
    seams: &Seams,
    (log_id, secret): (LogId, Secret),
    epoch: Epoch,
) -> Vec<Context> {
    let mut contexts: Vec<Context> = Vec::new();
    let ages = Arc::new(AgeClock::default());
    let disk = Arc::new(Disk::new(config.disk.clone(), &config.dir));
    for class in &config.classes {
        for number in 0..class.partitions {
            let name = format!("{}-{number}", class.class);
            let segment_bytes = match class.class {
                Class::Internal => config.segment_bytes.min(INTERNAL_SEGMENT_BYTES),
                _ => config.segment_bytes,
            };
            let counters = Arc::new(Counters::default());
            let counted = Counted {
                files: Arc::clone(&seams.files),
                counters: Arc::clone(&counters),
            };
            contexts.push(Context {
                dir: config.dir.join(&name),
                name,
                class: class.class,
                identity: Identity {
                    log_id,
                    partition: PartitionId(contexts.len() as u32),
                    secret,
                },
                epoch,
                seams: Seams {
                    files: Arc::new(counted),
                    clock: Arc::clone(&seams.clock),
                },
                sync: config.sync,
                segment_bytes,
                queue_bytes: config.queue_bytes,
                retention_bytes: class.retention_bytes,
                retention_age: class.retention_age,
                honours_holds: class.honours_holds,
                removes_at_once: config.removes_at_once,
                retention_hard_bytes: class.retention_hard_bytes,
                counters,
                ages: Arc::clone(&ages),
                disk: Arc::clone(&disk),
            });
        }
    }
    contexts
}

fn partition_report(core: &Core, findings: Findings) -> PartitionReport {
    let gaps = core.gaps();
    for gap in &gaps {
        tracing::error!(
            partition = %core.context.name, start = gap.range.start.0, end = gap.range.end.0, kind = gap.kind.name(),
            reason = %gap.reason, "offsets are gone"
        );
    }
    for note in &findings.notes {
        tracing::warn!(partition = %core.context.name, "{note}");
    }
    PartitionReport {
        name: core.context.name.clone(),
        log_start: core.log_start(),
        high_watermark: core.high_watermark(),
        torn_bytes: findings.torn_bytes,
        gaps,
        rebuilt_indexes: findings.rebuilt_indexes,
        notes: findings.notes,
    }
}

fn start_threads(
    partitions: &[Partition],
    stopping: &Arc<Stopping>,
    config: &LogConfig,
) -> Result<Vec<JoinHandle<()>>, OpenError> {
    let failed = |source| OpenError::Io {
        action: "start a thread for",
        path: config.dir.clone(),
        source,
    };
    let mut threads = Vec::with_capacity(partitions.len() + 1);
    for partition in partitions {
        let core = Arc::clone(&partition.0);
        let thread = std::thread::Builder::new().name(format!("log-{}", core.context.name));
        threads.push(thread.spawn(move || core.run_writer()).map_err(failed)?);
    }
    let Some(maintain_every) = config.maintain_every else {
        return Ok(threads);
    };
    let unread: Vec<Partition> = partitions
        .iter()
        .filter(|partition| partition.0.begin_topics())
        .cloned()
        .collect();
    if !unread.is_empty() {
        let read = move || unread.iter().for_each(|p| p.0.read_topics_behind());
        let thread = std::thread::Builder::new().name("log-topics".to_owned());
        threads.push(thread.spawn(read).map_err(failed)?);
    }
    let partitions = partitions.to_vec();
    let stopping = Arc::clone(stopping);
    let maintain = move || {
        loop {
            maintain(&partitions);
            let mut is_set = stopping.is_set.lock();
            if !*is_set {
                stopping.changed.wait_for(&mut is_set, maintain_every);
            }
            if *is_set {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("log-maintenance".to_owned());
    threads.push(thread.spawn(maintain).map_err(failed)?);
    Ok(threads)
}
