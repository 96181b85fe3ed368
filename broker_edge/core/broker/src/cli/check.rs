//! `--check` beyond the settings themselves: whether the files that they name can be read, and the data folder written.
//!
//! Run it as the broker's user, because it finds what that user may do. It changes nothing.

use std::path::Path;

use rustix::fs::{Access, access};

use crate::auth::{Authority, FileError};
use crate::cluster_files::ClusterFiles;
use crate::config::Config;
use crate::logging;
use crate::transport::certificates::Certificates;

/// One sentence for each thing that would keep the broker from starting.
pub fn problems(config: &Config) -> Vec<String> {
    let mut found: Vec<String> = logging::level_of_environment().err().into_iter().collect();
    found.extend(
        Authority::problems(&config.auth)
            .iter()
            .map(FileError::to_string),
    );
    let listeners = &config.listeners;
    let mut certificates = Certificates::default();
    for (name, tls) in [
        ("mqtts", &listeners.mqtts.tls),
        ("wss", &listeners.wss.tls),
        ("flight", &listeners.flight.tls),
        ("admin", &listeners.admin.tls),
    ] {
        let loaded = certificates.load(name, tls, &[]);
        found.extend(loaded.err().map(|error| error.to_string()));
    }
    if config.cluster.is_on() {
        found.extend(ClusterFiles::load(&config.cluster).err());
    }
    found.extend(problem_of_folder(&config.data_dir));
    found
}

/// A folder that does not exist yet is made in the nearest one that does.
fn problem_of_folder(dir: &Path) -> Option<String> {
    let there = dir.ancestors().find(|folder| folder.exists());
    // The last ancestor of a relative path is empty: the working directory.
    let there = there.filter(|folder| !folder.as_os_str().is_empty());
    let there = there.unwrap_or_else(|| Path::new("."));
    let wanted = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
    let reason = match access(there, wanted) {
        Ok(()) if there.is_dir() => return None,
        Ok(()) => "it is not a folder".to_owned(),
        Err(error) => error.to_string(),
    };
    Some(format!(
        "data_dir: cannot read and write {}: {reason}; give it to the user of the broker: chown -R USER {}",
        there.display(),
        there.display()
    ))
}
