//! A segment file: its name and its header. Reading its batches is `scan.rs`.

use crate::batch::layout::{Identity, u32_at, u64_at};
use crate::ids::{Class, Epoch, LogId, Offset, PartitionId, Secret};

/// Batches begin here.
pub(crate) const SEGMENT_HEADER_BYTES: u64 = 4096;
pub(crate) const FORMAT: u32 = 1;
const MAGIC: &[u8; 8] = b"hwatrseg";
const HEADER_USED: usize = 72;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub identity: Identity,
    pub class: Class,
    /// Stale batches of a removed segment may follow the batches.
    pub recycled: bool,
    pub base: Offset,
    pub epoch: Epoch,
    pub created_us: i64,
}

/// The header of a segment file, if it can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderFound {
    Good(SegmentHeader),
    NewerFormat(u32),
    /// The header cannot be trusted; the batches still have their own checksums.
    Bad,
}

impl SegmentHeader {
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = vec![0; SEGMENT_HEADER_BYTES as usize];
        bytes[0..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[16..32].copy_from_slice(self.identity.log_id.as_bytes());
        bytes[32..36].copy_from_slice(&self.identity.partition.0.to_le_bytes());
        bytes[36] = self.class as u8;
        bytes[37] = u8::from(self.recycled);
        bytes[40..48].copy_from_slice(&self.base.0.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.epoch.0.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.created_us.to_le_bytes());
        bytes[64..72].copy_from_slice(self.identity.secret.as_bytes());
        let checksum = crc32c::crc32c(&bytes[16..HEADER_USED]);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// `bytes` are the beginning of the file, up to where its batches begin.
    pub fn parse(bytes: &[u8]) -> HeaderFound {
        if bytes.len() < HEADER_USED || &bytes[0..8] != MAGIC {
            return HeaderFound::Bad;
        }
        let (format, stored) = (u32_at(bytes, 8), u32_at(bytes, 12));
        let checksum = crc32c::crc32c(&bytes[16..HEADER_USED]);
        // In later formats the checksum covers the format number, so that a flipped bit is not taken for a newer
        // format.
        if format > FORMAT && crc32c::crc32c_append(checksum, &bytes[8..12]) == stored {
            return HeaderFound::NewerFormat(format);
        }
        let is_padded = bytes[HEADER_USED..].iter().all(|byte| *byte == 0);
        if format != FORMAT || checksum != stored || !is_padded {
            return HeaderFound::Bad;
        }
        let Some(class) = Class::from_number(bytes[36]) else {
            return HeaderFound::Bad;
        };
        HeaderFound::Good(Self {
            identity: Identity {
                log_id: LogId::from_bytes(bytes[16..32].try_into().expect("16 bytes")),
                partition: PartitionId(u32_at(bytes, 32)),
                secret: Secret::from_bytes(bytes[64..72].try_into().expect("8 bytes")),
            },
            class,
            recycled: bytes[37] != 0,
            base: Offset(u64_at(bytes, 40)),
            epoch: Epoch(u64_at(bytes, 48)),
            created_us: u64_at(bytes, 56) as i64,
        })
    }
}

/// `<base offset>.<suffix>`, so that names sort like offsets.
pub(crate) fn file_name(base: Offset, suffix: &str) -> String {
    format!("{:020}.{suffix}", base.0)
}

/// No log gets this far: a file with a larger number in its name is not ours, and would leave no offsets to give.
const BASE_MAX: u64 = 1 << 60;

/// The base offset in the name of a segment file.
pub(crate) fn base_of(name: &str) -> Option<Offset> {
    let digits = name.strip_suffix(".seg")?;
    (digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit()))
        .then(|| digits.parse().ok())?
        .filter(|base| *base <= BASE_MAX)
        .map(Offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::record_batch::tests::identity;

    fn header() -> SegmentHeader {
        SegmentHeader {
            identity: identity(),
            class: Class::Artifacts,
            recycled: true,
            base: Offset(77),
            epoch: Epoch(5),
            created_us: -4,
        }
    }

    #[test]
    fn header_reads_back_and_a_flipped_bit_is_noticed() {
        let header = header();
        let bytes = header.to_bytes();
        assert_eq!(SegmentHeader::parse(&bytes), HeaderFound::Good(header));
        for at in 0..HEADER_USED {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            assert_eq!(
                SegmentHeader::parse(&flipped),
                HeaderFound::Bad,
                "byte {at}"
            );
        }
    }

    #[test]
    fn a_newer_format_is_told_from_a_flipped_bit() {
        let mut bytes = header().to_bytes();
        bytes[8] = 7;
        assert_eq!(SegmentHeader::parse(&bytes), HeaderFound::Bad);
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&bytes[16..72]), &bytes[8..12]);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(SegmentHeader::parse(&bytes), HeaderFound::NewerFormat(7));
    }

    #[test]
    fn only_segment_names_have_a_base() {
        assert_eq!(base_of(&file_name(Offset(12), "seg")), Some(Offset(12)));
        for name in [
            "12.seg",
            "00000000000000000012.idx",
            "0000000000000000001x.seg",
            "18446744073709551615.seg",
            "99999999999999999999.seg",
            "mark",
        ] {
            assert_eq!(base_of(name), None, "{name}");
        }
    }
}
