//! The declarations of the settings, and what is derived from them: the files in `conf` and the reference.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::from_text;
use crate::config::declare::{Kind, Section, whole};
use crate::config::{AuthSettings, Config, json_schema, keys, reference_json, reference_yaml};

fn conf_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../conf")
        .join(name)
}

fn conf(name: &str) -> String {
    let path = conf_path(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn leaves(prefix: &str, value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(section) => section.iter().for_each(|(name, value)| {
            leaves(
                &if prefix.is_empty() {
                    name.clone()
                } else {
                    format!("{prefix}.{name}")
                },
                value,
                found,
            );
        }),
        _ => {
            found.insert(prefix.to_owned());
        }
    }
}

#[test]
fn the_declared_keys_are_those_of_the_types() {
    let mut found = BTreeSet::new();
    leaves(
        "",
        &serde_json::to_value(Config::default()).unwrap(),
        &mut found,
    );
    assert_eq!(found, keys::paths().collect::<BTreeSet<_>>());
}

/// Compares a file of `conf` with what the declarations say; HEADWATER_WRITE_DOCS=1 writes it instead.
fn assert_kept(name: &str, text: &str) {
    if std::env::var_os("HEADWATER_WRITE_DOCS").is_some() {
        std::fs::write(conf_path(name), text).unwrap();
    }
    assert!(
        conf(name) == text,
        "conf/{name} is not what the declarations say: run `make reference` and commit the file"
    );
}

#[test]
fn the_files_in_conf_are_those_of_the_declarations() {
    assert_kept("broker.yaml", &reference_yaml());
    assert_kept("broker.schema.json", &format!("{:#}\n", json_schema()));
}

#[test]
fn the_documented_file_is_exactly_the_defaults_and_names_every_key() {
    let text = reference_yaml();
    assert_eq!(from_text(&text).unwrap(), Config::default());
    let parsed: Value = serde_saphyr::from_str(&text).unwrap();
    let mut found = BTreeSet::new();
    leaves("", &parsed, &mut found);
    assert_eq!(found, keys::paths().collect::<BTreeSet<_>>());
    let long = text.lines().find(|line| line.chars().count() > 120);
    assert_eq!(long, None);
    // A meaning may be wrapped.
    let words: Vec<&str> = text
        .split_whitespace()
        .filter(|word| *word != "#")
        .collect();
    let words = words.join(" ");
    for (path, key) in keys::each() {
        assert!(
            key.retired.is_some() || words.contains(&key.meaning()),
            "conf/broker.yaml does not explain {path}"
        );
    }
}

#[test]
fn the_reference_describes_every_key_in_the_order_of_the_file() {
    let reference = reference_json();
    let settings = reference["settings"].as_array().unwrap();
    let paths: Vec<_> = settings
        .iter()
        .map(|setting| setting["path"].as_str().unwrap().to_owned())
        .collect();
    let declared: Vec<_> = keys::each().into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, declared);
    let of = |path: &str| {
        settings
            .iter()
            .find(|setting| setting["path"] == path)
            .unwrap()
    };
    let sync = of("log.sync_interval");
    assert_eq!(sync["environment"], "HEADWATER_LOG__SYNC_INTERVAL");
    assert_eq!(
        (&sync["minimum"], &sync["maximum"], &sync["default"]),
        (&json!("1ms"), &json!("1d"), &json!("1s"))
    );
    assert_eq!(of("log.sync")["choices"][2]["name"], "never");
    assert_eq!(of("auth.acl_file")["effect"], "reload");
    assert_eq!(of("log.classes.control.partitions")["effect"], "creation");
}

#[test]
fn a_kind_comes_from_the_type_where_none_is_declared() {
    let kind = |path| keys::find(Config::MEMBERS, path).unwrap().key.kind;
    assert_eq!(kind("mqtt.topic_alias_maximum"), whole(0, 65_535));
    assert_eq!(kind("auth.acl_file"), Kind::File);
    assert!(
        keys::find(Config::MEMBERS, "auth.acl_file")
            .unwrap()
            .key
            .optional
    );
    let Kind::Choice(choices) = kind("log.ack") else {
        panic!("a choice");
    };
    let names: Vec<_> = choices.iter().map(|choice| choice.name).collect();
    assert_eq!(names, ["synced", "written"]);
}

#[test]
fn the_example_with_tls_is_valid() {
    let config = from_text(&conf("../deploy/broker-tls.yaml")).unwrap();
    assert_eq!(config.listeners.mqtts.bind.0.len(), 2);
    assert!(config.listeners.mqtts.bind.0[1].is_ipv6());
    assert!(config.listeners.ws.bind.0.is_empty());
    // Beyond this machine there is an ACL, and its example is one.
    assert!(!config.is_local() && config.auth.acl_file.is_some());
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy/acl");
    let settings = AuthSettings {
        acl_file: Some(example),
        ..AuthSettings::default()
    };
    assert!(crate::auth::Authority::load(&settings, false).is_ok());
}
