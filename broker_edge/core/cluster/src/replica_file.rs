//! The bytes of `shard-n.replica`: what a replica promised, kept across a start. `docs/cluster-protocol.md` has the
//! layout. This module does not write the file.

use crate::marks::{DiskId, Epoch, Offset, PartitionId, ShardId, Starts, Trust};

const MAGIC: &[u8; 8] = b"hwatrrpl";
pub const FORMAT: u32 = 1;
const FIXED_BYTES: usize = 68;
const HINT_BYTES: usize = 12;
/// In the folder of the log, for the only shard that a cluster has.
pub const FILE_NAME: &str = "shard-0.replica";
/// A shard has no more partitions than this: four classes of 1,024.
pub const PARTITIONS_MAX: usize = 4096;
/// A longer file is not read.
pub const BYTES_MAX: usize = FIXED_BYTES + PARTITIONS_MAX * HINT_BYTES;

/// Replaced and synced before the first answer in a new epoch and before a suspect is cut.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReplicaFile {
    pub log_id: [u8; 16],
    pub disk: DiskId,
    pub shard: ShardId,
    /// Frames of lower epochs are refused.
    pub epoch: Epoch,
    pub trust: Trust,
    /// How often this disk has started.
    pub starts: Starts,
    /// Written as the last act of an orderly end. The next start takes it back before anything else.
    pub stopped_cleanly: bool,
    /// High watermarks as they were, in the order of partitions. An end below its hint is proof of a loss.
    pub hints: Vec<(PartitionId, Offset)>,
}

/// Why a file is not used. The replica is suspect then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaFileError {
    #[error("it has {0} bytes, which no replica file has")]
    Length(usize),
    #[error("it does not begin as a replica file does")]
    Magic,
    #[error("it has format {0}, and this version reads format {FORMAT}")]
    Format(u32),
    #[error("its checksum does not match")]
    Checksum,
    #[error("it has {0} at a place where this cannot be")]
    Value(u64),
}

impl ReplicaFile {
    /// # Panics
    /// With more than [`PARTITIONS_MAX`] hints, or hints that are not in the order of their partitions.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(
            self.hints.len() <= PARTITIONS_MAX,
            "more partitions than a shard has"
        );
        assert!(self.hints.is_sorted_by(|a, b| a.0 < b.0), "hints in order");
        let mut out = Vec::with_capacity(FIXED_BYTES + self.hints.len() * HINT_BYTES);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.log_id);
        out.extend_from_slice(&self.disk.0.to_le_bytes());
        out.extend_from_slice(&self.shard.0.to_le_bytes());
        out.extend_from_slice(&[self.trust as u8, u8::from(self.stopped_cleanly)]);
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        out.extend_from_slice(&self.starts.0.to_le_bytes());
        out.extend_from_slice(&(self.hints.len() as u64).to_le_bytes());
        for (partition, hint) in &self.hints {
            out.extend_from_slice(&partition.0.to_le_bytes());
            out.extend_from_slice(&hint.0.to_le_bytes());
        }
        let sum = crc32c::crc32c(&out[16..]);
        out[12..16].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// # Errors
    /// Bytes that `encode` does not make. Nothing is allocated for a count before it fits the length.
    pub fn decode(bytes: &[u8]) -> Result<Self, ReplicaFileError> {
        let length = ReplicaFileError::Length(bytes.len());
        if bytes.len() < FIXED_BYTES || bytes.len() > BYTES_MAX {
            return Err(length);
        }
        let u32_at = |at: usize| {
            bytes[at..]
                .first_chunk()
                .map_or(0, |four| u32::from_le_bytes(*four))
        };
        let u64_at = |at: usize| {
            bytes[at..]
                .first_chunk()
                .map_or(0, |eight| u64::from_le_bytes(*eight))
        };
        if &bytes[..8] != MAGIC {
            return Err(ReplicaFileError::Magic);
        }
        if u32_at(8) != FORMAT {
            return Err(ReplicaFileError::Format(u32_at(8)));
        }
        if u32_at(12) != crc32c::crc32c(&bytes[16..]) {
            return Err(ReplicaFileError::Checksum);
        }
        let count = u64_at(60);
        if (bytes.len() - FIXED_BYTES) as u64 != count.saturating_mul(HINT_BYTES as u64) {
            return Err(length);
        }
        let trust =
            Trust::from_number(bytes[42]).ok_or(ReplicaFileError::Value(bytes[42].into()))?;
        if bytes[43] > 1 {
            return Err(ReplicaFileError::Value(bytes[43].into()));
        }
        let hints: Vec<_> = (FIXED_BYTES..bytes.len())
            .step_by(HINT_BYTES)
            .map(|at| (PartitionId(u32_at(at)), Offset(u64_at(at + 4))))
            .collect();
        if let Some(pair) = hints.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            return Err(ReplicaFileError::Value(pair[1].0.0.into()));
        }
        let mut log_id = [0; 16];
        log_id.copy_from_slice(&bytes[16..32]);
        Ok(Self {
            log_id,
            disk: DiskId(u64_at(32)),
            shard: ShardId(u16::from_le_bytes([bytes[40], bytes[41]])),
            epoch: Epoch(u64_at(44)),
            trust,
            starts: Starts(u64_at(52)),
            stopped_cleanly: bytes[43] == 1,
            hints,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn files() -> impl Strategy<Value = ReplicaFile> {
        let hints = proptest::collection::btree_map(any::<u32>(), any::<u64>(), 0..6);
        (
            any::<([u8; 16], u64, u16, u64)>(),
            any::<(u64, bool)>(),
            0..3u8,
            hints,
        )
            .prop_map(
                |((log_id, disk, shard, epoch), (starts, stopped_cleanly), trust, hints)| {
                    ReplicaFile {
                        log_id,
                        disk: DiskId(disk),
                        shard: ShardId(shard),
                        epoch: Epoch(epoch),
                        trust: Trust::from_number(trust).expect("below 3"),
                        starts: Starts(starts),
                        stopped_cleanly,
                        hints: hints
                            .into_iter()
                            .map(|(p, o)| (PartitionId(p), Offset(o)))
                            .collect(),
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn a_file_reads_back(file in files()) {
            prop_assert_eq!(ReplicaFile::decode(&file.encode()), Ok(file));
        }

        #[test]
        fn one_changed_bit_or_a_cut_is_found(file in files(), at in any::<prop::sample::Index>(), bit in 0..8u8) {
            let mut bytes = file.encode();
            let at = at.index(bytes.len());
            prop_assert!(ReplicaFile::decode(&bytes[..at]).is_err());
            bytes[at] ^= 1 << bit;
            prop_assert!(ReplicaFile::decode(&bytes).is_err());
        }

        #[test]
        fn what_is_accepted_is_what_would_be_written(mut bytes in proptest::collection::vec(any::<u8>(), 68..128)) {
            bytes[..8].copy_from_slice(MAGIC);
            bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
            let count = ((bytes.len() - FIXED_BYTES) / HINT_BYTES) as u64;
            bytes[60..68].copy_from_slice(&count.to_le_bytes());
            bytes[43] &= 1;
            let sum = crc32c::crc32c(&bytes[16..]);
            bytes[12..16].copy_from_slice(&sum.to_le_bytes());
            if let Ok(file) = ReplicaFile::decode(&bytes) {
                prop_assert_eq!(file.encode(), bytes);
            }
        }
    }

    #[test]
    fn another_format_is_named() {
        let file = ReplicaFile {
            log_id: [1; 16],
            disk: DiskId(2),
            shard: ShardId(0),
            epoch: Epoch(3),
            trust: Trust::Sound,
            starts: Starts(4),
            stopped_cleanly: false,
            hints: vec![],
        };
        let mut bytes = file.encode();
        bytes[8] = 2;
        assert_eq!(
            ReplicaFile::decode(&bytes),
            Err(ReplicaFileError::Format(2))
        );
    }
}
