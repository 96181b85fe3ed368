//! Batches that come in chunks: put together, checked, and handed to the log.

use headwater_cluster::frames::Edges;
use headwater_cluster::marks::{Epoch, Offset};
use headwater_log::{Batch, Partition, ReplicaError};

use crate::progress::Local;

/// The longest batch has one record of 256 MiB, with room for what is around it.
const RUN_BYTES_MAX: usize = (256 << 20) + (1 << 20);

/// Whole batches of which the last chunk is still to come.
pub(crate) struct Run {
    bytes: Vec<u8>,
    /// Bytes for which no credit was given back yet.
    pub owed: u32,
}

/// Why chunks are not taken. The stream has to begin anew.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChunkError {
    #[error("a chunk does not continue the one before")]
    Order,
    #[error("batches of more than {RUN_BYTES_MAX} bytes came in one run")]
    Length,
    #[error(transparent)]
    Decode(#[from] headwater_log::DecodeError),
    #[error(transparent)]
    Log(#[from] ReplicaError),
}

impl Local {
    /// Takes a chunk; with the last one of a run the log takes its batches.
    pub fn chunk(
        &mut self,
        partition: &Partition,
        epoch: Epoch,
        edges: Edges,
        bytes: &[u8],
    ) -> Result<(), ChunkError> {
        if bytes.is_empty() && edges.first && edges.last && self.run.is_none() {
            // Only the marks are told.
            return Ok(());
        }
        let owed = bytes.len() as u32;
        let mut run = match (edges.first, self.run.take()) {
            (true, None) => Run {
                bytes: partition.buffer_for(bytes, RUN_BYTES_MAX),
                owed: 0,
            },
            (false, Some(run)) => run,
            _ => return Err(ChunkError::Order),
        };
        if run.bytes.len() + bytes.len() > RUN_BYTES_MAX {
            return Err(ChunkError::Length);
        }
        run.bytes.extend_from_slice(bytes);
        run.owed += owed;
        if !edges.last {
            self.run = Some(run);
            return Ok(());
        }
        let batches = partition.decode(std::mem::take(&mut run.bytes))?;
        let Some(end) = batches.last().map(Batch::next_offset) else {
            return Ok(());
        };
        let begun: Vec<_> = batches
            .iter()
            .map(|batch| (Epoch(batch.epoch().0), Offset(batch.base_offset().0)))
            .collect();
        partition.take(headwater_log::Epoch(epoch.0), batches)?;
        for (epoch, first) in begun {
            if self.epochs.back().is_none_or(|last| last.0 < epoch) {
                self.epochs.push_back((epoch, first));
            }
        }
        self.owed.push_back((Offset(end.0), run.owed));
        Ok(())
    }

    /// The bytes for which credit is to be given back: of runs that are on the disk, and of one that is so long that
    /// its end would never come without.
    pub fn take_credit(&mut self, credit_bytes: u32) -> u32 {
        let mut bytes = 0;
        while let Some((end, owed)) = self.owed.front() {
            if *end > self.synced {
                break;
            }
            bytes += owed;
            self.owed.pop_front();
        }
        if let Some(run) = self.run.as_mut().filter(|run| run.is_long(credit_bytes)) {
            bytes += std::mem::take(&mut run.owed);
        }
        bytes
    }
}

impl Run {
    pub fn is_long(&self, credit_bytes: u32) -> bool {
        self.owed >= credit_bytes / 2
    }
}
