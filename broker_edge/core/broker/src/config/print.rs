//! Settings and their schema as text for people and tools.

use serde_json::{Map, Value, json};

use super::Config;
use super::keys::{self, Key, Kind, at};

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
                text.push_str(&scalar.to_string());
                text.push('\n');
            }
        }
    }
}

/// JSON schema (draft 2020-12) of the YAML file; `conf/broker.schema.json` is its text.
pub fn json_schema() -> Value {
    let defaults = serde_json::to_value(Config::default()).expect("the defaults are plain values");
    let mut root = section();
    for (path, key) in keys::each() {
        insert(&mut root, &path, leaf(key, at(&defaults, &path)));
    }
    root["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    root["title"] = json!("headwater broker");
    root
}

fn section() -> Value {
    json!({"type": ["object", "null"], "additionalProperties": false, "properties": {}})
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
        Kind::Choice(choices) => json!({"enum": choices}),
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
    leaf["description"] = json!(key.meaning);
    leaf["default"] = default.clone();
    leaf
}
