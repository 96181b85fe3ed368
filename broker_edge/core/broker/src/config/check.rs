//! Whether each value is one that its key permits.

use headwater_log::LogId;
use serde_json::Value;

use super::declare::Kind;
use super::keys::{at, each};
use super::units::{Age, ByteSize};
use super::{Config, ConfigError};
use crate::hosts;

pub(super) fn check_limits(config: &Config) -> Result<(), ConfigError> {
    let settings = serde_json::to_value(config).expect("settings are plain values");
    each()
        .into_iter()
        .try_for_each(|(path, key)| check_value(&path, key.kind, at(&settings, &path)))
}

fn check_value(path: &str, kind: Kind, value: &Value) -> Result<(), ConfigError> {
    let wrong = match (kind, value) {
        (Kind::Whole { min, max }, Value::Number(number)) => {
            return within(path, number.as_u64().unwrap_or_default(), min, max);
        }
        (Kind::Bytes { min, max }, Value::String(text)) => match text.parse::<ByteSize>() {
            Ok(size) => return within(path, size, min, max),
            Err(reason) => Some(reason),
        },
        (Kind::Age { min, max }, Value::String(text)) => match text.parse::<Age>() {
            Ok(age) => return within(path, age, min, max),
            Err(reason) => Some(reason),
        },
        (Kind::Folder, Value::String(text)) if text.is_empty() => {
            Some("write the path of a folder".to_owned())
        }
        (Kind::File | Kind::Text, Value::String(text)) if text.is_empty() => {
            Some("write a text that is not empty".to_owned())
        }
        (Kind::LogId, Value::String(text)) if text.parse::<LogId>().is_err() => Some(format!(
            "`{text}` is not a log id; write a UUID such as 7d3c9a52-58a1-4f0e-9a63-2f1c8f6f2b11"
        )),
        (Kind::Filters, Value::Array(filters)) => {
            first_but(filters, is_filter).map(|filter| format!("{filter} is not a topic filter"))
        }
        (Kind::Names, Value::Array(names)) => {
            let is_good = |name: &str| !name.is_empty() && !name.contains(char::is_control);
            first_but(names, is_good).map(|name| {
                format!("{name} is not a name; write a name that is not empty and has no control characters")
            })
        }
        (Kind::Hosts, Value::Array(hosts)) => each_text(hosts, hosts::check_name),
        (Kind::Origins, Value::Array(origins)) => each_text(origins, hosts::check_origin),
        (Kind::Text, Value::String(text)) if text.len() > 65_535 || text.contains('\0') => {
            Some("write a text of at most 65,535 bytes without NUL".to_owned())
        }
        (Kind::Template, Value::String(text)) if !is_template(text) => Some(format!(
            "`{text}` must name exactly one level in braces, for example devices/{{device}}/#"
        )),
        _ => None,
    };
    wrong.map_or(Ok(()), |reason| Err(ConfigError::bad_value(path, reason)))
}

/// The first value that is not a text of this kind.
fn first_but(values: &[Value], is_good: impl Fn(&str) -> bool) -> Option<&Value> {
    values
        .iter()
        .find(|value| !value.as_str().is_some_and(&is_good))
}

fn each_text(values: &[Value], check: impl Fn(&str) -> Result<(), String>) -> Option<String> {
    values
        .iter()
        .filter_map(Value::as_str)
        .find_map(|text| check(text).err())
}

fn within<T: PartialOrd + std::fmt::Display>(
    path: &str,
    value: T,
    min: T,
    max: T,
) -> Result<(), ConfigError> {
    if value < min || value > max {
        return Err(ConfigError::OutOfRange {
            key: path.to_owned(),
            value: value.to_string(),
            min: min.to_string(),
            max: max.to_string(),
        });
    }
    Ok(())
}

/// MQTT's rule: `+` fills a level, `#` fills the last one.
pub(crate) fn is_filter(filter: &str) -> bool {
    let mut levels = filter.split('/').peekable();
    let mut valid = !filter.is_empty() && filter.len() <= 65_535 && !filter.contains('\0');
    while let Some(level) = levels.next() {
        valid &= match level {
            "#" => levels.peek().is_none(),
            "+" => true,
            other => !other.contains(['+', '#']),
        };
    }
    valid
}

fn is_template(template: &str) -> bool {
    let named = |level: &&str| level.starts_with('{') && level.ends_with('}') && level.len() > 2;
    let plain: Vec<&str> = template
        .split('/')
        .map(|level| if named(&level) { "+" } else { level })
        .collect();
    template.split('/').filter(named).count() == 1
        && is_filter(&plain.join("/"))
        && !plain.join("/").contains(['{', '}'])
}
