//! The bytes of an index file, both ways. Reading checks everything and gives None for whatever is not right: the index
//! is then made again from its segment.

use crate::encode::{Identity, u16_at, u32_at, u64_at};
use crate::ids::{Epoch, Offset};
use crate::index::{Block, Index, IndexTopic, KeyPlace, block_numbers};
use crate::segment::{FORMAT, Hole};

const MAGIC: &[u8; 8] = b"hwatridx";
const FIXED_BYTES: usize = 104;

impl Index {
    pub fn to_bytes(&self, identity: &Identity) -> Vec<u8> {
        let mut out =
            Vec::with_capacity(FIXED_BYTES + self.blocks.len() * 24 + self.topics.len() * 48);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(identity.log_id.as_bytes());
        out.extend_from_slice(&identity.partition.0.to_le_bytes());
        out.extend_from_slice(&self.last_checksum.to_le_bytes());
        for number in [self.base.0, self.next.0, self.data_end, self.last_position] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.first_time_us.to_le_bytes());
        let counts = [
            self.blocks.len(),
            self.epochs.len(),
            self.holes.len(),
            self.retained.len(),
            self.keys.len(),
            self.topics.len(),
        ];
        for count in counts {
            out.extend_from_slice(&(count as u32).to_le_bytes());
        }
        let mut numbers = |numbers: &[u64]| {
            for number in numbers {
                out.extend_from_slice(&number.to_le_bytes());
            }
        };
        for block in &self.blocks {
            numbers(&[block.offset.0, block.position, block.max_time_us as u64]);
        }
        for (offset, epoch) in &self.epochs {
            numbers(&[offset.0, epoch.0]);
        }
        for hole in &self.holes {
            numbers(&[hole.first.0, hole.next.0, hole.resume]);
        }
        for offset in &self.retained {
            numbers(&[offset.0]);
        }
        for key in &self.keys {
            numbers(&[key.hash, key.offset.0]);
        }
        for topic in &self.topics {
            out.extend_from_slice(&(topic.topic.len() as u16).to_le_bytes());
            out.extend_from_slice(topic.topic.as_bytes());
            out.extend_from_slice(&topic.first.0.to_le_bytes());
            out.extend_from_slice(&topic.next.0.to_le_bytes());
            out.extend_from_slice(&(topic.blocks.len() as u32).to_le_bytes());
            out.extend_from_slice(&topic.blocks);
        }
        let checksum = crc32c::crc32c(&out[16..]);
        out[12..16].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    pub fn from_bytes(bytes: &[u8], identity: &Identity) -> Option<Self> {
        let fixed = bytes.get(..FIXED_BYTES)?;
        let is_ours = &fixed[..8] == MAGIC
            && u32_at(fixed, 8) == FORMAT
            && u32_at(fixed, 12) == crc32c::crc32c(&bytes[16..])
            && &fixed[16..32] == identity.log_id.as_bytes()
            && u32_at(fixed, 32) == identity.partition.0;
        if !is_ours {
            return None;
        }
        let count = |at: usize| u32_at(fixed, 80 + at * 4) as usize;
        let mut rest = Rest(&bytes[FIXED_BYTES..]);
        let blocks = rest.table(count(0), |[offset, position, time]| Block {
            offset: Offset(offset),
            position,
            max_time_us: time as i64,
        })?;
        let epochs = rest.table(count(1), |[offset, epoch]| (Offset(offset), Epoch(epoch)))?;
        let holes = rest.table(count(2), |[first, next, resume]| Hole {
            first: Offset(first),
            next: Offset(next),
            resume,
        })?;
        let retained = rest.table(count(3), |[offset]| Offset(offset))?;
        let keys = rest.table(count(4), |[hash, offset]| KeyPlace {
            hash,
            offset: Offset(offset),
        })?;
        let topics = rest.topics(count(5), blocks.len())?;
        rest.0.is_empty().then_some(Self {
            base: Offset(u64_at(fixed, 40)),
            next: Offset(u64_at(fixed, 48)),
            data_end: u64_at(fixed, 56),
            last_position: u64_at(fixed, 64),
            last_checksum: u32_at(fixed, 36),
            first_time_us: u64_at(fixed, 72) as i64,
            blocks,
            epochs,
            holes,
            retained,
            keys,
            topics,
        })
    }
}

struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn table<const N: usize, T>(
        &mut self,
        count: usize,
        make: impl Fn([u64; N]) -> T,
    ) -> Option<Vec<T>> {
        let bytes = self.take(count.checked_mul(N * 8)?)?;
        let row = |row: &[u8]| make(std::array::from_fn(|column| u64_at(row, column * 8)));
        Some(bytes.chunks_exact(N * 8).map(row).collect())
    }

    fn topics(&mut self, count: usize, blocks: usize) -> Option<Vec<IndexTopic>> {
        // A topic takes at least 22 bytes, so the allocation is covered by the file.
        if count > self.0.len() / 22 {
            return None;
        }
        let mut topics = Vec::with_capacity(count);
        for _ in 0..count {
            let length = usize::from(u16_at(self.take(2)?, 0));
            let topic = std::str::from_utf8(self.take(length)?).ok()?;
            let fixed = self.take(20)?;
            let numbers = self.take(u32_at(fixed, 16) as usize)?;
            if block_numbers(numbers).any(|number| number >= blocks) {
                return None;
            }
            topics.push(IndexTopic {
                topic: topic.into(),
                first: Offset(u64_at(fixed, 0)),
                next: Offset(u64_at(fixed, 8)),
                blocks: numbers.to_vec(),
            });
        }
        Some(topics)
    }
}
