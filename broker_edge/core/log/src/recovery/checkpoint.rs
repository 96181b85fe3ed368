//! The checkpoint of a partition (file `mark`): up to where it was synced and whole. Written when the partition has
//! been idle, and at a clean stop.

use std::io;
use std::path::Path;

use crate::batch::layout::{Identity, u32_at, u64_at};
use crate::ids::{Epoch, Offset};
use crate::vfs::files::{Files, existing, read_file, replace_file};

const NAME: &str = "mark";
const MAGIC: &[u8; 8] = b"hwatrmrk";
const BYTES: usize = 56;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckpointKind {
    Idle = 1,
    CleanStop = 2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// Base offset of the segment that was active.
    pub base: Offset,
    /// Position after its last batch.
    pub position: u64,
    pub next: Offset,
    pub epoch: Epoch,
    pub kind: CheckpointKind,
}

impl Checkpoint {
    /// Whether the last process stopped cleanly at exactly this position, with everything synced.
    pub fn is_stop_at(&self, base: Offset, position: u64, next: Offset) -> bool {
        let is_there = self.base == base && self.position == position && self.next == next;
        self.kind == CheckpointKind::CleanStop && is_there
    }

    pub(crate) fn to_bytes(self, identity: &Identity) -> [u8; BYTES] {
        let (base, next, epoch) = (self.base.0, self.next.0, self.epoch.0);
        let numbers = [base, self.position, next, epoch, self.kind as u64];
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..48].copy_from_slice(numbers.map(u64::to_le_bytes).as_flattened());
        let checksum = identity.checksum_of(&bytes[..48]);
        bytes[48..52].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8], identity: &Identity) -> Option<Self> {
        if bytes.len() != BYTES
            || &bytes[0..8] != MAGIC
            || u32_at(bytes, 48) != identity.checksum_of(&bytes[..48])
            || u32_at(bytes, 52) != 0
        {
            return None;
        }
        let kind = match u64_at(bytes, 40) {
            1 => CheckpointKind::Idle,
            2 => CheckpointKind::CleanStop,
            _ => return None,
        };
        let (base, next) = (Offset(u64_at(bytes, 8)), Offset(u64_at(bytes, 24)));
        (base <= next && next <= Offset::BELIEVABLE_MAX).then_some(Self {
            base,
            position: u64_at(bytes, 16),
            next,
            epoch: Epoch(u64_at(bytes, 32)),
            kind,
        })
    }

    /// None when there is no checkpoint. One that cannot be trusted is an error, as a text: it proves nothing.
    pub fn load(
        files: &dyn Files,
        dir: &Path,
        identity: &Identity,
    ) -> Result<Option<Self>, &'static str> {
        let read = existing(read_file(files, &dir.join(NAME), BYTES));
        let Some(bytes) = read.map_err(|_| "the checkpoint (file mark) cannot be read")? else {
            return Ok(None);
        };
        let checkpoint = Self::from_bytes(&bytes, identity).map(Some);
        checkpoint.ok_or("the checkpoint (file mark) is damaged")
    }

    pub fn remove(files: &dyn Files, dir: &Path) -> io::Result<()> {
        existing(files.remove(&dir.join(NAME))).map(drop)
    }

    pub fn save(self, files: &dyn Files, dir: &Path, identity: &Identity) -> io::Result<()> {
        replace_file(files, &dir.join(NAME), &self.to_bytes(identity))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::record_batch::tests::identity;

    const STOP: Checkpoint = Checkpoint {
        base: Offset(100),
        position: 9000,
        next: Offset(120),
        epoch: Epoch(3),
        kind: CheckpointKind::CleanStop,
    };

    fn read_back(checkpoint: Checkpoint) -> Option<Checkpoint> {
        Checkpoint::from_bytes(&checkpoint.to_bytes(&identity()), &identity())
    }

    #[test]
    fn a_mark_reads_back_unless_its_offsets_can_not_be() {
        let next = |next| Checkpoint { next, ..STOP };
        let kind = CheckpointKind::Idle;
        let last = Offset::BELIEVABLE_MAX;
        for checkpoint in [
            STOP,
            Checkpoint { kind, ..STOP },
            next(STOP.base),
            next(last),
        ] {
            assert_eq!(read_back(checkpoint), Some(checkpoint));
        }
        assert_eq!(read_back(next(Offset(99))), None, "before its segment");
        assert_eq!(read_back(next(last.plus(1))), None);
    }

    #[test]
    fn what_is_not_written_like_a_mark_is_none_although_its_checksum_matches() {
        let whole = STOP.to_bytes(&identity());
        let changed = |at: usize, to: u8| {
            let mut bytes = whole;
            bytes[at] = to;
            let checksum = identity().checksum_of(&bytes[..48]);
            bytes[48..52].copy_from_slice(&checksum.to_le_bytes());
            Checkpoint::from_bytes(&bytes, &identity())
        };
        assert_eq!(changed(0, whole[0]), Some(STOP));
        assert_eq!(changed(0, b'H'), None, "another magic");
        assert_eq!(changed(40, 0), None, "no kind");
        assert_eq!(changed(40, 3), None, "a kind of later");
        assert_eq!(changed(52, 1), None);
        let mut longer = whole.to_vec();
        longer.push(0);
        assert_eq!(Checkpoint::from_bytes(&longer, &identity()), None);
        assert_eq!(Checkpoint::from_bytes(&whole[..55], &identity()), None);
        let mut flipped = whole;
        flipped[16] ^= 1;
        assert_eq!(Checkpoint::from_bytes(&flipped, &identity()), None);
    }

    #[test]
    fn only_a_clean_stop_at_that_very_place_is_one() {
        let is_stop =
            |checkpoint: Checkpoint| checkpoint.is_stop_at(Offset(100), 9000, Offset(120));
        assert!(is_stop(STOP));
        let (base, position, next) = (Offset(99), 8999, Offset(119));
        let kind = CheckpointKind::Idle;
        assert!(!is_stop(Checkpoint { base, ..STOP }));
        assert!(!is_stop(Checkpoint { position, ..STOP }));
        assert!(!is_stop(Checkpoint { next, ..STOP }));
        assert!(!is_stop(Checkpoint { kind, ..STOP }));
    }
}
