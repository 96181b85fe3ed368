//! Reads a file that may be unreadable in places: unreadable bytes are read as zeros, which are never a batch.
//!
//! So damage looks the same whether a disk returned wrong bytes or none. An error that says nothing about the bytes (no
//! descriptor, no permission) is still returned: nothing may be taken for lost because of it.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::vfs::files::{File, is_out_of_descriptors};

/// Unreadable bytes are found in pieces of this size.
const PIECE_BYTES: u64 = 4096;
/// A failing disk can take seconds for each piece; after this many the rest of the file counts as unreadable.
const FAILED_PIECES_MAX: u64 = 256;

pub(crate) struct Salvage {
    file: Arc<dyn File>,
    unreadable: Mutex<Unreadable>,
}

/// The pieces that could not be read so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Unreadable {
    pub pieces: u64,
    /// Position after the last of them.
    pub end: u64,
}

impl Salvage {
    pub fn new(file: Arc<dyn File>) -> Self {
        Self {
            file,
            unreadable: Mutex::default(),
        }
    }

    /// The unreadable pieces; None while everything could be read.
    pub fn unreadable(&self) -> Option<Unreadable> {
        Some(*self.unreadable.lock()).filter(|found| found.pieces > 0)
    }

    /// Reads up to the next piece boundary, or zeros when that fails.
    fn read_piece(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let length = self.file.len()?;
        let room = length.saturating_sub(position);
        let piece = PIECE_BYTES - position % PIECE_BYTES;
        let wanted = (buffer.len() as u64).min(room).min(piece) as usize;
        let buffer = &mut buffer[..wanted];
        let is_given_up = self.unreadable.lock().pieces >= FAILED_PIECES_MAX;
        if !is_given_up {
            match self.file.read_at(buffer, position) {
                Err(error) if says_nothing_of_bytes(&error) => return Err(error),
                Err(_) => {}
                read => return read,
            }
        }
        buffer.fill(0);
        let mut unreadable = self.unreadable.lock();
        unreadable.pieces += u64::from(wanted > 0);
        unreadable.end = unreadable.end.max(position + wanted as u64);
        Ok(wanted)
    }
}

impl File for Salvage {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        match self.file.read_at(buffer, position) {
            Err(error) if says_nothing_of_bytes(&error) => Err(error),
            Err(_) => self.read_piece(buffer, position),
            read => read,
        }
    }

    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, position)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }
}

/// Whether an error is about this process, its rights or something else in the place of the file, so that another
/// attempt may succeed.
pub(crate) fn says_nothing_of_bytes(error: &io::Error) -> bool {
    let passing = [
        io::ErrorKind::OutOfMemory,
        io::ErrorKind::WouldBlock,
        io::ErrorKind::Interrupted,
        io::ErrorKind::PermissionDenied,
        io::ErrorKind::ReadOnlyFilesystem,
        // No regular file.
        io::ErrorKind::Unsupported,
    ];
    is_out_of_descriptors(error) || passing.contains(&error.kind())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::files::read_full;

    /// 16 KiB of ones whose second piece cannot be read; the first reads fail with these errors, the last one first.
    #[derive(Default)]
    struct Sick(Mutex<Vec<i32>>);

    impl File for Sick {
        fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
            if let Some(code) = self.0.lock().pop() {
                return Err(io::Error::from_raw_os_error(code));
            }
            let end = (position + buffer.len() as u64).min(16 << 10);
            if position < 8192 && end > 4096 {
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            let read = end.saturating_sub(position) as usize;
            buffer[..read].fill(1);
            Ok(read)
        }

        fn write_all_at(&self, _: &[u8], _: u64) -> io::Result<()> {
            Ok(())
        }

        fn sync_data(&self) -> io::Result<()> {
            Ok(())
        }

        fn len(&self) -> io::Result<u64> {
            Ok(16 << 10)
        }

        fn set_len(&self, _: u64) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn only_the_unreadable_piece_is_zeros() {
        for position in [0, 100] {
            let file = Salvage::new(Arc::new(Sick::default()));
            let mut bytes = vec![7; 20 << 10];
            let read = read_full(&file, &mut bytes, position).expect("a read");
            assert_eq!(read as u64, (16 << 10) - position);
            for (at, byte) in (position..).zip(&bytes[..read]) {
                assert_eq!(*byte, u8::from(!(4096..8192).contains(&at)), "byte {at}");
            }
            let expected = Unreadable {
                pieces: 1,
                end: 8192,
            };
            assert_eq!(file.unreadable(), Some(expected));
        }
    }

    #[test]
    fn no_more_than_was_asked_for_is_given_of_an_unreadable_piece() {
        let file = Salvage::new(Arc::new(Sick::default()));
        let mut bytes = [7; 10];
        assert_eq!(file.read_at(&mut bytes, 5000).expect("zeros"), 10);
        assert_eq!(bytes, [0; 10]);
    }

    #[test]
    fn want_of_descriptors_or_rights_is_not_taken_for_damage() {
        for code in [libc::EMFILE, libc::ENOMEM, libc::EACCES, libc::EROFS] {
            // At once, or when what a sick disk did not give is read again piece by piece.
            for errors in [vec![code], vec![code, libc::EIO]] {
                let file = Salvage::new(Arc::new(Sick(Mutex::new(errors))));
                let error = file.read_at(&mut [0; 8], 0).expect_err("refused");
                assert_eq!(error.raw_os_error(), Some(code));
                assert_eq!(file.unreadable(), None);
            }
        }
    }
}
