//! `log.meta`: the identity of a log and what is fixed at its creation.

use std::fmt::Display;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::config::ClassConfig;
use crate::error::OpenError;
use crate::ids::{DiskId, LogId, Secret};
use crate::segment::header::FORMAT;
use crate::vfs::files::{Files, read_file, replace_file};
use crate::vfs::salvage::says_nothing_of_bytes;

const NAME: &str = "log.meta";
/// Of a folder that belongs to a cluster. A version that knows no clusters refuses it by this number: alone it would give
/// new records offsets that the cluster gives to others.
const MEMBER_FORMAT: u32 = 2;
const HASH: &str = "xxh3-64";
/// Larger than any log.meta; a longer file is refused.
const MAX_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Meta {
    pub format: u32,
    pub log_id: String,
    pub secret: Secret,
    pub created_us: i64,
    /// Newest epoch used; 0 until every partition folder has been made.
    pub epoch: u64,
    pub hash: String,
    pub classes: Vec<MetaClass>,
    /// Which member of a cluster has this folder; then `format` is [`MEMBER_FORMAT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<Member>,
}

/// A node of a cluster and its data folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    pub node: String,
    pub disk: DiskId,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MetaClass {
    pub class: String,
    pub partitions: u32,
    pub template: Option<String>,
}

/// The part that every format of `log.meta` has, so that a newer one is refused by its number.
#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

impl Meta {
    pub fn new(log_id: LogId, secret: Secret, created_us: i64, classes: &[ClassConfig]) -> Self {
        let classes = classes
            .iter()
            .map(|class| MetaClass {
                class: class.class.name().to_owned(),
                partitions: class.partitions,
                template: class.template.clone(),
            })
            .collect();
        Self {
            format: FORMAT,
            log_id: log_id.to_string(),
            secret,
            created_us,
            epoch: 0,
            hash: HASH.to_owned(),
            classes,
            member: None,
        }
    }

    /// The same, of a member of a cluster or of nobody.
    pub fn of_member(self, member: Option<Member>) -> Self {
        let format = member.as_ref().map_or(FORMAT, |_| MEMBER_FORMAT);
        Self {
            format,
            member,
            ..self
        }
    }

    /// None when the folder has no `log.meta`.
    pub fn load(files: &dyn Files, dir: &Path) -> Result<Option<Self>, OpenError> {
        let path = dir.join(NAME);
        let damaged = |reason: &str| OpenError::Damaged {
            path: path.clone(),
            reason: reason.to_owned(),
        };
        let bytes = match read_file(files, &path, MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) if says_nothing_of_bytes(&source) => {
                return Err(OpenError::io("read", &path, source));
            }
            Err(error) => return Err(damaged(&error.to_string())),
        };
        Self::parse(&path, bytes).map(Some)
    }

    /// The contents of the file at `path`.
    pub(crate) fn parse(path: &Path, bytes: Vec<u8>) -> Result<Self, OpenError> {
        let damaged = |reason: &str| OpenError::Damaged {
            path: path.to_owned(),
            reason: reason.to_owned(),
        };
        let text = String::from_utf8(bytes).map_err(|_| damaged("it is not text"))?;
        let mut lines = text.lines();
        let (Some(json), Some(checksum)) = (lines.next(), lines.next()) else {
            return Err(damaged("it has fewer than two lines"));
        };
        if checksum != format!("{:08x}", crc32c::crc32c(json.as_bytes())) {
            return Err(damaged("its checksum does not match"));
        }
        let found = serde_json::from_str::<FormatOnly>(json)
            .map_err(|error| damaged(&error.to_string()))?
            .format;
        if found > MEMBER_FORMAT {
            return Err(OpenError::NewerFormat {
                path: path.to_owned(),
                found,
                supported: MEMBER_FORMAT,
            });
        }
        let meta: Self = serde_json::from_str(json).map_err(|error| damaged(&error.to_string()))?;
        if meta.member.is_some() != (meta.format == MEMBER_FORMAT) {
            return Err(damaged("a member is named exactly in format 2"));
        }
        Ok(meta)
    }

    pub fn save(&self, files: &dyn Files, dir: &Path) -> Result<(), OpenError> {
        let path = dir.join(NAME);
        let json = serde_json::to_string(self).expect("numbers and text always serialize");
        let text = format!("{json}\n{:08x}\n", crc32c::crc32c(json.as_bytes()));
        replace_file(files, &path, text.as_bytes())
            .and_then(|()| files.sync_dir(dir))
            .map_err(|source| OpenError::write(&path, source))
    }

    pub fn log_id(&self, dir: &Path) -> Result<LogId, OpenError> {
        let parsed = self.log_id.parse::<LogId>();
        parsed.map_err(|error| OpenError::Damaged {
            path: dir.join(NAME),
            reason: error.to_string(),
        })
    }

    /// Refuses a folder of a cluster where none is set, the folder of another node, and a log of its own where a member
    /// is expected.
    pub fn check_member(&self, dir: &Path, node: Option<&str>) -> Result<(), OpenError> {
        let dir = || dir.to_owned();
        match (&self.member, node) {
            (None, None) => Ok(()),
            (Some(member), Some(node)) if member.node == node => Ok(()),
            (Some(member), None) => Err(OpenError::OfCluster {
                dir: dir(),
                node: member.node.clone(),
            }),
            (Some(member), Some(node)) => Err(OpenError::OtherNode {
                dir: dir(),
                expected: node.to_owned(),
                found: member.node.clone(),
            }),
            (None, Some(node)) => Err(OpenError::NotOfCluster {
                dir: dir(),
                node: node.to_owned(),
            }),
        }
    }

    /// Refuses settings that differ from those that were fixed at creation.
    pub fn check(&self, dir: &Path, classes: &[ClassConfig]) -> Result<(), OpenError> {
        let same = |class: &str, what, stored: &dyn Display, configured: &dyn Display| {
            let (stored, configured) = (stored.to_string(), configured.to_string());
            if stored == configured {
                return Ok(());
            }
            Err(OpenError::Changed {
                dir: dir.to_owned(),
                class: class.to_owned(),
                what,
                stored,
                configured,
            })
        };
        let text = |template: &Option<String>| match template {
            Some(template) => format!("{template:?}"),
            None => "unset".to_owned(),
        };
        same("every class", "the hash", &self.hash, &HASH)?;
        for (at, stored) in self.classes.iter().enumerate() {
            let class = &*stored.class;
            let found = classes
                .get(at)
                .map_or("missing", |found| found.class.name());
            let Some(configured) = classes.get(at).filter(|_| found == class) else {
                let (stored, found) = (format!("number {}", at + 1), format!("{found} there"));
                return same(class, "the place", &stored, &found);
            };
            let (before, now) = (stored.partitions, configured.partitions);
            same(class, "the number of partitions", &before, &now)?;
            let (before, now) = (text(&stored.template), text(&configured.template));
            same(class, "the template", &before, &now)?;
        }
        classes.get(self.classes.len()).map_or(Ok(()), |extra| {
            same(extra.class.name(), "the class", &"missing", &"there")
        })
    }
}
