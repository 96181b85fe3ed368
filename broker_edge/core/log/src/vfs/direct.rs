//! Writes zeros past the page cache: they need no pages and no copies, and the pages of the batches that are written
//! over them go to the disk only once. Where the file system has no direct writes, nothing is done here.

use std::fs::File;
use std::io::{self, IoSlice};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::vfs::files::ZEROS;

/// Most slices in one call.
const SLICES: usize = 64;
/// Below this a direct write costs more than one into the cache.
const BYTES_MIN: u64 = 64 << 10;

/// Writes zeros from `from` towards `to`, both page-aligned; returns how far it came. The caller writes the rest.
pub(crate) fn fill_zeros(file: &File, from: u64, to: u64) -> io::Result<u64> {
    if to.saturating_sub(from) < BYTES_MIN {
        return Ok(from);
    }
    let flags = fcntl_getfl(file)?;
    if fcntl_setfl(file, flags | OFlags::DIRECT).is_err() {
        return Ok(from);
    }
    let filled = write_zeros(file, from, to);
    fcntl_setfl(file, flags)?;
    filled
}

fn write_zeros(file: &File, from: u64, to: u64) -> io::Result<u64> {
    let mut position = from;
    while position < to {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let mut left = (to - position).min(SLICES as u64 * ZEROS.0.len() as u64) as usize;
        for slice in &mut slices {
            *slice = IoSlice::new(&ZEROS.0[..left.min(ZEROS.0.len())]);
            left -= slice.len();
        }
        match rustix::io::pwritev(file, &slices, position) {
            Ok(0) => return Ok(position),
            Ok(written) => position += written as u64,
            Err(Errno::INTR) => {}
            // No direct writes here, or not of this shape: the caller writes through the cache.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(position),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(position)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};

    use crate::vfs::files::File as _;

    /// On any file system, with or without direct writes.
    #[test]
    fn only_what_is_to_be_zeros_becomes_zeros() {
        for (from, to) in [
            (0, 300_000),
            (5000, 400_000),
            (4096, 4096 + (5 << 20)),
            (9, 9),
        ] {
            let mut file = tempfile::tempfile().expect("a file");
            file.write_all(&vec![7; 10_000]).expect("written");
            file.fill_zeros(from, to).expect("filled");
            // Not a direct write any more: it is not on a page.
            crate::vfs::files::File::write_all_at(&file, &[8; 10], from).expect("written");
            let mut bytes = Vec::new();
            file.rewind().expect("rewound");
            file.read_to_end(&mut bytes).expect("read");
            let length = (to as usize).max(10_000);
            assert_eq!(bytes.len(), length, "{from}..{to}");
            for (at, byte) in bytes.iter().enumerate() {
                let at = at as u64;
                let expected = match at {
                    _ if (from..from + 10).contains(&at) => 8,
                    _ if (from..to).contains(&at) => 0,
                    0..10_000 => 7,
                    _ => 0,
                };
                assert_eq!(*byte, expected, "byte {at} of {from}..{to}");
            }
        }
    }

    #[test]
    fn a_padded_write_puts_zeros_behind_and_nothing_in_front() {
        for (position, bytes, pad) in [
            (10, 100, 50),
            (4000, 200_000, 4096),
            (4096, 4096, 0),
            (3, 0, 7),
            (70_000, 100, 0),
            // Around the bounds of the pieces of a write.
            (0, 65_536, 0),
            (0, 65_536, 4096),
            (65_000, 536, 4096),
            (65_000, 537, 4095),
            (61_440, 4095, 1),
            (1, 131_072, 4095),
        ] {
            let file = tempfile::tempfile().expect("a file");
            file.write_all_at(&vec![7; 300_000], 0).expect("written");
            file.write_padded_at(&vec![8; bytes], position, pad)
                .expect("written");
            let mut found = vec![0; 300_000];
            crate::vfs::files::read_full(&file, &mut found, 0).expect("read");
            let (start, end) = (position as usize, position as usize + bytes);
            let expected = |at: usize| match at {
                _ if (start..end).contains(&at) => 8,
                _ if (end..end + pad).contains(&at) => 0,
                _ => 7,
            };
            let wrong = (0..found.len()).find(|at| found[*at] != expected(*at));
            assert_eq!(wrong, None, "{bytes} bytes at {position}, {pad} behind");
        }
    }
}
