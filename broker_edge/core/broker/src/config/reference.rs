//! The reference of all settings: `conf/broker.yaml` for people, JSON for tools. Both derive from the declarations.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::Config;
use super::declare::{Choice, Effect, Key, Kind, Member, Section, joined};
use super::keys::{at, path_of};
use super::layers::variable_of;

const HEAD: &str = "\
# Every setting of the broker with its meaning, permitted values and default. Each value below is the default, so this
# file as it is changes nothing: keep only the lines that you change.
#
# Sizes are bytes or have a unit (KiB, MiB, GiB, TiB, KB, MB, GB); times have a unit (ms, s, m, h, d). A setting can
# also be given as `--set log.sync=always` or as an environment variable, HEADWATER_LOG__SYNC=always. `--set` overrides
# the environment, and the environment overrides this file. `headwaterd --check` says whether a file is valid;
# `headwaterd --print-config` prints the settings that result.
#
# This file is the output of `headwaterd --print-reference`.
";
const LINE_MAX: usize = 120;

/// All settings as a YAML file that holds every default and explains every key where it first stands.
pub fn reference_yaml() -> String {
    let mut yaml = Yaml {
        defaults: defaults(),
        text: HEAD.to_owned(),
        explained: HashSet::new(),
    };
    yaml.members(Config::MEMBERS, "", 0);
    yaml.text
}

/// All settings in the order of [`reference_yaml`], and what their sections are about.
pub fn reference_json() -> Value {
    let (mut settings, mut sections) = (Vec::new(), Vec::new());
    let defaults = defaults();
    describe(Config::MEMBERS, "", &defaults, &mut settings, &mut sections);
    json!({"settings": settings, "sections": sections})
}

fn defaults() -> Value {
    serde_json::to_value(Config::default()).expect("the defaults are plain values")
}

struct Yaml {
    defaults: Value,
    text: String,
    /// Names with meanings that were written already.
    explained: HashSet<(&'static str, String)>,
}

impl Yaml {
    fn members(&mut self, members: &'static [Member], prefix: &str, depth: usize) {
        for member in members {
            match member {
                Member::Key(key) if key.retired.is_some() => {}
                Member::Key(key) => self.key(key, &path_of(prefix, key.name), depth),
                Member::Section {
                    name,
                    about,
                    members,
                } => {
                    if depth == 0 {
                        self.text.push('\n');
                    }
                    let about = joined(about);
                    if !about.is_empty() && self.explained.insert((name, about.clone())) {
                        self.comment(&about, depth);
                    }
                    self.line(&format!("{name}:"), depth);
                    self.members(members, &path_of(prefix, name), depth + 1);
                }
            }
        }
    }

    fn key(&mut self, key: &'static Key, path: &str, depth: usize) {
        if depth == 0 {
            self.text.push('\n');
        }
        if self.explained.insert((key.name, key.meaning())) {
            let about = [key.meaning(), effect(key.effect).to_owned()].join(" ");
            self.comment(about.trim_end(), depth);
            if let Some(limits) = limits(key.kind) {
                self.comment(&limits, depth);
            }
            for choice in explained_choices(key.kind) {
                self.comment(&format!("- {}: {}", choice.name, choice.meaning()), depth);
            }
        }
        let value = scalar(at(&self.defaults, path));
        self.line(format!("{}: {value}", key.name).trim_end(), depth);
    }

    fn line(&mut self, text: &str, depth: usize) {
        self.text.push_str(&"  ".repeat(depth));
        self.text.push_str(text);
        self.text.push('\n');
    }

    /// A comment, wrapped. The further lines of an entry of a list are indented.
    fn comment(&mut self, text: &str, depth: usize) {
        let room = LINE_MAX - 2 * depth;
        let next = if text.starts_with("- ") { "#  " } else { "#" };
        let mut line = String::from("#");
        for word in text.split(' ') {
            if line.len() + 1 + word.len() > room {
                self.line(&std::mem::replace(&mut line, next.to_owned()), depth);
            }
            line.push(' ');
            line.push_str(word);
        }
        self.line(&line, depth);
    }
}

/// A default as YAML: plain where that reads back to the same value.
fn scalar(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => {
            let read = serde_saphyr::from_str::<Value>(&format!("key: {text}"));
            if read.is_ok_and(|read| read == json!({"key": text})) {
                text.clone()
            } else {
                value.to_string()
            }
        }
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(Value::to_string).collect();
            format!("[{}]", values.join(", "))
        }
        other => other.to_string(),
    }
}

fn limits(kind: Kind) -> Option<String> {
    if let Some((min, max)) = range(kind) {
        return Some(format!("From {min} to {max}."));
    }
    match kind {
        Kind::Choice(choices) if explained_choices(kind).is_empty() => {
            let names: Vec<_> = choices.iter().map(|choice| choice.name).collect();
            Some(format!("One of: {}.", names.join(", ")))
        }
        _ => None,
    }
}

/// The least and the greatest permitted value.
fn range(kind: Kind) -> Option<(String, String)> {
    match kind {
        Kind::Whole { min, max } => Some((min.to_string(), max.to_string())),
        Kind::Bytes { min, max } => Some((min.to_string(), max.to_string())),
        Kind::Age { min, max } => Some((min.to_string(), max.to_string())),
        _ => None,
    }
}

/// The permitted values, where they are explained.
pub(super) fn explained_choices(kind: Kind) -> &'static [Choice] {
    match kind {
        Kind::Choice(choices) if choices.iter().all(|choice| !choice.meaning.is_empty()) => choices,
        _ => &[],
    }
}

fn effect(effect: Effect) -> &'static str {
    match effect {
        Effect::AtStart => "",
        Effect::AtReload => "A reload (SIGHUP) reads the file again.",
        Effect::AtCreation => "Fixed when the log is created.",
    }
}

fn describe(
    members: &'static [Member],
    prefix: &str,
    defaults: &Value,
    settings: &mut Vec<Value>,
    sections: &mut Vec<Value>,
) {
    for member in members {
        match member {
            Member::Key(key) => {
                let path = path_of(prefix, key.name);
                settings.push(description(key, &path, at(defaults, &path)));
            }
            Member::Section {
                name,
                about,
                members,
            } => {
                let path = path_of(prefix, name);
                sections.push(json!({"path": path, "about": joined(about)}));
                describe(members, &path, defaults, settings, sections);
            }
        }
    }
}

fn description(key: &Key, path: &str, default: &Value) -> Value {
    let (min, max) = range(key.kind).unzip();
    let choices = match key.kind {
        Kind::Choice(choices) => choices,
        _ => &[],
    };
    let choices: Vec<_> = choices
        .iter()
        .map(|choice| json!({"name": choice.name, "meaning": choice.meaning()}))
        .collect();
    json!({
        "path": path,
        "environment": variable_of(path),
        "kind": kind_name(key.kind),
        "optional": key.optional,
        "default": default,
        "minimum": min,
        "maximum": max,
        "choices": choices,
        "effect": match key.effect {
            Effect::AtStart => "start",
            Effect::AtReload => "reload",
            Effect::AtCreation => "creation",
        },
        "meaning": key.meaning(),
        "renamed_from": key.renamed_from,
        "retired": key.retired,
    })
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Folder => "folder",
        Kind::File => "file",
        Kind::Text => "text",
        Kind::Address => "address",
        Kind::Addresses => "addresses",
        Kind::Bool => "boolean",
        Kind::Whole { .. } => "integer",
        Kind::Bytes { .. } => "size",
        Kind::Age { .. } => "time",
        Kind::Choice(_) => "choice",
        Kind::LogId => "uuid",
        Kind::Filters => "topic filters",
        Kind::Names => "names",
        Kind::Template => "topic pattern",
        Kind::Hosts => "host names",
        Kind::Origins => "origins",
    }
}
