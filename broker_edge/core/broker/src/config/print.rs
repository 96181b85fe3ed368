//! Settings and their JSON schema as text, for people and tools.

use serde_json::{Map, Value, json};

use super::Config;
use super::declare::{Effect, Key, Kind};
use super::keys::{self, at};
use super::reference::explained_choices;

/// The settings as YAML that [`Config::load`] reads back to the same values.
pub fn to_yaml(config: &Config) -> String {
    let settings = serde_json::to_value(config).expect("settings are plain values");
    let mut text = String::new();
    write_value(&settings, 0, &mut text);
    text
}

/// The settings as JSON text, with the same keys.
pub fn to_json(config: &Config) -> String {
    serde_json::to_string(config).expect("settings are plain values")
}

fn write_value(value: &Value, depth: usize, text: &mut String) {
    let Value::Object(section) = value else {
        return;
    };
    for (name, value) in section {
        text.push_str(&"  ".repeat(depth));
        text.push_str(name);
        text.push(':');
        match value {
            Value::Object(_) => {
                text.push('\n');
                write_value(value, depth + 1, text);
            }
            // JSON scalars and lists are YAML too, and quoted where YAML would need it.
            scalar => {
                text.push(' ');
                write_scalar(&scalar.to_string(), text);
                text.push('\n');
            }
        }
    }
}

/// JSON leaves some characters as they are that YAML allows as escapes only: its rule 1, `c-printable`.
fn write_scalar(json: &str, text: &mut String) {
    for c in json.chars() {
        match c {
            '\u{7f}'..='\u{9f}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{feff}'
            | '\u{fffe}'
            | '\u{ffff}' => {
                text.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            _ => text.push(c),
        }
    }
}

/// JSON schema (draft 2020-12) of the YAML file; `conf/broker.schema.json` is its text.
pub fn json_schema() -> Value {
    let defaults = serde_json::to_value(Config::default()).expect("the defaults are plain values");
    let mut root = section();
    for (path, key) in keys::each() {
        let leaf = leaf(key, at(&defaults, &path));
        for old in key.renamed_from {
            let mut leaf = leaf.clone();
            leaf["deprecated"] = json!(true);
            leaf["description"] = json!(format!("Renamed to `{}`.", key.name));
            insert(&mut root, &sibling(&path, old), leaf);
        }
        insert(&mut root, &path, leaf);
    }
    root["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    root["title"] = json!("headwater broker");
    root
}

fn section() -> Value {
    json!({"type": ["object", "null"], "additionalProperties": false, "properties": {}})
}

/// The path of another key of the same section.
fn sibling(path: &str, name: &str) -> String {
    let section = path.rsplit_once('.').map_or("", |(section, _)| section);
    keys::path_of(section, name)
}

fn insert(schema: &mut Value, path: &str, leaf: Value) {
    let properties: &mut Map<String, Value> = schema["properties"]
        .as_object_mut()
        .expect("every section has properties");
    match path.split_once('.') {
        Some((name, rest)) => insert(properties.entry(name).or_insert_with(section), rest, leaf),
        None => {
            properties.insert(path.to_owned(), leaf);
        }
    }
}

fn leaf(key: &Key, default: &Value) -> Value {
    let mut leaf = match key.kind {
        Kind::Folder | Kind::File | Kind::Text | Kind::Address | Kind::Template => {
            json!({"type": "string"})
        }
        Kind::Addresses => {
            json!({"type": ["string", "array", "null"], "items": {"type": "string"}})
        }
        Kind::LogId => json!({"type": "string", "format": "uuid"}),
        Kind::Bool => json!({"type": "boolean"}),
        Kind::Whole { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
        Kind::Bytes { min, max } => json!({
            "type": ["integer", "string"],
            "pattern": "^[0-9]+ *([KMG]i?B|TiB|B)?$",
            "x-minimum": min.to_string(),
            "x-maximum": max.to_string(),
        }),
        Kind::Age { min, max } => json!({
            "type": ["integer", "string"],
            "pattern": "^[0-9]+ *(ms|s|m|h|d)?$",
            "x-minimum": min.to_string(),
            "x-maximum": max.to_string(),
        }),
        Kind::Choice(choices) => {
            let names: Vec<_> = choices.iter().map(|choice| choice.name).collect();
            json!({"enum": names})
        }
        Kind::Filters | Kind::Names | Kind::Hosts | Kind::Origins => {
            json!({"type": "array", "items": {"type": "string"}})
        }
    };
    if key.optional {
        leaf["type"] = match leaf["type"].take() {
            Value::Array(mut types) => {
                types.push(json!("null"));
                Value::Array(types)
            }
            one => json!([one, "null"]),
        };
    }
    leaf["description"] = json!(description(key));
    match key.effect {
        Effect::AtStart => {}
        Effect::AtReload => leaf["x-effect"] = json!("reload"),
        Effect::AtCreation => leaf["x-effect"] = json!("creation"),
    }
    if let Some(why) = key.retired {
        leaf["deprecated"] = json!(true);
        leaf["description"] = json!(format!("It has no effect any more: {why}."));
    }
    leaf["default"] = default.clone();
    leaf
}

/// The meaning, and those of the choices.
fn description(key: &Key) -> String {
    let choices = explained_choices(key.kind).iter();
    let choices = choices.map(|choice| format!("`{}`: {}", choice.name, choice.meaning()));
    let choices: Vec<_> = choices.collect();
    if choices.is_empty() {
        return key.meaning();
    }
    format!("{} {}.", key.meaning(), choices.join("; "))
}
