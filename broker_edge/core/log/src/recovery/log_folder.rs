//! The folder of a log: its lock, and the identity in its `log.meta`.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use crate::config::LogConfig;
use crate::error::OpenError;
use crate::ids::{Class, DiskId, Epoch, LogId, Secret};
use crate::recovery::meta::{Member, Meta};
use crate::vfs::clock::Seams;
use crate::vfs::files::{Files, LockError, LockGuard};

pub(crate) fn lock(seams: &Seams, dir: &Path) -> Result<LockGuard, OpenError> {
    let path = dir.join("lock");
    seams.files.lock(&path).map_err(|error| match error {
        LockError::Held { holder } => OpenError::InUse {
            dir: dir.to_owned(),
            pid: holder,
        },
        LockError::Io(source) => OpenError::write(&path, source),
    })
}

/// The checked `log.meta`, and whether it is new.
pub(crate) fn load_or_create(config: &LogConfig, seams: &Seams) -> Result<(Meta, bool), OpenError> {
    let (dir, files) = (config.dir.as_path(), &*seams.files);
    if let Some(meta) = Meta::load(files, dir)? {
        let found = meta.log_id(dir)?;
        let node = config.replica.as_ref().map(|replica| &*replica.node);
        meta.check_member(dir, node)?;
        if let Some(expected) = config.expected_id.filter(|expected| *expected != found) {
            return Err(OpenError::OtherLog {
                dir: dir.to_owned(),
                expected,
                found,
            });
        }
        let given = config.replica.as_ref().and_then(|replica| replica.secret);
        if given.is_some_and(|given| given != meta.secret) {
            return Err(OpenError::OtherSecret {
                dir: dir.to_owned(),
                log_id: found,
            });
        }
        meta.check(dir, &config.classes)?;
        return Ok((meta, false));
    }
    let listed = files.list(dir);
    let names = listed.map_err(|source| OpenError::io("list", dir, source))?;
    let is_partition = |name: &String| {
        let class = name.rsplit_once('-').map(|(class, _)| class);
        class.is_some_and(|class| Class::from_name(class).is_some())
    };
    // `restoring` is there while a restore has not finished.
    if names
        .iter()
        .any(|name| is_partition(name) || name == "restoring")
    {
        return Err(OpenError::MetaMissing {
            dir: dir.to_owned(),
        });
    }
    let failed = |source| OpenError::io("read", Path::new("/dev/urandom"), source);
    let (id, secret) = random_identity().map_err(failed)?;
    let id = config.expected_id.unwrap_or(id);
    let given = config.replica.as_ref().and_then(|replica| replica.secret);
    let secret = given.unwrap_or(secret);
    sync_names_of(files, dir)?;
    let member = match &config.replica {
        None => None,
        Some(replica) => Some(Member {
            node: replica.node.clone(),
            disk: DiskId(u64::from_ne_bytes(random().map_err(failed)?)),
        }),
    };
    let meta = Meta::new(id, secret, seams.clock.now_us(), &config.classes).of_member(member);
    meta.save(files, dir)?;
    Ok((meta, true))
}

/// Whose a folder is: what its `log.meta` says, without opening the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderOwner {
    pub log_id: LogId,
    /// The node of a cluster, and the id of its folder. `None` for a log of its own.
    pub member: Option<(String, DiskId)>,
}

/// `None` for a folder without a log.
///
/// # Errors
/// A `log.meta` that is damaged, newer or cannot be read.
pub fn folder_owner(dir: &Path, seams: &Seams) -> Result<Option<FolderOwner>, OpenError> {
    let Some(meta) = Meta::load(&*seams.files, dir)? else {
        return Ok(None);
    };
    Ok(Some(FolderOwner {
        log_id: meta.log_id(dir)?,
        member: meta.member.map(|member| (member.node, member.disk)),
    }))
}

/// Gives the folder of a log of its own to a node of a cluster: from then on it is opened as that node or not at all.
/// `epoch` is the one of the life in which it was looked at, so that nobody has appended since.
///
/// # Errors
/// The log is open, was opened since then, or is that of a node already; or `log.meta` cannot be written, and then it is
/// as before.
pub fn give_folder_to_node(
    dir: &Path,
    seams: &Seams,
    node: &str,
    disk: DiskId,
    epoch: Epoch,
) -> Result<(), OpenError> {
    let _lock = lock(seams, dir)?;
    let meta = Meta::load(&*seams.files, dir)?;
    let meta = meta.ok_or_else(|| OpenError::MetaMissing {
        dir: dir.to_owned(),
    })?;
    meta.check_member(dir, None)?;
    if meta.epoch != epoch.0 {
        return Err(OpenError::OpenedMeanwhile {
            dir: dir.to_owned(),
        });
    }
    let node = node.to_owned();
    let meta = meta.of_member(Some(Member { node, disk }));
    meta.save(&*seams.files, dir)
}

/// Syncs the folders that lead to a new log: a power cut could otherwise remove one of them, with all acknowledged
/// records.
pub(crate) fn sync_names_of(files: &dyn Files, dir: &Path) -> Result<(), OpenError> {
    for parent in dir.ancestors().skip(1) {
        let is_here = parent.as_os_str().is_empty();
        let parent = if is_here { Path::new(".") } else { parent };
        // We may not open it, so we did not make it; or its file system has nothing to sync there.
        let passing = [ErrorKind::PermissionDenied, ErrorKind::InvalidInput];
        match files.sync_dir(parent) {
            Err(error) if passing.contains(&error.kind()) => {}
            result => result.map_err(|error| OpenError::write(parent, error))?,
        }
    }
    Ok(())
}

pub(crate) fn random_identity() -> io::Result<(LogId, Secret)> {
    Ok((LogId::from_random(random()?), Secret::from_bytes(random()?)))
}

fn random<const BYTES: usize>() -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
