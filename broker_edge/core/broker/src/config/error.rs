//! What can be wrong with a configuration, said in one sentence each.

use std::net::SocketAddr;

use crate::one_line::one_line;

/// Why a configuration was refused. The text is meant for the operator as it is.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {}: {}", one_line(file), one_line(reason))]
    Unreadable { file: String, reason: String },
    #[error("{}: unknown key `{}`{}", one_line(place), one_line(key), hint(nearest.as_deref(), known))]
    UnknownKey {
        place: String,
        key: String,
        nearest: Option<String>,
        known: Vec<String>,
    },
    #[error("{}: {}", one_line(place), one_line(reason))]
    Invalid { place: String, reason: String },
    #[error(
        "{}: {} is out of range; write a value between {min} and {max}",
        one_line(key),
        one_line(value)
    )]
    OutOfRange {
        key: String,
        value: String,
        min: String,
        max: String,
    },
    #[error("{}: {}", one_line(key), one_line(reason))]
    BadValue { key: String, reason: String },
    #[error(
        "{key}: {bind} can be reached from other hosts and authentication is not configured; set `auth.password_file`, \
         bind to 127.0.0.1, or write `auth.allow_anonymous: true` to let anybody in"
    )]
    Exposed { key: &'static str, bind: SocketAddr },
}

impl ConfigError {
    pub(super) fn bad_value(key: &str, reason: impl Into<String>) -> ConfigError {
        ConfigError::BadValue {
            key: key.to_owned(),
            reason: reason.into(),
        }
    }
}

fn hint(nearest: Option<&str>, known: &[String]) -> String {
    match nearest {
        Some(nearest) => format!("; did you mean `{nearest}`?"),
        None if known.is_empty() => String::new(),
        None => format!("; known here: {}", known.join(", ")),
    }
}

/// The known name that looks most like `name`, if one is near enough to be meant.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .min()
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 3)
        .map(|(_, candidate)| candidate.to_owned())
}
