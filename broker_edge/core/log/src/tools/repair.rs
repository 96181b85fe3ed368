//! `repair`: repairs a folder that a start refuses, and runs recovery.
//!
//! It builds `log.meta` and indexes again from the segments, moves misplaced segments aside, and lets recovery do the
//! rest. It never deletes: every byte that is not served afterwards is in a `.damaged`, `.torn` or `.misplaced` file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::folder::{Folder, PartitionDir};
use super::scan::scan_segment;
use super::segment_writer::SegmentWriter;
use super::verify::{VerifyReport, verify};
use super::work::{Access, ToolError, Work};
use crate::config::{ClassConfig, LogConfig};
use crate::error::{OpenError, ReadError};
use crate::ids::{Class, Epoch, Offset};
use crate::log::Log;
use crate::recovery::meta::Meta;
use crate::segment::header::{FORMAT, HeaderFound};
use crate::segment::scan::read_header;
use crate::vfs::files::{OpenMode, existing};

/// Where an emptied partition begins again: above every offset that was ever given.
const BEGIN_AGAIN: Offset = Offset(1 << 40);

#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
pub struct RepairReport {
    pub dry_run: bool,
    /// The actions that were taken, or would be.
    pub actions: Vec<String>,
    /// The state afterwards; None for a dry run.
    pub after: Option<VerifyReport>,
}

enum Action {
    /// Why `log.meta` is wrong.
    WriteMeta(String),
    MoveAside {
        from: PathBuf,
        to: PathBuf,
    },
    BeginAgain(PartitionDir),
    Open {
        rebuilt: Vec<String>,
        holes: usize,
        torn_bytes: u64,
    },
}

/// Repairs the log in `dir`. `templates` are the routing templates by class, used when `log.meta` is gone: they are
/// stored nowhere else. Classes without one get their default.
pub fn repair(
    dir: &Path,
    templates: &BTreeMap<Class, Option<String>>,
    dry_run: bool,
    work: Work<'_>,
) -> Result<RepairReport, ToolError> {
    let folder = Folder::open(dir, Access::Alone, work)?;
    folder.refuse_member(dir, "move it away, and the node fetches it again")?;
    let mut actions = Vec::new();
    let (meta, why) = mended_meta(&folder, templates, work)?;
    actions.extend(why.map(Action::WriteMeta));
    for place in &folder.partitions {
        if misplaced(place, &mut actions, work)? == place.bases.len() {
            actions.push(Action::BeginAgain(place.clone()));
        }
    }
    drop(folder);
    let before = verify(dir, Access::Alone, work)?;
    let rebuilt = |check: &super::verify::PartitionCheck| {
        let named = |index: &String| {
            let (name, _) = index.split_once(':').unwrap_or((index, ""));
            format!("{}/{name}", check.name)
        };
        check.indexes.iter().map(named).collect::<Vec<_>>()
    };
    actions.push(Action::Open {
        rebuilt: before.partitions.iter().flat_map(rebuilt).collect(),
        holes: before.partitions.iter().map(|check| check.gaps.len()).sum(),
        torn_bytes: before.partitions.iter().map(|check| check.torn_bytes).sum(),
    });
    let told = actions.iter().flat_map(|action| sentences(action, &meta));
    let sentences = told.collect();
    if dry_run {
        return Ok(RepairReport {
            dry_run,
            actions: sentences,
            after: None,
        });
    }
    for action in &actions {
        work.go_on()?;
        apply(dir, action, &meta, work)?;
    }
    Ok(RepairReport {
        dry_run,
        actions: sentences,
        after: Some(verify(dir, Access::Alone, work)?),
    })
}

/// The correct `log.meta`, and why the present one is wrong, if it is.
fn mended_meta(
    folder: &Folder,
    templates: &BTreeMap<Class, Option<String>>,
    work: Work<'_>,
) -> Result<(Meta, Option<String>), ToolError> {
    let newest = newest_epoch(folder, work)?;
    match &folder.meta {
        Ok(meta) if meta.epoch >= newest => Ok((meta.clone(), None)),
        Ok(meta) => {
            let why = format!("its epoch is {}, the segments have {newest}", meta.epoch);
            let mended = Meta {
                epoch: newest,
                ..meta.clone()
            };
            Ok((mended, Some(why)))
        }
        Err(error) => {
            let classes = classes_of(folder, templates)?;
            let now_us = work.seams.clock.now_us();
            let mut meta = Meta::new(folder.log_id, folder.secret, now_us, &classes);
            meta.epoch = newest.max(1);
            Ok((meta, Some(error.to_string())))
        }
    }
}

/// The newest epoch in any header or batch.
fn newest_epoch(folder: &Folder, work: Work<'_>) -> Result<u64, ToolError> {
    let mut newest = 0;
    for place in &folder.partitions {
        for (base, limit) in folder.readable(place) {
            let is_trusted = folder.meta.is_ok() && limit.is_some();
            if is_trusted {
                // Epochs never decrease, so the last segment has the newest.
                continue;
            }
            let scan = scan_segment(work, place, base, limit, |batch, _| {
                newest = newest.max(batch.epoch().0);
                Ok(())
            })?;
            if let HeaderFound::Good(header) = scan.header {
                newest = newest.max(header.epoch.0);
            }
        }
    }
    Ok(newest)
}

/// The classes by the segment headers, in the order of their partition numbers.
fn classes_of(
    folder: &Folder,
    templates: &BTreeMap<Class, Option<String>>,
) -> Result<Vec<ClassConfig>, ToolError> {
    let mut classes: Vec<ClassConfig> = Vec::new();
    for (number, place) in folder.partitions.iter().enumerate() {
        let (class, within) = (place.class, super::folder::class_of(&place.name));
        let is_next = place.identity.partition.0 as usize == number;
        match classes.last_mut().filter(|last| last.class == class) {
            Some(last) => last.partitions += 1,
            None => {
                let mut config = ClassConfig::new(class);
                if let Some(template) = templates.get(&class) {
                    config.template.clone_from(template);
                }
                classes.push(config);
            }
        }
        let count = classes.last().map_or(0, |last| last.partitions);
        if !is_next || within != Some((class, count - 1)) {
            return Err(ToolError::Refused(format!(
                "partition {number} is missing: {} is partition {}; put its folder back, or restore a backup",
                place.name, place.identity.partition
            )));
        }
    }
    Ok(classes)
}

/// Finds segments whose good header names another partition or offset; returns how many.
fn misplaced(
    place: &PartitionDir,
    actions: &mut Vec<Action>,
    work: Work<'_>,
) -> Result<usize, ToolError> {
    let before = actions.len();
    for base in &place.bases {
        let path = place.segment(*base);
        // A start reports a segment that cannot be opened.
        let Ok(file) = work.seams.files.open(&path, OpenMode::Read) else {
            continue;
        };
        match read_header(&*file).map_err(ToolError::io("read", &path))? {
            HeaderFound::Good(header)
                if header.identity != place.identity || header.base != *base =>
            {
                actions.push(Action::MoveAside {
                    to: path.with_extension("misplaced"),
                    from: path,
                });
            }
            HeaderFound::NewerFormat(found) => {
                let supported = FORMAT;
                return Err(OpenError::NewerFormat {
                    path,
                    found,
                    supported,
                }
                .into());
            }
            _ => {}
        }
    }
    Ok(actions.len() - before)
}

fn sentences(action: &Action, meta: &Meta) -> Vec<String> {
    match action {
        Action::WriteMeta(why) => {
            let class = |class: &crate::recovery::meta::MetaClass| {
                let template = class.template.as_deref().unwrap_or("none");
                format!(
                    "{} x {} (template {template})",
                    class.class, class.partitions
                )
            };
            let classes: Vec<String> = meta.classes.iter().map(class).collect();
            vec![format!(
                "write log.meta of log {} again, with epoch {} and {}: {why}",
                meta.log_id,
                meta.epoch,
                classes.join(", ")
            )]
        }
        Action::MoveAside { from, to } => vec![format!(
            "rename {} to {}: it belongs elsewhere",
            from.display(),
            to.display()
        )],
        Action::BeginAgain(place) => vec![format!(
            "begin {} again, empty, at offset {BEGIN_AGAIN}",
            place.name
        )],
        Action::Open {
            rebuilt,
            holes,
            torn_bytes,
        } => {
            let mut told: Vec<String> = rebuilt
                .iter()
                .map(|index| format!("make an index again: {index}"))
                .collect();
            if *torn_bytes > 0 {
                told.push(format!(
                    "keep {torn_bytes} bytes of an unfinished write aside"
                ));
            }
            if *holes > 0 {
                told.push(format!("leave {holes} gaps, which are reported"));
            }
            told
        }
    }
}

fn apply(dir: &Path, action: &Action, meta: &Meta, work: Work<'_>) -> Result<(), ToolError> {
    let files = &*work.seams.files;
    match action {
        Action::WriteMeta(_) => {
            // The bad one is kept as evidence.
            let (path, aside) = (dir.join("log.meta"), dir.join("log.meta.damaged"));
            existing(files.rename(&path, &aside)).map_err(ToolError::io("rename", &path))?;
            Ok(meta.save(files, dir)?)
        }
        Action::MoveAside { from, to } => {
            work.on("rename", from, |files, from| files.rename(from, to))?;
            let folder = from.parent().unwrap_or(dir);
            work.on("sync", folder, |files, path| files.sync_dir(path))
        }
        Action::BeginAgain(place) => begin_again(place, meta, work),
        Action::Open { rebuilt, .. } => {
            for index in rebuilt {
                // Removed so that recovery builds it again; it may be missing.
                let _ = files.remove(&dir.join(index));
            }
            open_once(dir, meta, work)
        }
    }
}

fn begin_again(place: &PartitionDir, meta: &Meta, work: Work<'_>) -> Result<(), ToolError> {
    work.on("make", &place.dir, |files, dir| files.create_dir(dir))?;
    let path = place.segment(BEGIN_AGAIN);
    let unfinished = path.with_extension("seg.tmp");
    let epoch = Epoch(meta.epoch);
    SegmentWriter::begin_segment(work, &unfinished, place, BEGIN_AGAIN, epoch)?.finish()?;
    work.on("rename", &unfinished, |files, from| {
        files.rename(from, &path)
    })?;
    work.on("sync", &place.dir, |files, dir| files.sync_dir(dir))?;
    let parent = place.dir.parent().unwrap_or(&place.dir);
    work.on("sync", parent, |files, dir| files.sync_dir(dir))
}

/// A start and a clean stop: recovery keeps bad bytes aside and builds indexes. They are saved with the lists of
/// topics, so that the next start reads neither segments nor indexes.
pub(super) fn open_once(dir: &Path, meta: &Meta, work: Work<'_>) -> Result<(), ToolError> {
    let classes = meta.classes.iter().filter_map(|stored| {
        let mut config = ClassConfig::new(Class::from_name(&stored.class)?);
        config.partitions = stored.partitions;
        config.template.clone_from(&stored.template);
        Some(config)
    });
    let config = LogConfig {
        classes: classes.collect(),
        maintain_every: None,
        tail_bytes: 1 << 20,
        ..LogConfig::new(dir)
    };
    let (log, _) = Log::open(config, work.seams.clone())?;
    log.save_indexes().map_err(|error| match error {
        ReadError::Io { path, source } => ToolError::io("read", &path)(source),
        error => ToolError::Refused(error.to_string()),
    })?;
    log.shutdown();
    Ok(())
}
