//! Snapshots of the state, and the thread that takes them.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use headwater_log::{AppendError, Offset, PartitionState, failpoint};

use super::{SNAPSHOT, StateError, StateStore, push};

/// Bytes of values copied under one lock and in one append.
const CHUNK_BYTES: usize = 256 << 10;
/// Limit of a wait for the high watermark, so that a stop is noticed even if nothing moves.
const WAIT: Duration = Duration::from_millis(500);

/// The compaction thread; dropping this stops and joins it.
pub struct Compaction {
    store: Arc<StateStore>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Compaction {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(store: &Arc<StateStore>) -> std::io::Result<Compaction> {
        let stop = Arc::new(AtomicBool::new(false));
        let (own_store, own_stop) = (Arc::clone(store), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("state".to_owned())
            .spawn(move || run(&own_store, &own_stop, StateStore::compact))?;
        Ok(Compaction {
            store: Arc::clone(store),
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Compaction {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.store.moved.notify();
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

/// Compacts when it is due, until `stop` is set.
pub(super) fn run(
    store: &StateStore,
    stop: &AtomicBool,
    compact: impl Fn(&StateStore, &AtomicBool) -> Result<(), StateError>,
) {
    let mut has_failed = false;
    loop {
        // Read the count before the stop flag, so that a stop in between ends the wait below.
        let seen = store.moves();
        if stop.load(Ordering::Acquire) {
            return;
        }
        if has_failed || !store.is_compaction_due() {
            has_failed = false;
            store.wait_for_move(seen, None);
            continue;
        }
        if let Err(error) = compact(store, stop) {
            has_failed = true;
            // One that was told to stop ends for that reason.
            if !stop.load(Ordering::Acquire) {
                tracing::warn!(%error, "could not compact the state; the next change tries again");
            }
        }
    }
}

impl StateStore {
    fn is_compaction_due(&self) -> bool {
        self.inner
            .lock()
            .is_compaction_due(self.compact_after_bytes)
    }

    fn moves(&self) -> u64 {
        *self.moved.count.lock()
    }

    /// Waits until the count has changed from `seen`.
    fn wait_for_move(&self, seen: u64, timeout: Option<Duration>) {
        let mut count = self.moved.count.lock();
        while *count == seen {
            match timeout {
                None => self.moved.condition.wait(&mut count),
                Some(timeout) => {
                    self.moved.condition.wait_for(&mut count, timeout);
                    return;
                }
            }
        }
    }

    /// Writes a snapshot, waits until it is durable, and releases the records below it. Gives up when `stop` is set or
    /// the partition stops; an unfinished snapshot does no harm.
    ///
    /// # Errors
    /// The internal partition refuses appends.
    pub fn compact(&self, stop: &AtomicBool) -> Result<(), StateError> {
        let begin = self.append_waiting(stop, |store| {
            let begin = store.append_snapshot_record("begin", b"{}")?;
            store.inner.lock().written_bytes = 0;
            Ok(Offset(begin.0 - 1))
        })?;
        failpoint!("snapshot-begun");
        let mut after: Option<String> = None;
        loop {
            let last = self.append_waiting(stop, |store| store.append_chunk(after.as_deref()))?;
            match last {
                Some(key) => after = Some(key),
                None => break,
            }
        }
        let value = format!("{{\"begin\":{begin}}}");
        let end = self.append_waiting(stop, |store| {
            store.append_snapshot_record("end", value.as_bytes())
        })?;
        failpoint!("snapshot-ended");
        if self.wait_durable_while(end, || (!stop.load(Ordering::Acquire)).then_some(WAIT)) {
            self.partition.advance_log_start(begin);
            failpoint!("snapshot-cut");
        }
        Ok(())
    }

    /// Retries while the queue is full; each move of the high watermark makes room.
    fn append_waiting<T>(
        &self,
        stop: &AtomicBool,
        mut append: impl FnMut(&Self) -> Result<T, StateError>,
    ) -> Result<T, StateError> {
        loop {
            let seen = self.moves();
            match append(self) {
                Err(StateError::Append(AppendError::QueueFull { .. }))
                    if !stop.load(Ordering::Acquire) =>
                {
                    self.wait_for_move(seen, Some(WAIT));
                }
                other => return other,
            }
        }
    }

    /// Appends `snapshot/<name>` and returns the offset after it.
    pub(super) fn append_snapshot_record(
        &self,
        name: &str,
        value: &[u8],
    ) -> Result<Offset, StateError> {
        let mut records = self.partition.take_records();
        push(&mut records, &format!("{SNAPSHOT}{name}"), value)?;
        let mut inner = self.inner.lock();
        inner.end = self.partition.append(records)?.end;
        Ok(inner.end)
    }

    /// Appends the current values of the next keys after `after`; returns the last key, or `None` when all are done.
    pub(super) fn append_chunk(&self, after: Option<&str>) -> Result<Option<String>, StateError> {
        let mut inner = self.inner.lock();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut records = self.partition.take_records();
        let mut last = None;
        for (key, value) in inner.values.range::<str, _>((from, Bound::Unbounded)) {
            push(&mut records, key, value)?;
            last = Some(key.clone());
            if records.bytes() >= CHUNK_BYTES || records.len() >= usize::from(u16::MAX) {
                break;
            }
        }
        if last.is_some() {
            inner.end = self.partition.append(records)?.end;
        }
        Ok(last)
    }

    /// Waits until changes up to `end` survive a crash. Returns false if that will never happen, or when `left` has no
    /// time left.
    pub(super) fn wait_durable_while(
        &self,
        end: Offset,
        left: impl Fn() -> Option<Duration>,
    ) -> bool {
        loop {
            let seen = self.moves();
            if self.durable() >= end {
                return true;
            }
            match left() {
                Some(left) if !matches!(self.partition.state(), PartitionState::Stopped(_)) => {
                    self.wait_for_move(seen, Some(left));
                }
                _ => return false,
            }
        }
    }
}
