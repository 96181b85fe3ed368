//! The file system of one life of the tested process: every call is counted, and may fail, wait or find the power off.

use std::io;
use std::path::Path;
use std::sync::Arc;

use headwater_log::{File, Files, LockError, LockGuard, OpenMode, Padded};

use super::disk::Disk;
use super::{Fault, Shared, State};

pub(super) struct Life {
    pub shared: Arc<Shared>,
    pub life: u64,
}

struct SimFile {
    shared: Arc<Shared>,
    inode: usize,
    life: u64,
    name: String,
}

impl Shared {
    /// Runs one call unless its process is dead, the power is off, or the call is set to fail.
    fn call<T>(
        &self,
        life: u64,
        what: &str,
        name: &str,
        inode: Option<usize>,
        f: impl FnOnce(&mut State, Option<Fault>) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut state = self.state.lock();
        while state.life == life && state.holds.iter().any(|hold| hold.stops(what, name)) {
            if !state.held {
                state.held = true;
                self.changed.notify_all();
            }
            self.changed.wait(&mut state);
        }
        if state.life != life {
            return Err(io::Error::other("this process is dead"));
        }
        if state.is_off {
            return Err(io::Error::other("the power is off"));
        }
        if state.is_aside {
            return f(&mut state, None);
        }
        state.calls += 1;
        assert!(
            state.calls < state.calls_max,
            "{} calls and no end: {what} of {name}",
            state.calls
        );
        if state.off_at == Some(state.calls) {
            state.is_off = true;
            return Err(io::Error::other("the power is off"));
        }
        if state.is_recording {
            let disk = state.disk.clone();
            let note = state.note;
            state
                .recorded
                .push((format!("{what} of {name}"), note, disk));
        }
        let fault = state.fault_of(what, name, inode);
        if let Some(error) = fault.and_then(|fault| fault.error_of(what)) {
            return Err(error);
        }
        f(&mut state, fault)
    }
}

impl SimFile {
    fn call<T>(
        &self,
        what: &str,
        f: impl FnOnce(&mut State, usize, Option<Fault>) -> io::Result<T>,
    ) -> io::Result<T> {
        self.shared.call(
            self.life,
            what,
            &self.name,
            Some(self.inode),
            |state, fault| f(state, self.inode, fault),
        )
    }

    /// What a direct write promises: whole pages, the bytes that the file holds before its parts, and no new space.
    fn check_pages(&self, before: &[u8], start: usize, bytes: usize) {
        let state = self.shared.state.lock();
        if state.life != self.life || state.is_off {
            return;
        }
        let (name, held) = (&self.name, &state.disk.inodes[self.inode].cache);
        assert_eq!(
            (start % 4096, bytes % 4096),
            (0, 0),
            "{name}: no whole pages"
        );
        assert!(start + bytes <= held.len(), "{name}: a direct write grows");
        assert!(
            held[start..].starts_with(before),
            "{name}: other bytes before {start}"
        );
    }
}

impl State {
    /// Takes the space that a file grows by; an error when there is too little.
    fn take_space(&mut self, bytes: usize) -> io::Result<()> {
        if let Some(free) = &mut self.free_bytes {
            *free = free
                .checked_sub(bytes)
                .ok_or(io::Error::from_raw_os_error(libc::ENOSPC))?;
        }
        Ok(())
    }

    fn give_space(&mut self, bytes: usize) {
        if let Some(free) = &mut self.free_bytes {
            *free += bytes;
        }
    }

    fn length(&self, inode: usize) -> usize {
        self.disk.inodes[inode].cache.len()
    }
}

impl File for SimFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.call("read_at", |state, inode, _| {
            let bytes = &state.disk.inodes[inode].cache;
            let start = (position as usize).min(bytes.len());
            let end = (start + buffer.len()).min(bytes.len());
            buffer[..end - start].copy_from_slice(&bytes[start..end]);
            Ok(end - start)
        })
    }

    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.call("write_all_at", |state, inode, fault| {
            let position = position as usize;
            let written = match fault {
                Some(_) => bytes.len() / 2,
                None => bytes.len(),
            };
            let grows = (position + written).saturating_sub(state.length(inode));
            state.take_space(grows)?;
            state.disk.inodes[inode].write(position, &bytes[..written]);
            match fault {
                Some(fault) => Err(fault.into_error("write_all_at")),
                None => Ok(()),
            }
        })
    }

    /// One write of all pages: the bytes before the parts are written once more, as by a direct write.
    fn write_padded_at(&self, padded: &Padded<'_>, position: u64) -> io::Result<()> {
        let before = padded.before.unwrap_or_default();
        let pages = [before, &padded.parts.concat(), &vec![0; padded.pad]].concat();
        let start = position - before.len() as u64;
        if padded.before.is_some() {
            self.check_pages(before, start as usize, pages.len());
        }
        self.write_all_at(&pages, start)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.call("sync_data", |state, inode, fault| {
            let State { disk, random, .. } = state;
            if fault.is_some() || state.fail_syncs {
                disk.inodes[inode].fail_sync(random);
                state.failed_syncs.insert(inode);
                return Err(fault.unwrap_or(Fault::LostSync).into_error("sync_data"));
            }
            if !state.lies_about_syncs {
                disk.inodes[inode].sync();
            }
            if state.failed_syncs.contains(&inode) && disk.inodes[inode].has_dropped() {
                state.retried.push(self.name.clone());
            }
            Ok(())
        })
    }

    fn len(&self) -> io::Result<u64> {
        self.call("len", |state, inode, _| Ok(state.length(inode) as u64))
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.call("set_len", |state, inode, _| {
            let (old, new) = (state.length(inode), bytes as usize);
            state.take_space(new.saturating_sub(old))?;
            state.give_space(old.saturating_sub(new));
            state.disk.inodes[inode].set_len(new);
            Ok(())
        })
    }
}

impl Life {
    fn call<T>(
        &self,
        what: &str,
        path: &Path,
        f: impl FnOnce(&mut State) -> io::Result<T>,
    ) -> io::Result<T> {
        self.shared.call(
            self.life,
            what,
            &path.to_string_lossy(),
            None,
            |state, _| {
                if state.no_descriptors && matches!(what, "open" | "sync_dir" | "list") {
                    return Err(io::Error::from_raw_os_error(libc::EMFILE));
                }
                f(state)
            },
        )
    }
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

fn folder_of(disk: &Disk, path: &Path) -> io::Result<()> {
    let is_there = path.parent().is_some_and(|folder| disk.is_folder(folder));
    is_there.then_some(()).ok_or_else(not_found)
}

impl Files for Life {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.call("create_dir", dir, |state| {
            state.disk.create_folder(dir);
            Ok(())
        })
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.call("list", dir, |state| {
            if !state.disk.is_folder(dir) {
                return Err(not_found());
            }
            let names = state.disk.names.keys();
            Ok(names
                .filter(|path| path.parent() == Some(dir))
                .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
                .collect())
        })
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.call("open", path, |state| {
            let inode = match (state.disk.file(path), mode) {
                (Some(inode), OpenMode::Create) => {
                    let length = state.length(inode);
                    state.give_space(length);
                    state.disk.inodes[inode].set_len(0);
                    inode
                }
                (Some(inode), _) => inode,
                (None, OpenMode::Create) => {
                    folder_of(&state.disk, path)?;
                    state.disk.create_file(path)
                }
                (None, _) => return Err(not_found()),
            };
            let file: Arc<dyn File> = Arc::new(SimFile {
                shared: Arc::clone(&self.shared),
                inode,
                life: self.life,
                name: path.to_string_lossy().into_owned(),
            });
            Ok(file)
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call("rename", from, |state| {
            let inode = state.disk.file(from).ok_or_else(not_found)?;
            folder_of(&state.disk, to)?;
            if let Some(replaced) = state.disk.file(to) {
                let length = state.length(replaced);
                state.give_space(length);
            }
            state.disk.rename(from, to, inode);
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call("remove", path, |state| {
            let inode = state.disk.file(path).ok_or_else(not_found)?;
            let length = state.length(inode);
            state.give_space(length);
            state.disk.remove(path, inode);
            Ok(())
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.call("sync_dir", dir, |state| {
            if !state.disk.is_folder(dir) {
                return Err(not_found());
            }
            if !state.lies_about_syncs {
                state.disk.sync_folder(dir);
            }
            Ok(())
        })
    }

    fn lock(&self, path: &Path) -> Result<LockGuard, LockError> {
        let guard: LockGuard = Box::new(());
        self.call("lock", path, |_| Ok(guard))
            .map_err(LockError::Io)
    }
}
