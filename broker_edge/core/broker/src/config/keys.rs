//! The declared settings with their dotted paths, such as `log.disk.budget`.

use serde_json::Value;

use super::Config;
use super::declare::{Key, Member, Section};

/// A setting that a dotted path names.
#[derive(Debug)]
pub(super) struct Found {
    /// The path by the setting's present name.
    pub path: String,
    pub key: &'static Key,
}

/// Every setting, in the order of the declarations.
pub fn each() -> Vec<(String, &'static Key)> {
    let mut found = Vec::new();
    collect(Config::MEMBERS, "", &mut found);
    found
}

fn collect(members: &'static [Member], prefix: &str, found: &mut Vec<(String, &'static Key)>) {
    for member in members {
        match member {
            Member::Key(key) => found.push((path_of(prefix, key.name), key)),
            Member::Section { name, members, .. } => {
                collect(members, &path_of(prefix, name), found);
            }
        }
    }
}

/// The dotted path of every setting that has an effect.
pub fn paths() -> impl Iterator<Item = String> {
    let in_use = each().into_iter().filter(|(_, key)| key.retired.is_none());
    in_use.map(|(path, _)| path)
}

/// The setting of `members` that a dotted path names, by its present name or by an old one.
pub(super) fn find(members: &'static [Member], path: &str) -> Option<Found> {
    let (name, rest) = match path.split_once('.') {
        Some((name, rest)) => (name, Some(rest)),
        None => (path, None),
    };
    let mut named = members.iter().filter(|member| member.answers_to(name));
    named.find_map(|member| match (member, rest) {
        (Member::Key(key), None) => Some(Found {
            path: key.name.to_owned(),
            key,
        }),
        (
            Member::Section {
                name: section,
                members,
                ..
            },
            Some(rest),
        ) => {
            let found = find(members, rest)?;
            Some(Found {
                path: path_of(section, &found.path),
                ..found
            })
        }
        _ => None,
    })
}

pub(super) fn path_of(prefix: &str, name: &str) -> String {
    if prefix.is_empty() {
        name.to_owned()
    } else {
        format!("{prefix}.{name}")
    }
}

/// The value at a dotted path.
pub(super) fn at<'a>(settings: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(settings, |value, name| &value[name])
}
