//! The YAML file of the settings, and its mistakes with their lines.
//!
//! The file is read into a plain value, and once more into the lines of its keys; keys and values are then judged one by
//! one by the declarations. Reading it into the types themselves would say the same, with a megabyte of code more.

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::Spanned;

use super::declare::{Member, Section};
use super::error::nearest;
use super::keys::path_of;
use super::layers::{Source, nested, overlay, typed};
use super::{Config, ConfigError, renamed};
use crate::regular_file;

/// The text of the file with the name under which its mistakes are told; none without a file.
pub(super) fn text(source: &Source) -> Result<Option<(String, String)>, ConfigError> {
    if let Some(text) = &source.text {
        return Ok(Some(("configuration".to_owned(), text.clone())));
    }
    let Some(file) = &source.file else {
        return Ok(None);
    };
    let place = file.display().to_string();
    match regular_file::open(file).and_then(std::io::read_to_string) {
        Ok(text) => Ok(Some((place, text))),
        Err(error) => Err(ConfigError::Unreadable {
            file: place,
            reason: error.to_string(),
        }),
    }
}

/// The settings of the text by their present names, each of them valid by itself.
pub(super) fn read(place: &str, text: &str, notes: &mut Vec<String>) -> Result<Value, ConfigError> {
    let mut value: Value =
        serde_saphyr::from_str(text).map_err(|error| yaml_error(place, &error))?;
    match value {
        Value::Null => return Ok(Value::Null),
        Value::Object(_) => {}
        _ => {
            return Err(ConfigError::Invalid {
                place: place.to_owned(),
                reason: "the file must hold keys and values, such as `data_dir: headwater-data`"
                    .to_owned(),
            });
        }
    }
    let lines = serde_saphyr::from_str(text).map_err(|error| yaml_error(place, &error))?;
    Judge::new(place).section(Config::MEMBERS, "", &value, &lines)?;
    renamed::settle(Config::MEMBERS, "", &mut value, place, notes)?;
    Ok(value)
}

fn yaml_error(place: &str, error: &serde_saphyr::Error) -> ConfigError {
    let error = error.without_snippet();
    let line = error.location().map_or(0, |at| at.line());
    let reason = error.render().lines().next().unwrap_or_default().to_owned();
    ConfigError::Invalid {
        place: at_line(place, line),
        reason,
    }
}

fn at_line(place: &str, line: u64) -> String {
    if line == 0 {
        return place.to_owned();
    }
    format!("{place}, line {line}")
}

/// The keys of a section in the order of the file, each with its line, and what is below it.
#[derive(Default)]
struct Lines(Vec<(String, u64, Lines)>);

impl Lines {
    fn of(&self, key: &str) -> (u64, &Lines) {
        const NOWHERE: &Lines = &Lines(Vec::new());
        let found = self.0.iter().find(|(name, ..)| name == key);
        found.map_or((0, NOWHERE), |(_, line, below)| (*line, below))
    }
}

impl<'de> Deserialize<'de> for Lines {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Lines;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a value")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Lines, A::Error> {
                let mut lines = Vec::new();
                while let Some(key) = map.next_key::<Spanned<String>>()? {
                    lines.push((key.value, key.referenced.line(), map.next_value()?));
                }
                Ok(Lines(lines))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Lines, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Lines::default())
            }
            fn visit_bool<E>(self, _: bool) -> Result<Lines, E> {
                Ok(Lines::default())
            }
            fn visit_i64<E>(self, _: i64) -> Result<Lines, E> {
                Ok(Lines::default())
            }
            fn visit_u64<E>(self, _: u64) -> Result<Lines, E> {
                Ok(Lines::default())
            }
            fn visit_f64<E>(self, _: f64) -> Result<Lines, E> {
                Ok(Lines::default())
            }
            fn visit_str<E>(self, _: &str) -> Result<Lines, E> {
                Ok(Lines::default())
            }
            fn visit_unit<E>(self) -> Result<Lines, E> {
                Ok(Lines::default())
            }
            fn visit_none<E>(self) -> Result<Lines, E> {
                Ok(Lines::default())
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// Finds the first mistake of a file.
struct Judge<'a> {
    place: &'a str,
    defaults: Value,
}

impl<'a> Judge<'a> {
    fn new(place: &'a str) -> Self {
        let defaults = serde_json::to_value(Config::default());
        Self {
            place,
            defaults: defaults.expect("the defaults are plain values"),
        }
    }

    fn section(
        &self,
        members: &[Member],
        path: &str,
        value: &Value,
        lines: &Lines,
    ) -> Result<(), ConfigError> {
        let settings = match value {
            Value::Object(settings) => settings,
            Value::Null => return Ok(()),
            _ => unreachable!("the caller knows a section"),
        };
        // In the order of the file; what it does not find has no line, and is judged too.
        let in_order = lines.0.iter().map(|(name, ..)| name.as_str());
        let others = settings.keys().map(String::as_str);
        let others = others.filter(|name| lines.of(name).0 == 0);
        for name in in_order.chain(others) {
            let Some(value) = settings.get(name) else {
                continue;
            };
            let (line, below) = lines.of(name);
            self.member(members, &path_of(path, name), name, value, (line, below))?;
        }
        Ok(())
    }

    fn member(
        &self,
        members: &[Member],
        path: &str,
        name: &str,
        value: &Value,
        (line, below): (u64, &Lines),
    ) -> Result<(), ConfigError> {
        let member = members.iter().find(|member| member.answers_to(name));
        match member {
            None => {
                let known = || members.iter().filter_map(Member::name_in_use);
                Err(ConfigError::UnknownKey {
                    place: at_line(self.place, line),
                    key: name.to_owned(),
                    nearest: nearest(name, known()),
                    known: known().map(str::to_owned).collect(),
                })
            }
            Some(Member::Section { members, .. }) => match value {
                Value::Object(_) | Value::Null => self.section(members, path, value, below),
                _ => Err(ConfigError::Invalid {
                    place: at_line(self.place, line),
                    reason: format!("`{path}` is a section: write its keys below it, indented"),
                }),
            },
            Some(Member::Key(key)) => {
                let section = path.rsplit_once('.').map_or("", |(section, _)| section);
                let mut settings = self.defaults.clone();
                overlay(
                    &mut settings,
                    nested(&path_of(section, key.name), value.clone()),
                );
                typed(settings, &at_line(self.place, line)).map(|_| ())
            }
        }
    }
}
