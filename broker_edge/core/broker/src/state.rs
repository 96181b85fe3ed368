//! The broker's own state: the latest value of each key, kept as records of the internal partition.
//!
//! The records are authoritative; the map in memory is a view that [`StateStore::open`] rebuilds by replay. A change is
//! in the map as soon as its record is queued. It may be reported to others only when [`StateStore::durable`] has
//! reached the offset that the change returned.
//!
//! Compaction writes a snapshot: a `begin` record, every value once more, and an `end` record that names `begin`. When
//! `end` is durable, records below `begin` may be removed. Each chunk of values is read and appended under one lock, so
//! a copied value never lands after a newer one of the same key. Replay therefore needs no special case: the latest
//! record of a key counts, and a snapshot cut short by a crash only repeats values.
//!
//! It stores keys and bytes, and knows nothing of sessions or groups.

mod compaction;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use headwater_log::{
    AppendError, Log, Offset, Partition, ReadError, RecordMeta, Records, Watcher, failpoint,
};
use parking_lot::{Condvar, Mutex};

pub use compaction::Compaction;

/// First level of every topic of the internal partition.
const ROOT: &str = "$state/";
const SNAPSHOT: &str = "snapshot/";
const CLIENT: &str = "";
const READ_BYTES: usize = 4 << 20;

/// Longest key. The topic that carries it must be within MQTT's limit.
pub const KEY_BYTES_MAX: usize = 65_535 - ROOT.len();

/// Why a change was refused. The map is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("a state key of {bytes} bytes is over the limit of {KEY_BYTES_MAX}")]
    KeyTooLong { bytes: usize },
    #[error("{changes} state changes in one write are over the limit of {limit}")]
    TooMany { changes: usize, limit: usize },
    #[error(transparent)]
    Append(#[from] AppendError),
    #[error("the internal partition cannot be read: {0}")]
    Read(#[from] ReadError),
    #[error("the log has no internal partition")]
    NoPartition,
}

/// One change: a new value for a key, or its removal.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// `<kind>/<id>`, for example `group/bronze`.
    pub key: &'a str,
    pub value: Option<&'a [u8]>,
}

/// The latest value per key, stored in the internal partition. Share it as an `Arc`.
pub struct StateStore {
    partition: Partition,
    compact_after_bytes: u64,
    inner: Mutex<Inner>,
    /// Notified when a compaction may be due and when the high watermark has moved.
    moved: Arc<ProgressSignal>,
    _on_move: Watcher,
    /// Numbers given since the log was opened.
    numbers: AtomicU64,
}

#[derive(Default)]
struct ProgressSignal {
    condition: Condvar,
    /// Counts notifications, so that a waiter never misses one.
    count: Mutex<u64>,
}

struct Inner {
    values: BTreeMap<String, Arc<[u8]>>,
    /// Total size of keys and values.
    live_bytes: u64,
    /// Bytes appended since the start of the last snapshot.
    written_bytes: u64,
    /// The offset after the newest record of this store.
    end: Offset,
}

impl StateStore {
    /// Replays the internal partition. A snapshot becomes due when the records since the last one are larger than both
    /// the live values and `compact_after_bytes`.
    ///
    /// # Errors
    /// The log has no internal partition, or a part of it cannot be read. State is never guessed.
    pub fn open(log: &Log, compact_after_bytes: u64) -> Result<StateStore, StateError> {
        let partition = log
            .by_name("internal-0")
            .ok_or(StateError::NoPartition)?
            .clone();
        let inner = Mutex::new(replay(&partition)?);
        failpoint!("state-replayed");
        let moved = Arc::new(ProgressSignal::default());
        let signal = Arc::clone(&moved);
        let on_move: Watcher = Arc::new(move || signal.notify());
        partition.watch(&on_move);
        Ok(StateStore {
            partition,
            compact_after_bytes,
            inner,
            moved,
            _on_move: on_move,
            numbers: AtomicU64::new(0),
        })
    }

    /// The partition that stores the state. Watch it to learn when changes become durable.
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// Changes that returned an offset at or below this one survive a crash.
    pub fn durable(&self) -> Offset {
        self.partition.high_watermark()
    }

    /// Waits until changes up to `end` survive a crash. Returns false after `timeout`, or if that will never happen.
    pub fn wait_durable(&self, end: Offset, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        self.wait_durable_while(end, || {
            let left = until.saturating_duration_since(Instant::now());
            (!left.is_zero()).then_some(left)
        })
    }

    /// The offset after the newest change, durable or not.
    pub fn end(&self) -> Offset {
        self.inner.lock().end
    }

    /// # Errors
    /// As [`write`](Self::write).
    pub fn put(&self, key: &str, value: &[u8]) -> Result<Offset, StateError> {
        self.write(&[Change {
            key,
            value: Some(value),
        }])
    }

    /// # Errors
    /// As [`write`](Self::write).
    pub fn delete(&self, key: &str) -> Result<Offset, StateError> {
        self.write(&[Change { key, value: None }])
    }

    /// Queues the changes as one append. They are durable when [`durable`](Self::durable) has reached the returned
    /// offset. An empty value deletes its key.
    ///
    /// # Errors
    /// The internal partition refuses them; then none is made.
    pub fn write(&self, changes: &[Change<'_>]) -> Result<Offset, StateError> {
        let limit = usize::from(u16::MAX);
        if changes.len() > limit {
            return Err(StateError::TooMany {
                changes: changes.len(),
                limit,
            });
        }
        let mut records = self.partition.take_records();
        for change in changes {
            push(&mut records, change.key, change.value.unwrap_or_default())?;
        }
        let mut inner = self.inner.lock();
        if records.is_empty() {
            return Ok(inner.end);
        }
        let bytes = records.bytes() as u64;
        inner.end = self.partition.append(records)?.end;
        failpoint!("state-written");
        inner.written_bytes += bytes;
        for change in changes {
            inner.apply(change.key, change.value.unwrap_or_default());
        }
        if inner.is_compaction_due(self.compact_after_bytes) {
            drop(inner);
            self.moved.notify();
            return Ok(self.end());
        }
        Ok(inner.end)
    }

    /// A number that this log never gives again: each start has a new epoch, and a start one store for all who ask.
    pub fn unique_number(&self) -> u64 {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        self.partition.epoch().0 << 40 | number
    }

    pub fn get(&self, key: &str) -> Option<Arc<[u8]>> {
        self.inner.lock().values.get(key).cloned()
    }

    /// Calls `f` with each key that begins with `prefix`, in order. The store is locked meanwhile, so `f` must not call
    /// it.
    pub fn for_each_prefix(&self, prefix: &str, mut f: impl FnMut(&str, &Arc<[u8]>)) {
        let inner = self.inner.lock();
        let from_prefix = inner.values.range::<str, _>((
            std::ops::Bound::Included(prefix),
            std::ops::Bound::Unbounded,
        ));
        for (key, value) in from_prefix.take_while(|(key, _)| key.starts_with(prefix)) {
            f(key, value);
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.inner.lock().values.len()
    }
}

impl ProgressSignal {
    fn notify(&self) {
        *self.count.lock() += 1;
        self.condition.notify_all();
    }
}

impl Inner {
    fn apply(&mut self, key: &str, value: &[u8]) {
        let before = if value.is_empty() {
            self.values.remove(key)
        } else {
            self.live_bytes += (key.len() + value.len()) as u64;
            self.values.insert(key.to_owned(), value.into())
        };
        if let Some(before) = before {
            self.live_bytes -= (key.len() + before.len()) as u64;
        }
    }

    fn is_compaction_due(&self, compact_after_bytes: u64) -> bool {
        self.written_bytes > compact_after_bytes.max(2 * self.live_bytes)
    }
}

/// Adds one change to `records`.
fn push(records: &mut Records, key: &str, value: &[u8]) -> Result<(), StateError> {
    if key.len() > KEY_BYTES_MAX {
        return Err(StateError::KeyTooLong { bytes: key.len() });
    }
    let full = |_| AppendError::TooLarge {
        size_bytes: value.len() as u64,
        limit_bytes: headwater_log::MAX_RECORDS_BYTES as u64,
    };
    let topic = format!("{ROOT}{key}");
    let length = u16::try_from(topic.len()).expect("the key was measured above");
    // One client entry would be enough, but only the code that added it knows its index; an empty entry costs two
    // bytes.
    let client = records.client(CLIENT).map_err(full)?;
    let topic = records.topic(&topic, 0..length).map_err(full)?;
    records
        .push(RecordMeta::new(topic, client, 1), value)
        .map_err(full)?;
    Ok(())
}

fn replay(partition: &Partition) -> Result<Inner, StateError> {
    let mut inner = Inner {
        values: BTreeMap::new(),
        live_bytes: 0,
        written_bytes: 0,
        end: partition.high_watermark(),
    };
    let mut from = partition.log_start();
    while from < inner.end {
        let batches = match partition.read(from, READ_BYTES) {
            Ok(batches) => batches,
            // The rest of the state is better than none: a broker that does not start serves nobody.
            Err(ReadError::Damaged { range }) => {
                let (start, end) = (range.start.0, range.end.0);
                tracing::error!(
                    start,
                    end,
                    "state is lost: sessions or groups may be older or gone"
                );
                from = range.end;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        for batch in batches {
            for record in batch.records().filter(|record| record.offset >= from) {
                if let Some(key) = record
                    .topic
                    .strip_prefix(ROOT)
                    .filter(|key| !key.starts_with(SNAPSHOT))
                {
                    inner.apply(key, record.payload);
                }
            }
            inner.written_bytes += batch.bytes_len() as u64;
            from = batch.next_offset();
        }
    }
    Ok(inner)
}
