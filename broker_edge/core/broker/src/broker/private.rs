//! Files that only the broker's user may read: makes folders so, and warns about what others may read.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::config::{Config, TlsSettings};

/// The rights of the group and of all others.
const OF_OTHERS: u32 = 0o077;
/// A file may be readable by a group, for example that of the broker: it is written by somebody else.
const OF_STRANGERS: u32 = 0o037;

/// Makes a folder that only its owner may use. An existing one keeps its rights.
pub fn create_dir(dir: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
}

/// One sentence for each folder and file that other users of the machine may read, with the command that changes it.
pub fn warnings(config: &Config) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(mode) = mode_of(&config.data_dir).filter(|mode| mode & OF_OTHERS != 0) {
        let dir = config.data_dir.display();
        found.push(format!(
            "data_dir {dir} has mode {mode:03o}, so other users of this machine may read records and sessions: \
             chmod -R go= {dir}"
        ));
    }
    for (what, file) in secrets(config) {
        if let Some(mode) = mode_of(&file).filter(|mode| mode & OF_STRANGERS != 0) {
            let file = file.display();
            found.push(format!(
                "{what} {file} has mode {mode:03o}, so other users of this machine may use it: chmod 600 {file}"
            ));
        }
    }
    found
}

fn mode_of(path: &Path) -> Option<u32> {
    let found = std::fs::metadata(path).ok()?;
    Some(found.permissions().mode() & 0o777)
}

fn secrets(config: &Config) -> Vec<(String, PathBuf)> {
    let listeners = &config.listeners;
    let key = |name: &str, tls: &TlsSettings| {
        let file = tls.key.clone()?;
        Some((format!("listeners.{name}.tls.key"), file))
    };
    let users = config.auth.password_file.clone();
    [
        users.map(|file| ("auth.password_file".to_owned(), file)),
        key("mqtts", &listeners.mqtts.tls),
        key("wss", &listeners.wss.tls),
        key("flight", &listeners.flight.tls),
        key("admin", &listeners.admin.tls),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};

    use super::*;

    #[test]
    fn what_others_may_read_is_named_with_the_command_that_changes_it() {
        let dir = tempfile::tempdir().unwrap();
        let (data, users) = (dir.path().join("a/data"), dir.path().join("users"));
        create_dir(&data).unwrap();
        std::fs::write(&users, "").unwrap();
        let mut config = Config::default();
        (config.data_dir, config.auth.password_file) = (data.clone(), Some(users.clone()));
        for (mode_of_dir, mode_of_file, count) in [
            (0o700, 0o600, 0),
            (0o755, 0o600, 1),
            (0o700, 0o640, 0),
            (0o750, 0o644, 2),
        ] {
            set_permissions(&data, Permissions::from_mode(mode_of_dir)).unwrap();
            set_permissions(&users, Permissions::from_mode(mode_of_file)).unwrap();
            let found = warnings(&config);
            assert_eq!(found.len(), count, "{found:?}");
            assert!(found.iter().all(|text| text.contains(": chmod ")));
        }
    }

    #[test]
    fn a_new_folder_and_those_above_it_are_for_their_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        create_dir(&dir.path().join("a/b")).unwrap();
        for path in ["a", "a/b"] {
            assert_eq!(mode_of(&dir.path().join(path)), Some(0o700), "{path}");
        }
    }
}
