//! The folder of a log, without opening the log: by `log.meta`, or without one by the segment headers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::work::{Access, ToolError, Work};
use crate::batch::layout::Identity;
use crate::error::OpenError;
use crate::ids::{Class, LogId, Offset, PartitionId, Secret};
use crate::recovery::meta::Meta;
use crate::segment::header::{HeaderFound, base_of, file_name};
use crate::segment::scan::read_header;
use crate::vfs::files::{File, Files, LockError, LockGuard, OpenMode, existing};

/// Marks a folder in which a restore has not finished.
pub(super) const UNFINISHED: &str = "restoring";

/// Whether a folder with these names is an unfinished restore.
pub(super) fn is_unfinished(names: &[String]) -> bool {
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    has(UNFINISHED) && !has("log.meta")
}

/// One partition folder.
#[derive(Debug, Clone)]
pub(super) struct PartitionDir {
    pub name: String,
    pub class: Class,
    pub dir: PathBuf,
    pub identity: Identity,
    /// Base offsets of its segments, ascending.
    pub bases: Vec<Offset>,
    /// `.damaged` and `.torn` files.
    pub aside: Vec<String>,
}

impl PartitionDir {
    /// In the folder of a log; its files are not listed yet.
    pub fn new(log: &Path, name: &str, class: Class, identity: Identity) -> Self {
        Self {
            name: name.to_owned(),
            class,
            dir: log.join(name),
            identity,
            bases: Vec::new(),
            aside: Vec::new(),
        }
    }

    pub fn segment(&self, base: Offset) -> PathBuf {
        self.dir.join(file_name(base, "seg"))
    }

    pub fn open(&self, work: Work<'_>, base: Offset) -> Result<Arc<dyn File>, ToolError> {
        let open = |files: &dyn Files, path: &Path| files.open(path, OpenMode::Read);
        work.on("open", &self.segment(base), open)
    }
}

pub(super) struct Folder {
    /// Or why there is no good `log.meta`.
    pub meta: Result<Meta, OpenError>,
    pub log_id: LogId,
    pub secret: Secret,
    pub partitions: Vec<PartitionDir>,
    /// `log.meta` says so, or there is a file that only a node of a cluster writes.
    pub is_of_member: bool,
    /// None while another process has the log open.
    pub lock: Option<LockGuard>,
}

impl Folder {
    /// Reads names and headers. With [`Access::Alone`] the log is locked.
    pub fn open(dir: &Path, access: Access, work: Work<'_>) -> Result<Self, ToolError> {
        let files = &*work.seams.files;
        let names = work.on("list", dir, |files, path| files.list(path))?;
        let is_part = |name: &String| name == "log.meta" || class_of(name).is_some();
        if !names.iter().any(is_part) {
            let reason = "it holds neither log.meta nor a partition";
            return Err(ToolError::not_a_log(dir, reason));
        }
        if is_unfinished(&names) {
            let reason = "a restore into it has not finished; run it again";
            return Err(ToolError::not_a_log(dir, reason));
        }
        let lock = lock(files, dir, access)?;
        let meta = match Meta::load(files, dir) {
            Ok(Some(meta)) => Ok(meta),
            Ok(None) => Err(OpenError::MetaMissing {
                dir: dir.to_owned(),
            }),
            Err(error @ (OpenError::NewerFormat { .. } | OpenError::Io { .. })) => {
                return Err(error.into());
            }
            Err(error) => Err(error),
        };
        let (log_id, secret, mut partitions) = match &meta {
            Ok(meta) => (meta.log_id(dir)?, meta.secret, from_meta(dir, meta)?),
            Err(_) => {
                let (first, places) = from_headers(files, dir, &names)?;
                (first.log_id, first.secret, places)
            }
        };
        for place in &mut partitions {
            list(files, place)?;
        }
        let is_replica_file =
            |name: &String| name.starts_with("shard-") && name.ends_with(".replica");
        let is_named = meta.as_ref().is_ok_and(|meta| meta.member.is_some());
        Ok(Self {
            is_of_member: is_named || names.iter().any(is_replica_file),
            meta,
            log_id,
            secret,
            partitions,
            lock,
        })
    }

    /// The segments that may be read, with the offset where the next one begins.
    pub fn readable(&self, place: &PartitionDir) -> Vec<(Offset, Option<Offset>)> {
        let mut segments = with_ends(&place.bases, None);
        if self.lock.is_none() {
            // The broker writes the last one.
            segments.pop();
        }
        segments
    }

    /// Refuses the folder of a member of a cluster: what this log has committed is known to the cluster alone.
    pub fn refuse_member(&self, dir: &Path, instead: &str) -> Result<(), ToolError> {
        if !self.is_of_member {
            return Ok(());
        }
        let why = format!("is the copy of a cluster's log that one of its nodes has; {instead}");
        Err(ToolError::refused(dir, &why))
    }

    pub fn bytes(&self, work: Work<'_>) -> u64 {
        let sizes = self.partitions.iter().flat_map(|place| {
            let files = self.readable(place).into_iter();
            let files = files.filter_map(|(base, _)| place.open(work, base).ok());
            files.filter_map(|file| file.len().ok())
        });
        sizes.sum()
    }
}

/// Base offsets, each with the offset where the next segment begins; `end` for the last one.
pub(super) fn with_ends(bases: &[Offset], end: Option<Offset>) -> Vec<(Offset, Option<Offset>)> {
    let ends = bases.iter().skip(1).copied().map(Some).chain([end]);
    bases.iter().copied().zip(ends).collect()
}

fn lock(files: &dyn Files, dir: &Path, access: Access) -> Result<Option<LockGuard>, ToolError> {
    match (files.lock(&dir.join("lock")), access) {
        (Ok(lock), _) => Ok(Some(lock)),
        (Err(LockError::Held { .. }), Access::Online) => Ok(None),
        (Err(LockError::Held { holder }), Access::Alone) => Err(ToolError::InUse {
            dir: dir.to_owned(),
            pid: holder,
        }),
        (Err(LockError::Io(error)), _) => Err(ToolError::io("lock", dir)(error)),
    }
}

/// Class and number in the name of a partition folder.
pub(super) fn class_of(name: &str) -> Option<(Class, u32)> {
    let (class, number) = name.rsplit_once('-')?;
    Some((Class::from_name(class)?, number.parse().ok()?))
}

fn from_meta(dir: &Path, meta: &Meta) -> Result<Vec<PartitionDir>, ToolError> {
    let log_id = meta.log_id(dir)?;
    let mut places = Vec::new();
    for stored in &meta.classes {
        let class = Class::from_name(&stored.class).ok_or_else(|| {
            ToolError::Refused(format!("class {} is unknown to this version", stored.class))
        })?;
        for number in 0..stored.partitions {
            let identity = Identity {
                log_id,
                partition: PartitionId(places.len() as u32),
                secret: meta.secret,
            };
            let name = format!("{class}-{number}");
            places.push(PartitionDir::new(dir, &name, class, identity));
        }
    }
    Ok(places)
}

/// The partitions by their segment headers, and the identity of the first. A folder without a good header is left out.
fn from_headers(
    files: &dyn Files,
    dir: &Path,
    names: &[String],
) -> Result<(Identity, Vec<PartitionDir>), ToolError> {
    let mut places: Vec<PartitionDir> = Vec::new();
    let mut names: Vec<&String> = names.iter().collect();
    names.sort_unstable();
    for name in names {
        let Some((class, _)) = class_of(name) else {
            continue;
        };
        let unknown = Identity {
            log_id: LogId::from_bytes([0; 16]),
            partition: PartitionId(0),
            secret: Secret::from_bytes([0; 8]),
        };
        let mut place = PartitionDir::new(dir, name, class, unknown);
        list(files, &mut place)?;
        let headers = place.bases.iter().filter_map(|base| {
            let file = files.open(&place.segment(*base), OpenMode::Read).ok()?;
            match read_header(&*file) {
                Ok(HeaderFound::Good(header)) if header.class == class => Some(header.identity),
                _ => None,
            }
        });
        // All headers must agree: a segment may have been moved here from another log.
        let identities: Vec<Identity> = headers.collect();
        let Some(first) = identities.first() else {
            continue;
        };
        let place_of = |identity: &Identity| (identity.log_id, identity.partition);
        let is_other = |identity: &&Identity| place_of(identity) != place_of(first);
        if let Some(other) = identities.iter().find(is_other) {
            return Err(ToolError::Refused(format!(
                "the segments of {} name partition {} of log {} and partition {} of log {}; move those of the other log away",
                name, first.partition, first.log_id, other.partition, other.log_id
            )));
        }
        if identities.iter().any(|one| one.secret != first.secret) {
            return Err(secrets_differ(name));
        }
        place.identity = *first;
        places.push(place);
    }
    places.sort_by_key(|place| place.identity.partition);
    let Some(first) = places.first().map(|place| place.identity) else {
        let reason = "no segment has a header that says which log it is";
        return Err(ToolError::not_a_log(dir, reason));
    };
    for other in &places {
        if other.identity.log_id != first.log_id {
            return Err(ToolError::Refused(format!(
                "{} is of log {}, {} of log {}; move one of them away",
                other.name, other.identity.log_id, places[0].name, first.log_id
            )));
        }
        if other.identity.secret != first.secret {
            return Err(secrets_differ(&other.name));
        }
    }
    Ok((first, places))
}

/// A log has one secret: one of the files is not of this log.
fn secrets_differ(name: &str) -> ToolError {
    ToolError::Refused(format!(
        "the segment headers up to {name} name different secrets; restore a backup, or move those of the other log away"
    ))
}

fn list(files: &dyn Files, place: &mut PartitionDir) -> Result<(), ToolError> {
    let names = existing(files.list(&place.dir)).map_err(ToolError::io("list", &place.dir))?;
    let names = names.unwrap_or_default();
    place.bases = names.iter().filter_map(|name| base_of(name)).collect();
    place.bases.sort_unstable();
    place.aside = names
        .into_iter()
        .filter(|name| name.ends_with(".damaged") || name.ends_with(".torn"))
        .collect();
    place.aside.sort();
    Ok(())
}
