//! What a leader sends to a follower: whole batches from an offset on, in chunks, as credit allows.

use bytes::Bytes;
use headwater_cluster::credit::Credit;
use headwater_cluster::frames::{CHUNK_BYTES_MAX, Edges, Frame, Told};
use headwater_cluster::marks::{Member, Offset, PartitionId, Stamp};
use headwater_log::{Batch, Partition, ReadError};

use crate::open::SHARD;
use crate::replica::{Output, Replica};

/// How long after a read that failed the next one is tried; it doubles up to the second.
const READ_AGAIN_MS: u64 = 500;
const READ_AGAIN_MS_MAX: u64 = 32_000;
/// How long a commit waits for a batch that tells of it, before the follower is told by itself.
const TELL_MS: u64 = 2;
/// Bytes of whole batches that are read at once; a longer batch is read alone.
const RUN_BYTES: usize = CHUNK_BYTES_MAX;

pub(crate) struct Stream {
    stamp: Stamp,
    /// By partition: what is read next.
    next: Vec<Offset>,
    /// By partition: the high watermark that the follower knows.
    told: Vec<Offset>,
    /// When the follower is told of a commit that no batch has told of.
    tell_ms: Option<u64>,
    /// That time is over.
    is_tell_due: bool,
    credit: Credit,
    run: Option<Sending>,
    /// The partition that is looked at first, so that each has its turn.
    turn: usize,
    /// Batches could not be read, and are tried again then.
    again_ms: Option<u64>,
    /// The wait before that.
    waited_ms: u64,
}

/// A run of which not every chunk was sent.
struct Sending {
    partition: usize,
    bytes: Bytes,
    sent: usize,
}

impl Stream {
    pub fn new(stamp: Stamp, from: Vec<Offset>, credit_bytes: u32) -> Self {
        let mut credit = Credit::default();
        credit.begin(SHARD, credit_bytes);
        Self {
            stamp,
            told: vec![Offset(0); from.len()],
            next: from,
            tell_ms: None,
            is_tell_due: false,
            credit,
            run: None,
            turn: 0,
            again_ms: None,
            waited_ms: 0,
        }
    }

    pub fn deadline_ms(&self) -> Option<u64> {
        self.again_ms.into_iter().chain(self.tell_ms).min()
    }

    pub fn tick(&mut self, now_ms: u64) {
        self.again_ms = self.again_ms.filter(|at| *at > now_ms);
        self.is_tell_due |= self.tell_ms.take_if(|at| *at <= now_ms).is_some();
    }

    fn read_failed(&mut self, now_ms: u64) {
        self.waited_ms = (self.waited_ms * 2).clamp(READ_AGAIN_MS, READ_AGAIN_MS_MAX);
        self.again_ms = Some(now_ms + self.waited_ms);
    }

    pub fn give(&mut self, bytes: u32) {
        self.credit.give(SHARD, bytes);
    }

    /// Reads the next run of the first partition that has one.
    fn fill(&mut self, partitions: &[Partition]) -> Result<(), (usize, ReadError)> {
        for step in 0..partitions.len() {
            let at = (self.turn + step) % partitions.len();
            if self.next[at].0 >= partitions[at].written().0 {
                continue;
            }
            let batches = read(&partitions[at], self.next[at]).map_err(|error| (at, error))?;
            let Some(end) = batches.last().map(Batch::next_offset) else {
                continue;
            };
            self.waited_ms = 0;
            self.next[at] = Offset(end.0);
            self.turn = at + 1;
            self.run = Some(Sending {
                partition: at,
                bytes: joined(batches),
                sent: 0,
            });
            return Ok(());
        }
        Ok(())
    }

    /// The next chunk. Without batches, one without bytes where something was committed a moment ago: a follower that
    /// waits for that, to show it or to begin a segment, shall not wait for a beacon.
    fn chunk(&mut self, partitions: &[Partition], now_ms: u64) -> Option<(usize, Edges, Bytes)> {
        let Some(run) = self.run.as_mut() else {
            let at = self.untold(partitions, now_ms)?;
            let alone = Edges {
                first: true,
                last: true,
            };
            return Some((at, alone, Bytes::new()));
        };
        let end = run.bytes.len().min(run.sent + CHUNK_BYTES_MAX);
        let bytes = run.bytes.slice(run.sent..end);
        if !self.credit.take(SHARD, bytes.len() as u64) {
            return None;
        }
        let edges = Edges {
            first: run.sent == 0,
            last: end == run.bytes.len(),
        };
        run.sent = end;
        let partition = run.partition;
        if edges.last {
            self.run = None;
        }
        Some((partition, edges, bytes))
    }

    /// A partition of which the follower is to be told now what is committed.
    fn untold(&mut self, partitions: &[Partition], now_ms: u64) -> Option<usize> {
        let mut known = self.told.iter().zip(partitions);
        let at = known.position(|(told, one)| told.0 < one.high_watermark().0);
        if at.is_none() {
            (self.tell_ms, self.is_tell_due) = (None, false);
        } else if !self.is_tell_due {
            self.tell_ms.get_or_insert(now_ms + TELL_MS);
        }
        at.filter(|_| self.is_tell_due)
    }
}

/// Under load a run is one batch, which is not copied.
fn joined(mut batches: Vec<Batch>) -> Bytes {
    if batches.len() == 1 {
        return Bytes::from_owner(batches.remove(0));
    }
    let parts: Vec<_> = batches.iter().map(Batch::bytes).collect();
    parts.concat().into()
}

/// Batches that are not committed are in memory; those below by the way of all readers.
fn read(partition: &Partition, from: Offset) -> Result<Vec<Batch>, ReadError> {
    let from = headwater_log::Offset(from.0);
    match partition.read_uncommitted(from, RUN_BYTES) {
        Some(batches) => Ok(batches),
        None => partition.read(from, RUN_BYTES),
    }
}

impl Replica {
    /// The next batches for this follower, if there are any and it has room for them. To be asked for when the link has
    /// nothing else to send.
    pub fn next_batches(&mut self, to: &Member, now_ms: u64) -> Option<Frame> {
        if self.is_over {
            return None;
        }
        let stream = self.streams.get_mut(to)?;
        if stream.again_ms.is_some() {
            return None;
        }
        if stream.run.is_none()
            && let Err((at, error)) = stream.fill(self.log.partitions())
        {
            self.not_read(to, at, &error, now_ms);
            return None;
        }
        let stamp = stream.stamp;
        let (at, edges, bytes) = stream.chunk(self.log.partitions(), now_ms)?;
        let partition = &self.log.partitions()[at];
        let high_watermark = Offset(partition.high_watermark().0);
        stream.told[at] = high_watermark;
        Some(Frame::Batches {
            stamp,
            partition: PartitionId(partition.id().0),
            told: Told {
                high_watermark,
                log_start: Offset(partition.log_start().0),
            },
            edges,
            bytes,
        })
    }

    /// The log start has passed the stream, which begins anew then; or the batches cannot be read, now at least.
    fn not_read(&mut self, to: &Member, at: usize, error: &ReadError, now_ms: u64) {
        if let ReadError::OutOfRange { .. } = error {
            self.streams.remove(to);
            return self.outputs.push(Output::Disconnect(to.clone()));
        }
        if let Some(stream) = self.streams.get_mut(to) {
            stream.read_failed(now_ms);
        }
        self.outputs.push(Output::CannotRead {
            partition: PartitionId(self.log.partitions()[at].id().0),
            reason: error.to_string(),
        });
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
