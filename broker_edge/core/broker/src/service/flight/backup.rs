//! The action `backup`: copies the running log into a folder that the operator has configured.
//!
//! A caller gives a name, never a path, and the number of backups is bounded: a Flight client must not be able to write
//! elsewhere or fill the disk with copies.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use headwater_log::Seams;
use headwater_log::tools::{ToolError, Work};
use serde_json::{Value, json};

use crate::broker::private::create_dir;
use crate::service::error::Refusal;
use crate::service::request;
use crate::service::shared::Shared;

/// The most backups in `log.backup_dir`, counting anything else that lies in it.
const BACKUPS_MAX: usize = 16;
const NAME_BYTES_MAX: usize = 64;

pub fn backup(shared: &Shared, body: &request::Backup) -> Result<Value, Refusal> {
    check_name(&body.name)?;
    let Some(dir) = &shared.config.log.backup_dir else {
        let message = "backups are not enabled: set log.backup_dir to a folder for them";
        return Err(Refusal::invalid("name", message));
    };
    let Some(_alone) = shared.backing_up.try_lock() else {
        let message = "a backup is being taken; try again when it is done";
        return Err(Refusal::unavailable(message));
    };
    let dest = place(shared, dir, &body.name)?;
    let stop = AtomicBool::new(false);
    let seams = Seams::system();
    let progress = |_, _| stop.store(*shared.stopping.borrow(), Ordering::Relaxed);
    let work = Work {
        seams: &seams,
        progress: &progress,
        stop: &stop,
    };
    let report = shared.log.backup(&dest, work).map_err(refused)?;
    tracing::info!(dir = %dest.display(), bytes = report.copied_bytes, "a backup was taken");
    Ok(json!(report))
}

/// Checks that the name is a single folder name on any system.
fn check_name(name: &str) -> Result<(), Refusal> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_name = (1..=NAME_BYTES_MAX).contains(&name.len())
        && !name.starts_with('.')
        && name.chars().all(is_plain);
    if is_name {
        return Ok(());
    }
    let message = format!(
        "`{name}` is not a valid backup name: use up to {NAME_BYTES_MAX} letters, digits, `-`, `_` and `.`, not `.` first"
    );
    Err(Refusal::invalid("name", message))
}

/// The folder of a backup, directly in `backup_dir`. Neither of `backup_dir` and the data folder may contain the other.
fn place(shared: &Shared, dir: &Path, name: &str) -> Result<PathBuf, Refusal> {
    let failed = |what: &str, path: &Path, error: &std::io::Error| {
        Refusal::internal(format!("cannot {what} {}: {error}", path.display()))
    };
    create_dir(dir).map_err(|error| failed("make", dir, &error))?;
    let real = |path: &Path| {
        path.canonicalize()
            .map_err(|error| failed("find", path, &error))
    };
    let (dir, data_dir) = (real(dir)?, real(&shared.config.data_dir)?);
    if dir.starts_with(&data_dir) || data_dir.starts_with(&dir) {
        return Err(Refusal::internal(format!(
            "one of log.backup_dir {} and data_dir {} contains the other; set log.backup_dir to a separate folder",
            dir.display(),
            data_dir.display()
        )));
    }
    let dest = dir.join(name);
    match dest.symlink_metadata() {
        Ok(found) if found.is_dir() => return Ok(dest),
        Ok(_) => {
            return Err(Refusal::internal(format!(
                "{} is not a folder",
                dest.display()
            )));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("inspect", &dest, &error)),
    }
    let held = std::fs::read_dir(&dir).map_err(|error| failed("list", &dir, &error))?;
    if held.count() >= BACKUPS_MAX {
        return Err(Refusal::unavailable(format!(
            "{} already holds {BACKUPS_MAX} backups; use an existing name, or move one away",
            dir.display()
        )));
    }
    Ok(dest)
}

fn refused(error: ToolError) -> Refusal {
    match error {
        ToolError::Interrupted => {
            Refusal::unavailable("the broker is stopping; the backup is incomplete")
        }
        other => Refusal::internal(format!("the backup is incomplete: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::check_name;

    #[test]
    fn a_name_can_not_leave_its_folder() {
        for good in ["daily", "2026-11-21", "a.b_c"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        let long = "x".repeat(65);
        for bad in [
            "", ".", "..", "../x", "a/b", "/etc", "a\\b", "a\0", "é", ".hidden", &long,
        ] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
