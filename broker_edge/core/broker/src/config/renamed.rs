//! Old names: they work for one release, with a line that says what to write instead.

use serde_json::Value;

use super::ConfigError;
use super::declare::{Key, Member};
use super::keys::path_of;

/// Gives the settings of one layer their present names. Each old name becomes a line of `notes`.
///
/// # Errors
/// When a setting is given by its old and by its present name.
pub(super) fn settle(
    members: &[Member],
    prefix: &str,
    settings: &mut Value,
    place: &str,
    notes: &mut Vec<String>,
) -> Result<(), ConfigError> {
    let Value::Object(settings) = settings else {
        return Ok(());
    };
    for member in members {
        match member {
            Member::Key(key) => {
                for old in key.renamed_from {
                    let Some(value) = settings.remove(*old) else {
                        continue;
                    };
                    let (old, new) = (path_of(prefix, old), path_of(prefix, key.name));
                    if settings.contains_key(key.name) {
                        return Err(ConfigError::Invalid {
                            place: place.to_owned(),
                            reason: format!(
                                "`{old}` is the old name of `{new}`, which is set as well; remove `{old}`"
                            ),
                        });
                    }
                    notes.extend(note(key, place, &old, &new));
                    settings.insert(key.name.to_owned(), value);
                }
                if settings.get(key.name).is_some_and(|value| !value.is_null()) {
                    let path = path_of(prefix, key.name);
                    notes.extend(note(key, place, &path, &path));
                }
            }
            Member::Section { name, members, .. } => {
                if let Some(section) = settings.get_mut(*name) {
                    settle(members, &path_of(prefix, name), section, place, notes)?;
                }
            }
        }
    }
    Ok(())
}

/// The line for a setting that was given by `written` and is called `path`; none where nothing is to be changed.
pub(super) fn note(key: &Key, place: &str, written: &str, path: &str) -> Option<String> {
    if let Some(why) = key.retired {
        return Some(format!(
            "{place}: `{written}` has no effect any more: {why}; remove it"
        ));
    }
    (written != path).then(|| {
        format!(
            "{place}: `{written}` is now called `{path}`; the old name works in this release only"
        )
    })
}
