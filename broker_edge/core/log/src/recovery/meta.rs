//! `log.meta`: the identity of a log and what is fixed at its creation.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::config::ClassConfig;
use crate::error::OpenError;
use crate::ids::{LogId, Secret};
use crate::segment::header::FORMAT;
use crate::vfs::files::{Files, OpenMode, is_full, read_full};
use crate::vfs::salvage::says_nothing_of_bytes;

const NAME: &str = "log.meta";
const HASH: &str = "xxh3-64";
/// Larger than any log.meta; what is longer is none.
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
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MetaClass {
    pub class: String,
    pub partitions: u32,
    pub template: Option<String>,
}

/// What any format's `log.meta` has, so that a newer one is refused by its number.
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
        }
    }

    /// None when the folder has no `log.meta`.
    pub fn load(files: &dyn Files, dir: &Path) -> Result<Option<Self>, OpenError> {
        let path = dir.join(NAME);
        let bytes = match read_file(files, &path, MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) if says_nothing_of_bytes(&source) => {
                return Err(OpenError::Io {
                    action: "read",
                    path,
                    source,
                });
            }
            Err(error) => {
                return Err(OpenError::Damaged {
                    path,
                    reason: error.to_string(),
                });
            }
        };
        let damaged = |reason: &str| OpenError::Damaged {
            path: path.clone(),
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
        if found > FORMAT {
            return Err(OpenError::NewerFormat {
                path,
                found,
                supported: FORMAT,
            });
        }
        serde_json::from_str(json)
            .map(Some)
            .map_err(|error| damaged(&error.to_string()))
    }

    pub fn save(&self, files: &dyn Files, dir: &Path) -> Result<(), OpenError> {
        let path = dir.join(NAME);
        let json = serde_json::to_string(self).expect("numbers and text always serialize");
        let text = format!("{json}\n{:08x}\n", crc32c::crc32c(json.as_bytes()));
        replace_file(files, &path, text.as_bytes())
            .and_then(|()| files.sync_dir(dir))
            .map_err(|source| write_error(&path, source))
    }

    pub fn log_id(&self, dir: &Path) -> Result<LogId, OpenError> {
        self.log_id
            .parse()
            .map_err(|error: crate::ids::ParseLogIdError| OpenError::Damaged {
                path: dir.join(NAME),
                reason: error.to_string(),
            })
    }

    /// Refuses settings that differ from what was fixed at creation.
    pub fn check(&self, dir: &Path, classes: &[ClassConfig]) -> Result<(), OpenError> {
        let changed = |class: &str, what, stored: String, configured: String| {
            Err(OpenError::Changed {
                dir: dir.to_owned(),
                class: class.to_owned(),
                what,
                stored,
                configured,
            })
        };
        if self.hash != HASH {
            return changed(
                "every class",
                "the hash",
                self.hash.clone(),
                HASH.to_owned(),
            );
        }
        for (at, stored) in self.classes.iter().enumerate() {
            let Some(configured) = classes
                .get(at)
                .filter(|class| class.class.name() == stored.class)
            else {
                let configured = classes
                    .get(at)
                    .map_or("missing", |class| class.class.name());
                let stored_as = format!("number {}", at + 1);
                return changed(
                    &stored.class,
                    "the place",
                    stored_as,
                    format!("{configured} there"),
                );
            };
            if configured.partitions != stored.partitions {
                let (stored_count, count) = (
                    stored.partitions.to_string(),
                    configured.partitions.to_string(),
                );
                return changed(
                    &stored.class,
                    "the number of partitions",
                    stored_count,
                    count,
                );
            }
            if configured.template != stored.template {
                let text = |template: &Option<String>| {
                    template
                        .as_ref()
                        .map_or("unset".to_owned(), |t| format!("{t:?}"))
                };
                return changed(
                    &stored.class,
                    "the template",
                    text(&stored.template),
                    text(&configured.template),
                );
            }
        }
        match classes.get(self.classes.len()) {
            None => Ok(()),
            Some(extra) => changed(
                extra.class.name(),
                "the class",
                "missing".to_owned(),
                "there".to_owned(),
            ),
        }
    }
}

/// The whole of a file, which must not be larger than `max_bytes`.
pub(crate) fn read_file(files: &dyn Files, path: &Path, max_bytes: usize) -> io::Result<Vec<u8>> {
    let file = files.open(path, OpenMode::Read)?;
    let length = usize::try_from(file.len()?).unwrap_or(usize::MAX);
    if length > max_bytes {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{length} bytes are too many"),
        ));
    }
    let mut bytes = vec![0; length];
    let read = read_full(&*file, &mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Replaces a small file as a whole. The new name is durable once the folder is synced.
pub(crate) fn replace_file(files: &dyn Files, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".tmp");
    let unfinished = Path::new(&unfinished);
    let file = files.open(unfinished, OpenMode::Create)?;
    file.write_all_at(bytes, 0)?;
    file.sync_data()?;
    files.rename(unfinished, path)
}

pub(crate) fn write_error(path: &Path, source: io::Error) -> OpenError {
    if is_full(&source) {
        OpenError::NoSpace {
            path: path.to_owned(),
        }
    } else {
        OpenError::Io {
            action: "write",
            path: path.to_owned(),
            source,
        }
    }
}
