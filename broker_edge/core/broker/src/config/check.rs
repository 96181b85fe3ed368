//! Whether each value is one that its key permits.

use serde_json::Value;

use super::declare::Kind;
use super::keys::{at, each};
use super::units::{Age, ByteSize};
use super::{Config, ConfigError};
use crate::hosts;

pub(super) fn check_limits(config: &Config) -> Result<(), ConfigError> {
    let settings = serde_json::to_value(config).expect("settings are plain values");
    each().into_iter().try_for_each(|(path, key)| {
        let value = at(&settings, &path);
        check_value(path.clone(), key.kind, value)
    })
}

fn check_value(path: String, kind: Kind, value: &Value) -> Result<(), ConfigError> {
    match (kind, value) {
        (Kind::Whole { min, max }, Value::Number(number)) => {
            let number = number.as_u64().unwrap_or_default();
            within(path, number, min, max)
        }
        (Kind::Bytes { min, max }, Value::String(text)) => match text.parse() {
            Ok(size) => within::<ByteSize>(path, size, min, max),
            Err(reason) => Err(ConfigError::BadValue { key: path, reason }),
        },
        (Kind::Age { min, max }, Value::String(text)) => match text.parse() {
            Ok(age) => within::<Age>(path, age, min, max),
            Err(reason) => Err(ConfigError::BadValue { key: path, reason }),
        },
        (Kind::Folder, Value::String(text)) if text.is_empty() => Err(ConfigError::BadValue {
            key: path,
            reason: "write the path of a folder".to_owned(),
        }),
        (Kind::File | Kind::Text, Value::String(text)) if text.is_empty() => {
            Err(ConfigError::BadValue {
                key: path,
                reason: "write a text that is not empty".to_owned(),
            })
        }
        (Kind::LogId, Value::String(text)) if !is_uuid(text) => Err(ConfigError::BadValue {
            key: path,
            reason: format!(
                "`{text}` is not a log id; write a UUID such as 7d3c9a52-58a1-4f0e-9a63-2f1c8f6f2b11"
            ),
        }),
        (Kind::Filters, Value::Array(filters)) => {
            filters.iter().try_for_each(|filter| match filter.as_str() {
                Some(filter) if is_filter(filter) => Ok(()),
                _ => Err(ConfigError::BadValue {
                    key: path.clone(),
                    reason: format!("{filter} is not a topic filter"),
                }),
            })
        }
        (Kind::Names, Value::Array(names)) => names.iter().try_for_each(|name| {
            let is_good = |name: &str| !name.is_empty() && !name.contains(char::is_control);
            match name.as_str() {
                Some(name) if is_good(name) => Ok(()),
                _ => Err(ConfigError::BadValue {
                    key: path.clone(),
                    reason: format!(
                        "{name} is not a name; write a name that is not empty and has no control characters"
                    ),
                }),
            }
        }),
        (Kind::Hosts, Value::Array(hosts)) => each_text(&path, hosts, hosts::check_name),
        (Kind::Origins, Value::Array(origins)) => each_text(&path, origins, hosts::check_origin),
        (Kind::Text, Value::String(text)) if text.len() > 65_535 || text.contains('\0') => {
            Err(ConfigError::BadValue {
                key: path,
                reason: "write a text of at most 65,535 bytes without NUL".to_owned(),
            })
        }
        (Kind::Template, Value::String(text)) if !is_template(text) => Err(ConfigError::BadValue {
            key: path,
            reason: format!(
                "`{text}` must name exactly one level in braces, for example devices/{{device}}/#"
            ),
        }),
        _ => Ok(()),
    }
}

fn each_text(
    path: &str,
    values: &[Value],
    check: impl Fn(&str) -> Result<(), String>,
) -> Result<(), ConfigError> {
    values
        .iter()
        .filter_map(Value::as_str)
        .try_for_each(check)
        .map_err(|reason| ConfigError::BadValue {
            key: path.to_owned(),
            reason,
        })
}

fn within<T: PartialOrd + std::fmt::Display>(
    key: String,
    value: T,
    min: T,
    max: T,
) -> Result<(), ConfigError> {
    if value < min || value > max {
        let (value, min, max) = (value.to_string(), min.to_string(), max.to_string());
        return Err(ConfigError::OutOfRange {
            key,
            value,
            min,
            max,
        });
    }
    Ok(())
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.char_indices().all(|(index, c)| match index {
            8 | 13 | 18 | 23 => c == '-',
            _ => c.is_ascii_hexdigit(),
        })
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
