//! A log: the partitions of one folder, opened together, and the threads that write and maintain them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use crate::batch::layout::Identity;
use crate::config::{LogConfig, ReplicaConfig};
use crate::error::{OpenError, ReadError};
use crate::failpoint;
use crate::ids::{Class, DiskId, Epoch, LogId, Offset, PartitionId, Secret};
use crate::partition::Partition;
use crate::read::gap::Gap;
use crate::read::tail::Tail;
use crate::recovery::anew::begin_anew;
use crate::recovery::log_folder::{load_or_create, lock};
use crate::recovery::partition::{create, recover};
use crate::recovery::quarantine::Findings;
use crate::retention::age::AgeClock;
use crate::retention::holds::Holders;
use crate::retention::maintenance::maintain;
use crate::retention::rules::Retention;
use crate::route::{Route, Router};
use crate::state::context::Context;
use crate::state::disk_budget::{DiskBudget, DiskUse};
use crate::state::stats::{Counted, Counters};
use crate::vfs::clock::Seams;
use crate::vfs::files::{Files, LockGuard};

/// The internal partition is compacted often, and its spare segment is prepared whole.
const INTERNAL_SEGMENT_BYTES: u64 = 8 << 20;

/// What a start found, per partition.
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

/// A cheap handle; clones name the same log. Dropping the last one shuts the log down.
#[derive(Clone)]
pub struct Log(Arc<Inner>);

struct Inner {
    id: LogId,
    secret: Secret,
    disk_id: Option<DiskId>,
    partitions: Vec<Partition>,
    upkeep: Arc<Upkeep>,
    router: Router,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// What the writers have to do at the end is done by whoever shuts the log down.
    has_writers: AtomicBool,
    _lock: LockGuard,
}

/// The work of the maintenance thread.
struct Upkeep {
    partitions: Vec<Partition>,
    budget: Arc<DiskBudget>,
    files: Arc<dyn Files>,
    key_filter_bytes: usize,
}

impl Upkeep {
    fn once(&self) {
        let owners = self.partitions.iter().map(Partition::owners);
        let retentions: Vec<&Retention> = owners.map(|owners| &owners.retention).collect();
        maintain(
            &retentions,
            &self.budget,
            &*self.files,
            self.key_filter_bytes,
        );
    }

    fn stop(&self) {
        self.budget.end_waits();
    }

    fn run(&self, every: std::time::Duration) {
        loop {
            self.once();
            if !self.budget.wait(every) {
                return;
            }
        }
    }
}

impl Log {
    /// Opens or creates the log in `config.dir` and holds its lock until the last handle is gone.
    pub fn open(config: LogConfig, seams: Seams) -> Result<(Self, RecoveryReport), OpenError> {
        config.check()?;
        let dir = config.dir.as_path();
        let write_failed = |source| OpenError::write(dir, source);
        seams.files.create_dir(dir).map_err(write_failed)?;
        let lock = lock(&seams, dir)?;
        let (mut meta, created) = load_or_create(&config, &seams)?;
        let id = meta.log_id(dir)?;
        let is_new = meta.epoch == 0;
        let (newest, epoch) = match &config.replica {
            None => (Epoch(meta.epoch), crate::faults::epoch_of_start(meta.epoch)),
            // Terms are begun by leaders, not by starts. The file that has the newest one may be lost.
            Some(replica) => {
                let epoch = Epoch(replica.epoch.0.max(meta.epoch).max(1));
                (Epoch(u64::MAX), epoch)
            }
        };
        failpoint!("recovery-begun");
        crate::faults::set_recovering(true);
        let contexts = contexts(&config, &seams, (id, meta.secret), epoch);
        let tail = Arc::new(Tail::new(contexts.len(), config.tail_bytes));
        let budget = Arc::new(DiskBudget::new(config.disk.clone(), &config.dir));
        let ages = Arc::new(AgeClock::default());
        let mut report = RecoveryReport {
            created,
            partitions: Vec::new(),
        };
        let mut partitions = Vec::with_capacity(contexts.len());
        for context in contexts {
            let number = context.identity.partition.0 as usize;
            let noted = |replica: &ReplicaConfig| replica.committed.get(number).copied();
            let committed = config
                .replica
                .as_ref()
                .map(|it| noted(it).unwrap_or_default());
            let anew = |replica: &ReplicaConfig| replica.begin_anew_at.get(number).copied()?;
            let anew_at = config.replica.as_ref().and_then(anew);
            if let Some(at) = anew_at {
                begin_anew(&context, at)
                    .map_err(|source| OpenError::write(&context.dir, source))?;
            }
            let (recovered, findings) = if is_new && anew_at.is_none() {
                (create(&context)?, Findings::default())
            } else {
                recover(&context, newest, committed)?
            };
            failpoint!("recovery-partition-done");
            let partition = Partition::new(context, recovered, &tail, &budget, &ages);
            report
                .partitions
                .push(partition_report(&partition, findings));
            partitions.push(partition);
        }
        let epoch = match &config.replica {
            None => epoch,
            Some(_) => go_on_in_newest_epoch(&partitions, epoch),
        };
        // Before the first append, so that no two starts use the same epoch; and only when every partition folder
        // exists, so that a folder that is missing later is known to be lost.
        seams.files.sync_dir(dir).map_err(write_failed)?;
        crate::faults::set_recovering(false);
        failpoint!("meta-begun");
        meta.epoch = epoch.0;
        meta.save(&*seams.files, dir)?;
        failpoint!("meta-saved");
        let upkeep = Arc::new(Upkeep {
            partitions: partitions.clone(),
            budget,
            files: Arc::clone(&seams.files),
            key_filter_bytes: config.key_filter_bytes,
        });
        let threads = start_threads(&upkeep, &config)?;
        failpoint!("start-threads");
        let inner = Inner {
            id,
            secret: meta.secret,
            disk_id: meta.member.as_ref().map(|member| member.disk),
            partitions,
            upkeep,
            router: Router::new(&config.classes),
            threads: Mutex::new(threads),
            has_writers: AtomicBool::new(config.has_writers),
            _lock: lock,
        };
        Ok((Self(Arc::new(inner)), report))
    }

    #[must_use]
    pub fn id(&self) -> LogId {
        self.0.id
    }

    /// Names this folder among those of a cluster. None for a log alone.
    #[must_use]
    pub fn disk_id(&self) -> Option<DiskId> {
        self.0.disk_id
    }

    /// What a new replica of this log must be given, and nobody else.
    #[must_use]
    pub fn secret(&self) -> Secret {
        self.0.secret
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
        let mut partitions = self.0.partitions.iter();
        partitions.find(|partition| partition.name() == name)
    }

    /// The partition and key of a topic's records. A pure function: cache the result per topic.
    #[must_use]
    pub fn route(&self, topic: &str) -> Route {
        self.0.router.route(topic)
    }

    /// Runs once what the maintenance thread runs from time to time: retention, index files, checkpoints, spare
    /// segments.
    pub fn maintain(&self) {
        self.0.upkeep.once();
    }

    /// The state of the disk budget, as last measured by the maintenance thread.
    #[must_use]
    pub fn disk_use(&self) -> DiskUse {
        self.0.upkeep.budget.usage()
    }

    /// Has retention ask `holders` before it removes records that its class would not keep.
    pub fn hold_with(&self, holders: &Arc<dyn Holders>) {
        for partition in &self.0.partitions {
            partition.owners().retention.hold_with(holders);
        }
    }

    /// Writes the indexes and lists of topics that are not on disk yet.
    pub(crate) fn save_indexes(&self) -> Result<(), ReadError> {
        for partition in &self.0.partitions {
            let owners = partition.owners();
            owners.shared.segments.save_indexes();
            // Reading them writes the list when it covers too little.
            owners.shared.topics.with_topics(|_| ())?;
        }
        Ok(())
    }

    /// Writes and syncs the queued records, notes the clean stop and refuses further appends. Idempotent.
    pub fn shutdown(&self) {
        self.0.shutdown();
    }
}

impl Inner {
    fn shutdown(&self) {
        self.upkeep.stop();
        for partition in &self.partitions {
            let owners = partition.owners();
            owners.writer.begin_close();
            owners.shared.topics.close();
            owners.retention.drop_holders();
        }
        if !self.has_writers.swap(true, Ordering::AcqRel) {
            for partition in &self.partitions {
                partition.owners().writer.run();
            }
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        let current = std::thread::current().id();
        for thread in threads {
            // A watcher that drops the last handle runs on a writer thread, which cannot wait for itself.
            if thread.thread().id() != current && thread.join().is_err() {
                tracing::error!("a thread of the log has panicked");
            }
        }
        for partition in &self.partitions {
            partition.owners().retention.close();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shutdown();
    }
}

fn contexts(
    config: &LogConfig,
    seams: &Seams,
    (log_id, secret): (LogId, Secret),
    epoch: Epoch,
) -> Vec<Context> {
    let mut contexts: Vec<Context> = Vec::new();
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
                current_epoch: AtomicU64::new(epoch.0),
                is_replica: config.replica.is_some(),
                seams: Seams {
                    files: Arc::new(counted),
                    clock: Arc::clone(&seams.clock),
                },
                sync: config.sync,
                segment_bytes,
                queue_bytes: config.queue_bytes,
                kept: class.clone(),
                removes_at_once: config.removes_at_once,
                counters,
            });
        }
    }
    contexts
}

/// Has the partitions of a replica go on in the epoch of the newest batch, if that is above `epoch`.
fn go_on_in_newest_epoch(partitions: &[Partition], epoch: Epoch) -> Epoch {
    let written = partitions.iter().filter_map(|one| one.epochs().pop());
    let newest = written.fold(epoch, |newest, (epoch, _)| newest.max(epoch));
    for partition in partitions {
        partition.owners().shared.context.begin_epoch(newest);
    }
    newest
}

fn partition_report(partition: &Partition, findings: Findings) -> PartitionReport {
    let name = partition.name();
    let gaps = partition.gaps();
    for gap in &gaps {
        tracing::error!(
            partition = %name, start = gap.range.start.0, end = gap.range.end.0, kind = gap.kind.name(),
            reason = %gap.reason, "offsets are gone"
        );
    }
    for note in &findings.notes {
        tracing::warn!(partition = %name, "{note}");
    }
    PartitionReport {
        name: name.to_owned(),
        log_start: partition.log_start(),
        high_watermark: partition.high_watermark(),
        torn_bytes: findings.torn_bytes,
        gaps,
        rebuilt_indexes: findings.rebuilt_indexes,
        notes: findings.notes,
    }
}

/// A writer per partition, one thread for the upkeep of all, and one that reads topics when a start would wait for
/// them.
fn start_threads(
    upkeep: &Arc<Upkeep>,
    config: &LogConfig,
) -> Result<Vec<JoinHandle<()>>, OpenError> {
    let mut threads = Vec::with_capacity(upkeep.partitions.len() + 1);
    let mut start = |name: String, run: Box<dyn FnOnce() + Send>| {
        let thread = std::thread::Builder::new().name(name).spawn(run);
        let thread =
            thread.map_err(|source| OpenError::io("start a thread for", &config.dir, source))?;
        threads.push(thread);
        Ok(())
    };
    for partition in upkeep.partitions.iter().filter(|_| config.has_writers) {
        let writer = Arc::clone(&partition.owners().writer);
        let write = move || writer.run();
        start(format!("log-{}", partition.name()), Box::new(write))?;
    }
    let Some(every) = config.maintain_every else {
        return Ok(threads);
    };
    let catalogs = upkeep
        .partitions
        .iter()
        .map(|partition| &partition.owners().shared.topics);
    let unread: Vec<_> = catalogs.filter(|topics| topics.begin()).cloned().collect();
    if !unread.is_empty() {
        let read = move || unread.iter().for_each(|topics| topics.read_behind());
        start("log-topics".to_owned(), Box::new(read))?;
    }
    let upkeep = Arc::clone(upkeep);
    let maintain = move || upkeep.run(every);
    start("log-maintenance".to_owned(), Box::new(maintain))?;
    Ok(threads)
}
