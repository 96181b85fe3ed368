//! The contents of a disk and of the page cache above it, and what is left of both after a power cut.
//!
//! A file is a sequence of 512-byte sectors. Until it is synced, a power cut leaves each sector with the bytes of any
//! write to it, or of none, independent of its neighbours. The length is any that the file has had, and some renames
//! and removals happened while others did not (`docs/format.md` §10). Faults, processes and logs are not known here:
//! they are in `mod.rs` and `calls.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub const SECTOR: usize = 512;

/// SplitMix64: small, and the same everywhere.
#[derive(Debug, Clone, Default)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// True in `eighths` of eight cases.
    pub fn chance(&mut self, eighths: usize) -> bool {
        self.below(8) < eighths
    }

    /// How much unsynced data survives: nothing, little, half, most, everything. Chosen per file, because otherwise a
    /// run of surviving sectors would almost never occur.
    fn mood(&mut self) -> usize {
        [0, 1, 4, 7, 8][self.below(5)]
    }
}

/// A file. `cache` is what processes see, `disk` what survives a power cut.
#[derive(Debug, Clone, Default)]
pub struct Inode {
    pub disk: Arc<Vec<u8>>,
    pub cache: Arc<Vec<u8>>,
    /// The writes to each sector since the last sync, oldest first.
    dirty: BTreeMap<usize, Vec<Arc<[u8]>>>,
    /// Lengths since the last sync, oldest first.
    lengths: Vec<usize>,
    /// Sectors that a failed sync dropped: clean for the kernel, older on the disk than in the cache.
    dropped: BTreeSet<usize>,
}

fn sectors(start: usize, end: usize) -> std::ops::Range<usize> {
    start / SECTOR..end.div_ceil(SECTOR)
}

fn sector_of(bytes: &[u8], sector: usize) -> Arc<[u8]> {
    let start = (sector * SECTOR).min(bytes.len());
    bytes[start..(start + SECTOR).min(bytes.len())].into()
}

fn put(bytes: &mut [u8], sector: usize, content: &[u8]) {
    let start = (sector * SECTOR).min(bytes.len());
    let end = (start + content.len()).min(bytes.len());
    bytes[start..end].copy_from_slice(&content[..end - start]);
}

impl Inode {
    pub fn write(&mut self, position: usize, bytes: &[u8]) {
        let end = position + bytes.len();
        let cache = Arc::make_mut(&mut self.cache);
        if cache.len() < end {
            cache.resize(end, 0);
            self.lengths.push(end);
        }
        cache[position..end].copy_from_slice(bytes);
        self.note(position, end);
    }

    pub fn set_len(&mut self, length: usize) {
        let old = self.cache.len();
        if length == old {
            return;
        }
        let cache = Arc::make_mut(&mut self.cache);
        if length < old {
            // Truncated bytes read as zeros if the file grows again.
            cache[length..].fill(0);
            self.note(length, old);
            Arc::make_mut(&mut self.cache).truncate(length);
        } else {
            cache.resize(length, 0);
        }
        self.lengths.push(length);
    }

    fn note(&mut self, start: usize, end: usize) {
        for sector in sectors(start, end) {
            let content = sector_of(&self.cache, sector);
            self.dirty.entry(sector).or_default().push(content);
        }
    }

    pub fn sync(&mut self) {
        let disk = Arc::make_mut(&mut self.disk);
        disk.resize(self.cache.len(), 0);
        for sector in std::mem::take(&mut self.dirty).into_keys() {
            put(disk, sector, &sector_of(&self.cache, sector));
            self.dropped.remove(&sector);
        }
        self.lengths.clear();
    }

    /// The sync failed: some of the sectors reached the disk, and the kernel considers all of them written.
    pub fn fail_sync(&mut self, random: &mut Random) {
        let mood = random.mood();
        let disk = Arc::make_mut(&mut self.disk);
        for (sector, versions) in std::mem::take(&mut self.dirty) {
            if random.chance(mood) {
                put(disk, sector, &versions[random.below(versions.len())]);
            }
            self.dropped.insert(sector);
        }
    }

    /// Pages that the kernel considers clean may be read from the disk again at any time.
    pub fn evict(&mut self, random: &mut Random) {
        let mood = random.mood();
        for sector in std::mem::take(&mut self.dropped) {
            if random.chance(mood) && !self.dirty.contains_key(&sector) {
                let content = sector_of(&self.disk, sector);
                put(
                    Arc::make_mut(&mut self.cache).as_mut_slice(),
                    sector,
                    &content,
                );
            } else {
                self.dropped.insert(sector);
            }
        }
    }

    /// `stale` is the possible content of sectors that are new to the file.
    fn cut(&mut self, random: &mut Random, stale: Option<&[u8]>) {
        if self.dirty.is_empty() && self.lengths.is_empty() && self.dropped.is_empty() {
            return;
        }
        let mood = random.mood();
        let was = self.disk.len();
        let mut length = was;
        if !self.lengths.is_empty() && random.chance(mood) {
            let at = random.below(self.lengths.len());
            let before = if at == 0 { was } else { self.lengths[at - 1] };
            length = self.lengths[at];
            if before < length && random.chance(2) {
                // Half of a file that grows: whole sectors of it.
                let room = sectors(before, length).len();
                length = (before + random.below(room) * SECTOR).min(length);
            }
        }
        let disk = Arc::make_mut(&mut self.disk);
        disk.resize(length, 0);
        if let Some(stale) = stale {
            for sector in sectors(was, length).skip(1) {
                put(disk, sector, &sector_of(stale, sector));
            }
        }
        for (sector, versions) in std::mem::take(&mut self.dirty) {
            if random.chance(mood) {
                put(disk, sector, &versions[random.below(versions.len())]);
            }
        }
        self.lengths.clear();
        self.dropped.clear();
        self.cache = Arc::clone(&self.disk);
    }

    /// Whether a sync has failed that no later one can repair.
    pub fn has_dropped(&self) -> bool {
        let sectors = self.cache.len().div_ceil(SECTOR);
        self.dropped.range(..sectors).next().is_some()
    }
}

/// The target of a name: a folder, or the file with this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Node {
    Folder,
    File(usize),
}

pub type Names = BTreeMap<PathBuf, Node>;

/// A change of names that is not on the disk yet.
#[derive(Debug, Clone)]
enum Change {
    Link {
        path: PathBuf,
        node: Node,
    },
    Unlink {
        path: PathBuf,
        node: Node,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
        node: Node,
    },
}

impl Change {
    fn folder(&self) -> Option<&Path> {
        match self {
            Self::Link { path, .. } | Self::Unlink { path, .. } => path.parent(),
            Self::Rename { to, .. } => to.parent(),
        }
    }

    fn node(&self) -> Node {
        match self {
            Self::Link { node, .. } | Self::Unlink { node, .. } | Self::Rename { node, .. } => {
                *node
            }
        }
    }

    fn apply(self, names: &mut Names) {
        match self {
            Self::Link { path, node } => {
                names.insert(path, node);
            }
            Self::Unlink { path, node } => {
                if names.get(&path) == Some(&node) {
                    names.remove(&path);
                }
            }
            Self::Rename { from, to, node } => {
                if names.get(&from) == Some(&node) {
                    names.remove(&from);
                }
                names.insert(to, node);
            }
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct Disk {
    pub inodes: Vec<Inode>,
    /// Names as processes see them, and as they are on the disk.
    pub names: Names,
    disk_names: Names,
    changes: Vec<Change>,
}

impl Disk {
    fn change(&mut self, change: Change) {
        change.clone().apply(&mut self.names);
        self.changes.push(change);
    }

    pub fn create_folder(&mut self, path: &Path) {
        let folders: Vec<_> = path
            .ancestors()
            .filter(|path| path.parent().is_some())
            .collect();
        for path in folders.into_iter().rev() {
            if !self.names.contains_key(path) {
                let (path, node) = (path.to_owned(), Node::Folder);
                self.change(Change::Link { path, node });
            }
        }
    }

    pub fn is_folder(&self, path: &Path) -> bool {
        path.parent().is_none() || self.names.get(path) == Some(&Node::Folder)
    }

    pub fn file(&self, path: &Path) -> Option<usize> {
        match self.names.get(path) {
            Some(Node::File(inode)) => Some(*inode),
            _ => None,
        }
    }

    pub fn name_of(&self, inode: usize) -> Option<&Path> {
        let mut names = self.names.iter();
        names
            .find(|(_, node)| **node == Node::File(inode))
            .map(|(path, _)| path.as_path())
    }

    pub fn create_file(&mut self, path: &Path) -> usize {
        let inode = self.inodes.len();
        self.inodes.push(Inode::default());
        let (path, node) = (path.to_owned(), Node::File(inode));
        self.change(Change::Link { path, node });
        inode
    }

    pub fn rename(&mut self, from: &Path, to: &Path, inode: usize) {
        let (from, to, node) = (from.to_owned(), to.to_owned(), Node::File(inode));
        self.change(Change::Rename { from, to, node });
    }

    pub fn remove(&mut self, path: &Path, inode: usize) {
        let (path, node) = (path.to_owned(), Node::File(inode));
        self.change(Change::Unlink { path, node });
    }

    /// Only the names in this folder: a sync of one folder need not include another's names.
    pub fn sync_folder(&mut self, folder: &Path) {
        for change in std::mem::take(&mut self.changes) {
            if change.folder() == Some(folder) {
                change.apply(&mut self.disk_names);
            } else {
                self.changes.push(change);
            }
        }
    }

    /// Reduces the state to a possible one after a power cut.
    pub fn cut(&mut self, random: &mut Random) {
        self.cut_names(random);
        let named: BTreeSet<usize> = self
            .names
            .values()
            .filter_map(|node| match node {
                Node::File(inode) => Some(*inode),
                Node::Folder => None,
            })
            .collect();
        let removed: Vec<usize> = (0..self.inodes.len())
            .filter(|inode| !named.contains(inode) && !self.inodes[*inode].disk.is_empty())
            .collect();
        for inode in named {
            let stale = (!removed.is_empty() && random.chance(2))
                .then(|| Arc::clone(&self.inodes[removed[random.below(removed.len())]].disk));
            self.inodes[inode].cut(random, stale.as_ref().map(|bytes| bytes.as_slice()));
        }
    }

    /// Either an ordered journal ends at some point, or each file has progressed independently.
    fn cut_names(&mut self, random: &mut Random) {
        let changes = std::mem::take(&mut self.changes);
        if random.chance(4) {
            let kept = random.below(changes.len() + 1);
            for change in changes.into_iter().take(kept) {
                change.apply(&mut self.disk_names);
            }
        } else {
            let mut left_behind: Vec<Change> = Vec::new();
            let mood = random.mood();
            for change in changes {
                let is_stuck = left_behind.iter().any(|earlier| match change.node() {
                    Node::File(_) => earlier.node() == change.node(),
                    Node::Folder => false,
                });
                if !is_stuck && random.chance(mood) {
                    change.apply(&mut self.disk_names);
                } else {
                    left_behind.push(change);
                }
            }
        }
        // The contents of a removed folder are removed with it.
        let names = &self.disk_names;
        let is_reachable = |path: &Path| {
            path.ancestors()
                .skip(1)
                .all(|folder| folder.parent().is_none() || names.contains_key(folder))
        };
        self.names = names
            .iter()
            .filter(|(path, _)| is_reachable(path))
            .map(|(path, node)| (path.clone(), *node))
            .collect();
        self.disk_names = self.names.clone();
    }
}
