//! The layers of a configuration: defaults < file < environment < `--set`.
//!
//! Every layer is laid over the defaults as a JSON value, so that a class that changes one key keeps its other defaults.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::declare::Section;
use super::error::nearest;
use super::keys::Found;
use super::{Config, ConfigError, file, keys, renamed};

/// Where settings come from.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// `--config`.
    pub file: Option<PathBuf>,
    /// YAML given as text, instead of a file.
    pub text: Option<String>,
    /// Environment variables; only those that begin with `HEADWATER_` count.
    pub environment: Vec<(String, String)>,
    /// `key=value`, in the order given.
    pub set: Vec<String>,
}

impl Source {
    /// A source with the environment of this process.
    pub fn with_environment(file: Option<PathBuf>, set: Vec<String>) -> Source {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Source {
            file,
            text: None,
            environment,
            set,
        }
    }
}

const ENVIRONMENT_PREFIX: &str = "HEADWATER_";

/// The settings that result, and a line for each old name among them.
pub(super) fn resolve(source: &Source) -> Result<(Config, Vec<String>), ConfigError> {
    let mut notes = Vec::new();
    let mut settings =
        serde_json::to_value(Config::default()).expect("the defaults are plain values");
    if let Some((place, text)) = file::text(source)? {
        overlay(&mut settings, file::read(&place, &text, &mut notes)?);
    }
    for (name, value) in &source.environment {
        if let Some((key, found)) = key_of_variable(name)? {
            notes.extend(renamed::note(found.key, name, &key, &found.path));
            settings = set_key(settings, name, &found.path, value)?;
        }
    }
    for assignment in &source.set {
        let place = format!("--set {assignment}");
        let (key, value) = assignment
            .split_once('=')
            .ok_or_else(|| ConfigError::Invalid {
                place: place.clone(),
                reason: "write key=value, for example listeners.mqtt.bind=127.0.0.1:1883"
                    .to_owned(),
            })?;
        let key = key.trim();
        let found = keys::find(Config::MEMBERS, key).ok_or_else(|| unknown(&place, key))?;
        notes.extend(renamed::note(found.key, &place, key, &found.path));
        settings = set_key(settings, &place, &found.path, value.trim())?;
    }
    Ok((typed(settings, "configuration")?, notes))
}

/// Lays `over` on `base`. A section that is empty in the file changes nothing.
pub(super) fn overlay(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                overlay(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Object(_), Value::Null) => {}
        (base, over) => *base = over,
    }
}

/// The environment variable of a setting.
pub(super) fn variable_of(path: &str) -> String {
    let name = path.to_uppercase().replace('.', "__");
    format!("{ENVIRONMENT_PREFIX}{name}")
}

/// `HEADWATER_LOG__SYNC` → `log.sync`. A variable without `__` that names no key belongs to another program.
fn key_of_variable(name: &str) -> Result<Option<(String, Found)>, ConfigError> {
    let Some(rest) = name.strip_prefix(ENVIRONMENT_PREFIX) else {
        return Ok(None);
    };
    let key = rest.to_lowercase().replace("__", ".");
    match keys::find(Config::MEMBERS, &key) {
        Some(found) => Ok(Some((key, found))),
        None if rest.contains("__") => Err(unknown(name, &key)),
        None => Ok(None),
    }
}

fn unknown(place: &str, key: &str) -> ConfigError {
    let known: Vec<String> = keys::paths().collect();
    ConfigError::UnknownKey {
        place: place.to_owned(),
        key: key.to_owned(),
        nearest: nearest(key, known.iter().map(String::as_str)),
        known: Vec::new(),
    }
}

/// Sets the key at a dotted path. The value is YAML, or plain text where YAML does not fit the key.
fn set_key(settings: Value, place: &str, key: &str, text: &str) -> Result<Value, ConfigError> {
    let parsed: Value =
        serde_saphyr::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()));
    let mut changed = settings.clone();
    overlay(&mut changed, nested(key, parsed));
    let refused = match typed(changed.clone(), place) {
        Ok(_) => return Ok(changed),
        Err(refused) => refused,
    };
    let mut changed = settings;
    overlay(&mut changed, nested(key, Value::String(text.to_owned())));
    typed(changed.clone(), place)
        .map(|_| changed)
        .map_err(|_| refused)
}

pub(super) fn nested(key: &str, value: Value) -> Value {
    key.rsplit('.').fold(value, |inner, name| {
        Value::Object(Map::from_iter([(name.to_owned(), inner)]))
    })
}

pub(super) fn typed(settings: Value, place: &str) -> Result<Config, ConfigError> {
    serde_json::from_value(settings).map_err(|error| ConfigError::Invalid {
        place: place.to_owned(),
        reason: error.to_string(),
    })
}
