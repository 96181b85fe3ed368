//! Files that only the broker's user may read or change: makes folders so, and warns about what others may do.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::config::{Config, TlsSettings};

/// The rights of the group and of all others.
const OF_OTHERS: u32 = 0o077;
/// A file may be readable by a group, for example that of the broker: it is written by somebody else.
const OF_STRANGERS: u32 = 0o037;
/// The right of the group and of all others to change a file.
const TO_WRITE: u32 = 0o022;
/// The right of everybody to replace the files of a folder, unless the other bit leaves that to their owners.
const TO_REPLACE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Makes a folder that only its owner may use. An existing one keeps its rights.
pub fn create_dir(dir: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
}

/// One sentence for each folder and file that other users of the machine may read or change against its purpose, with
/// the command that changes it.
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
    for (what, file) in trusted(config) {
        if let Some(mode) = mode_of(&file).filter(|mode| mode & TO_WRITE != 0) {
            let file = file.display();
            found.push(format!(
                "{what} {file} has mode {mode:03o}, so other users of this machine may give themselves rights: chmod go-w {file}"
            ));
        }
    }
    found.extend(folder_warnings(config));
    found
}

/// Whoever may write a folder may put another file in the place of any file of it.
fn folder_warnings(config: &Config) -> Vec<String> {
    let mut dirs: Vec<(PathBuf, String)> = Vec::new();
    for (what, file) in secrets(config).into_iter().chain(trusted(config)) {
        let parent = file.parent().filter(|dir| !dir.as_os_str().is_empty());
        let dir = parent.unwrap_or(Path::new(".")).to_owned();
        if !dirs.iter().any(|(known, _)| *known == dir) {
            dirs.push((dir, what));
        }
    }
    let loose = |mode: &u32| mode & TO_REPLACE != 0 && mode & STICKY == 0;
    let sentence = |(dir, what): (PathBuf, String)| {
        let (mode, dir) = (mode_of(&dir).filter(loose)?, dir.display());
        Some(format!(
            "the folder {dir} of {what} has mode {mode:03o}, so everybody on this machine may replace its files: chmod o-w {dir}"
        ))
    };
    dirs.into_iter().filter_map(sentence).collect()
}

fn mode_of(path: &Path) -> Option<u32> {
    let found = std::fs::metadata(path).ok()?;
    Some(found.permissions().mode() & 0o1777)
}

/// The TLS settings of all listeners, by their names.
fn tls(config: &Config) -> [(&'static str, &TlsSettings); 4] {
    let listeners = &config.listeners;
    [
        ("mqtts", &listeners.mqtts.tls),
        ("wss", &listeners.wss.tls),
        ("flight", &listeners.flight.tls),
        ("admin", &listeners.admin.tls),
    ]
}

/// Files that prove who somebody is.
fn secrets(config: &Config) -> Vec<(String, PathBuf)> {
    let users = config.auth.password_file.iter();
    let users = users.map(|file| ("auth.password_file".to_owned(), file.clone()));
    let keys = tls(config).into_iter().filter_map(|(name, tls)| {
        let file = tls.key.clone()?;
        Some((format!("listeners.{name}.tls.key"), file))
    });
    let cluster = &config.cluster;
    let of_cluster = [
        ("cluster.secret_file", &cluster.secret_file),
        ("cluster.tls.key", &cluster.tls.key),
        ("cluster.etcd.key", &cluster.etcd.key),
        ("cluster.etcd.password_file", &cluster.etcd.password_file),
    ];
    users.chain(keys).chain(given(of_cluster)).collect()
}

/// Files that anybody may read, and that decide who gets in and what they may do.
fn trusted(config: &Config) -> Vec<(String, PathBuf)> {
    let cluster = &config.cluster;
    let named = [
        ("auth.acl_file", &config.auth.acl_file),
        ("auth.token.keys_file", &config.auth.token.keys_file),
        ("cluster.tls.cert", &cluster.tls.cert),
        ("cluster.tls.ca", &cluster.tls.ca),
        ("cluster.etcd.cert", &cluster.etcd.cert),
        ("cluster.etcd.ca", &cluster.etcd.ca),
    ];
    let tls = tls(config).into_iter().flat_map(|(name, tls)| {
        let files = [
            ("cert", &tls.cert),
            ("client_ca", &tls.client_ca),
            ("crl", &tls.crl),
        ];
        files.into_iter().filter_map(move |(key, file)| {
            let file = file.clone()?;
            Some((format!("listeners.{name}.tls.{key}"), file))
        })
    });
    given(named).chain(tls).collect()
}

/// Those of the settings that have a value.
fn given<const N: usize>(
    settings: [(&'static str, &Option<PathBuf>); N],
) -> impl Iterator<Item = (String, PathBuf)> {
    settings
        .into_iter()
        .filter_map(|(what, file)| Some((what.to_owned(), file.clone()?)))
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

    /// The warnings about one file of this mode, which `place` puts into the settings.
    fn warnings_of(mode: u32, place: impl FnOnce(&mut Config, PathBuf)) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let (data, file) = (dir.path().join("data"), dir.path().join("file"));
        create_dir(&data).unwrap();
        std::fs::write(&file, "").unwrap();
        set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        let mut config = Config {
            data_dir: data,
            ..Config::default()
        };
        place(&mut config, file);
        warnings(&config)
    }

    #[test]
    fn a_file_that_gives_rights_is_named_when_others_may_write_it_and_not_when_they_may_read_it() {
        type Place = fn(&mut Config, PathBuf);
        let places: [(&str, Place); 5] = [
            ("auth.acl_file", |config, file| {
                config.auth.acl_file = Some(file);
            }),
            ("auth.token.keys_file", |config, file| {
                config.auth.token.keys_file = Some(file);
            }),
            ("listeners.mqtts.tls.client_ca", |config, file| {
                config.listeners.mqtts.tls.client_ca = Some(file);
            }),
            ("listeners.flight.tls.crl", |config, file| {
                config.listeners.flight.tls.crl = Some(file);
            }),
            ("listeners.admin.tls.cert", |config, file| {
                config.listeners.admin.tls.cert = Some(file);
            }),
        ];
        for (what, place) in places {
            for (mode, count) in [(0o600, 0), (0o644, 0), (0o664, 1), (0o646, 1)] {
                let found = warnings_of(mode, place);
                assert_eq!(found.len(), count, "{what} {mode:o}: {found:?}");
                for text in found {
                    assert!(text.starts_with(what), "{text}");
                    assert!(text.contains(": chmod go-w "), "{text}");
                }
            }
        }
    }

    #[test]
    fn a_tls_key_is_named_when_others_may_read_or_write_it() {
        for (mode, count) in [(0o600, 0), (0o640, 0), (0o604, 1), (0o602, 1), (0o620, 1)] {
            let found = warnings_of(mode, |config, file| {
                config.listeners.admin.tls.key = Some(file);
            });
            assert_eq!(found.len(), count, "{mode:o}: {found:?}");
            assert!(found.iter().all(|text| text.contains(": chmod 600 ")));
        }
    }

    #[test]
    fn a_folder_in_which_others_may_replace_the_files_is_named_once() {
        let dir = tempfile::tempdir().unwrap();
        let (acl, key) = (dir.path().join("acl"), dir.path().join("key"));
        let mut config = Config {
            data_dir: dir.path().join("none"),
            ..Config::default()
        };
        config.auth.acl_file = Some(acl);
        config.listeners.admin.tls.key = Some(key);
        for (mode, count) in [(0o755, 0), (0o775, 0), (0o1777, 0), (0o777, 1)] {
            set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
            let found = warnings(&config);
            assert_eq!(found.len(), count, "{mode:o}: {found:?}");
            assert!(found.iter().all(|text| text.contains(": chmod o-w ")));
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
