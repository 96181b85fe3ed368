//! What a configuration promises: complete defaults, layers in order, and one sentence for each mistake.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::declare::{Effect, Kind, Section, bytes, choice, kib, settings, whole};
use super::units::ByteSize;
use super::{
    AuthSettings, Config, ConfigError, Source, json_schema, keys, reference_json, reference_yaml,
    renamed, to_yaml,
};

fn from_text(text: &str) -> Result<Config, ConfigError> {
    Config::load(&Source {
        text: Some(text.to_owned()),
        ..Source::default()
    })
}

fn with_set(set: &[&str]) -> Result<Config, ConfigError> {
    Config::load(&Source {
        set: set.iter().map(|text| (*text).to_owned()).collect(),
        ..Source::default()
    })
}

fn with_variable(name: &str, value: &str) -> Result<Config, ConfigError> {
    Config::load(&Source {
        environment: vec![(name.to_owned(), value.to_owned())],
        ..Source::default()
    })
}

fn sentence<T: std::fmt::Debug>(result: Result<T, ConfigError>) -> String {
    result.expect_err("a mistake must be refused").to_string()
}

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
fn an_empty_file_is_the_defaults() {
    assert_eq!(from_text("").unwrap(), Config::default());
    assert_eq!(from_text("# nothing\n").unwrap(), Config::default());
    assert_eq!(from_text("listeners:\n").unwrap(), Config::default());
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
        "conf/{name} is not what the declarations say: run `make docs` and commit the file"
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

choice! {
    pub enum Colour {
        /// like grass
        Green = "green",
    }
}

settings! {
    /// A section with names of an older release.
    pub struct Renamed {
        /// How many.
        #[renamed_from = "how_many"]
        #[renamed_from = "number"]
        #[effect = AtCreation]
        count: u8 = 3, whole(1, 9);
        /// Size of what is gone.
        #[retired = "it is gone"]
        cache_bytes: Option<ByteSize> = None, bytes(kib(1), kib(2));
        /// Its colour.
        colour: Colour = Colour::Green;
    }
}

settings! {
    pub struct Outer {}
    sections {
        /// Around it.
        inner: Renamed = Renamed { count: 4, ..Renamed::default() };
    }
}

fn settled(text: &str) -> (Result<Value, String>, Vec<String>) {
    let mut notes = Vec::new();
    let mut value: Value = serde_saphyr::from_str(text).unwrap();
    let result = renamed::settle(Outer::MEMBERS, "", &mut value, "a.yaml", &mut notes);
    (
        result.map(|()| value).map_err(|error| error.to_string()),
        notes,
    )
}

#[test]
fn an_old_name_works_and_says_the_new_one() {
    let (value, notes) = settled("inner: {how_many: 5}");
    assert_eq!(value.unwrap(), json!({"inner": {"count": 5}}));
    assert_eq!(
        notes,
        [
            "a.yaml: `inner.how_many` is now called `inner.count`; the old name works in this release only"
        ]
    );
    let typed: Outer = serde_saphyr::from_str("inner: {number: 5}").unwrap();
    assert_eq!(typed.inner.count, 5);
    let found = keys::find(Outer::MEMBERS, "inner.number").unwrap();
    assert_eq!(
        (&found.path[..], found.key.effect),
        ("inner.count", Effect::AtCreation)
    );
    assert!(keys::find(Outer::MEMBERS, "inner").is_none());
    assert!(keys::find(Outer::MEMBERS, "inner.count.x").is_none());
    assert_eq!(settled("inner: {count: 5}").1, [""; 0]);
    let (both, _) = settled("inner: {count: 5, number: 5}");
    assert_eq!(
        both.unwrap_err(),
        "a.yaml: `inner.number` is the old name of `inner.count`, which is set as well; remove `inner.number`"
    );
}

#[test]
fn a_retired_setting_is_accepted_and_says_that_it_has_no_effect() {
    let (value, notes) = settled("inner: {cache_bytes: 1KiB}");
    assert!(value.is_ok());
    assert_eq!(
        notes,
        ["a.yaml: `inner.cache_bytes` has no effect any more: it is gone; remove it"]
    );
    assert!(settled("inner: {cache_bytes: }").1.is_empty());
    let printed = serde_json::to_value(Outer::default()).unwrap();
    assert_eq!(printed, json!({"inner": {"count": 4, "colour": "green"}}));
}

#[test]
fn every_layer_says_which_of_its_settings_have_no_effect() {
    let source = Source {
        text: Some("log: {heads_bytes: 8MiB}".to_owned()),
        environment: vec![("HEADWATER_LOG__HEADS_BYTES".to_owned(), "1MiB".to_owned())],
        set: vec!["log.heads_bytes=0".to_owned()],
        ..Source::default()
    };
    let (_, notes) = Config::load_with_notes(&source).unwrap();
    let places = [
        "configuration",
        "HEADWATER_LOG__HEADS_BYTES",
        "--set log.heads_bytes=0",
    ];
    assert_eq!(
        notes,
        places.map(|place| format!(
            "{place}: `log.heads_bytes` has no effect any more: the broker does not cache the headers of batches; remove it"
        ))
    );
    let refused = from_text("log: {heads_bytes: many}");
    assert!(sentence(refused).contains("line 1: `many` is not a size"));
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

#[test]
fn addresses_are_written_one_or_several() {
    let binds = |set: &str| with_set(&[set]).unwrap().listeners.mqtt.bind.0;
    assert_eq!(binds("listeners.mqtt.bind=[::1]:7").len(), 1);
    assert_eq!(binds("listeners.mqtt.bind=[::1]:7, localhost:8").len(), 2);
    let listed = from_text("listeners: {mqtt: {bind: ['127.0.0.1:7', '[::1]:8']}}").unwrap();
    assert_eq!(listed.listeners.mqtt.bind.0.len(), 2);
    assert_eq!(from_text(&to_yaml(&listed)).unwrap(), listed);
    assert!(
        sentence(with_set(&["listeners.mqtt.bind="]))
            .starts_with("listeners.mqtt.bind: an address is needed")
    );
}

#[test]
fn tls_settings_that_do_not_fit_together_are_refused() {
    let with_tls = |tls: &str| {
        let text = format!("listeners: {{mqtts: {{bind: '127.0.0.1:0', tls: {{{tls}}}}}}}");
        sentence(from_text(&text))
    };
    for (tls, reason) in [
        ("", "cert and key are needed"),
        ("cert: a", "key is needed"),
        ("key: a", "cert is needed"),
        (
            "cert: a, key: b, client_auth: required",
            "client_auth needs client_ca",
        ),
        (
            "cert: a, key: b, client_ca: c",
            "client_ca has no effect with `client_auth: none`",
        ),
    ] {
        let text = with_tls(tls);
        assert!(
            text.starts_with(&format!("listeners.mqtts.tls: {reason}")),
            "{text}"
        );
    }
    assert!(with_tls("cert: a, key: b, min_version: 1.1").contains("write 1.2 or 1.3"));
    let good = "listeners: {wss: {bind: '[::1]:0', tls: {cert: a, key: b, min_version: 1.3}}}";
    let config = from_text(good).unwrap();
    assert_eq!(config.listeners.wss.tls.min_version.name(), "1.3");
}

#[test]
fn printed_settings_read_back_to_the_same_values() {
    let config = with_set(&[
        "data_dir=a: b # c",
        "log.segment_bytes=1234567",
        "log.classes.telemetry.filters=[x/#, '#']",
    ]);
    let config = config.unwrap();
    assert_eq!(config.data_dir, Path::new("a: b # c"));
    assert_eq!(from_text(&to_yaml(&config)).unwrap(), config);
}

#[test]
fn set_wins_over_environment_and_environment_over_file() {
    let mut source = Source {
        text: Some(
            "flight: {threads: 2}\nbroker: {max_connections: 7}\nmqtt: {max_inflight: 9}"
                .to_owned(),
        ),
        environment: vec![
            ("HEADWATER_FLIGHT__THREADS".to_owned(), "3".to_owned()),
            (
                "HEADWATER_BROKER__MAX_CONNECTIONS".to_owned(),
                "8".to_owned(),
            ),
            ("HEADWATER_DATA_DIR".to_owned(), "/srv/x".to_owned()),
            ("HEADWATER_LOG".to_owned(), "debug".to_owned()),
            ("PATH".to_owned(), "/bin".to_owned()),
        ],
        ..Source::default()
    };
    source.set = vec!["flight.threads=4".to_owned()];
    let config = Config::load(&source).unwrap();
    assert_eq!(
        (
            config.flight.threads,
            config.broker.max_connections,
            config.mqtt.max_inflight
        ),
        (4, 8, 9)
    );
    assert_eq!(config.data_dir, Path::new("/srv/x"));
}

#[test]
fn a_class_that_changes_one_key_keeps_its_other_defaults() {
    let config = from_text("log:\n  classes:\n    telemetry:\n      partitions: 8\n").unwrap();
    let mut expected = Config::default();
    expected.log.classes.telemetry.partitions = 8;
    assert_eq!(config, expected);
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_nearest_name() {
    let text = sentence(from_text(
        "data_dir: x\nlisteners:\n  mqqt:\n    bind: 127.0.0.1:1\n",
    ));
    assert_eq!(
        text,
        "configuration, line 3: unknown key `mqqt`; did you mean `mqtt`?"
    );
    let text = sentence(from_text("colour: red\n"));
    assert!(
        text.starts_with("configuration, line 1: unknown key `colour`; known here: data_dir,"),
        "{text}"
    );
    let text = sentence(with_set(&["listeners.mqtt.bin=127.0.0.1:1"]));
    assert!(
        text.ends_with("unknown key `listeners.mqtt.bin`; did you mean `listeners.mqtt.bind`?"),
        "{text}"
    );
    let text = sentence(with_variable(
        "HEADWATER_LISTENERS__MQT__BIND",
        "127.0.0.1:1",
    ));
    assert!(
        text.ends_with("unknown key `listeners.mqt.bind`; did you mean `listeners.mqtt.bind`?"),
        "{text}"
    );
}

#[test]
fn a_value_outside_its_limits_is_refused_with_the_limits() {
    assert_eq!(
        sentence(with_set(&["log.segment_bytes=1KiB"])),
        "log.segment_bytes: 1KiB is out of range; write a value between 64KiB and 4GiB"
    );
    assert_eq!(
        sentence(from_text("log: {classes: {control: {partitions: 0}}}")),
        "log.classes.control.partitions: 0 is out of range; write a value between 1 and 1024"
    );
    assert!(
        sentence(with_set(&["mqtt.max_packet_bytes=200MiB"]))
            .starts_with("mqtt.receive_budget_bytes: 64MiB is below")
    );
}

#[test]
fn limits_of_space_that_contradict_each_other_are_refused() {
    assert_eq!(
        sentence(with_set(&["log.disk.warn_at=96"])),
        "log.disk.warn_at: 96 is above log.disk.act_at (95): the warning would come too late"
    );
    let text = sentence(with_set(&["log.classes.telemetry.retention.bytes=20GiB"]));
    assert_eq!(
        text,
        "log.classes.telemetry.retention.hard_bytes: 16GiB is below retention.bytes (20GiB): nothing could ever be held"
    );
    let unbounded = [
        "log.classes.telemetry.retention.bytes=20GiB",
        "log.classes.telemetry.retention.hard_bytes=",
    ];
    assert!(with_set(&unbounded).is_ok(), "no hard limit is none");
}

#[test]
fn a_value_of_the_wrong_kind_is_refused_with_an_example() {
    assert!(
        sentence(from_text("log:\n  tail_bytes: many\n")).contains("line 2"),
        "the line is named"
    );
    assert!(sentence(with_set(&["log.tail_bytes=many"])).contains("for example 64MiB"));
    assert!(sentence(with_set(&["mqtt.connect_timeout=1 fortnight"])).contains("for example 1d"));
    assert!(
        sentence(with_set(&["listeners.mqtt.bind=1883"])).contains("for example 127.0.0.1:1883")
    );
    assert!(sentence(with_set(&["log.id=mine"])).contains("write a UUID"));
    assert!(
        sentence(with_set(&["log.classes.telemetry.template=devices/#"]))
            .contains("exactly one level")
    );
    assert!(
        sentence(with_set(&["log.classes.telemetry.filters=[a/#/b]"]))
            .contains("not a topic filter")
    );
    assert!(sentence(with_set(&["log.sync=sometimes"])).contains("sometimes"));
    assert!(sentence(with_set(&["broker.loops"])).contains("write key=value"));
}

#[test]
fn nothing_is_reachable_from_another_host_unless_anonymous_is_allowed() {
    let open = "listeners.mqtt.bind=0.0.0.0:1883";
    let text = sentence(with_set(&[open]));
    assert!(
        text.starts_with("listeners.mqtt.bind: 0.0.0.0:1883 can be reached from other hosts"),
        "{text}"
    );
    assert!(with_set(&[open, "auth.allow_anonymous=true"]).is_ok());
    for proof in [
        "auth.password_file=users",
        "auth.token.keys_file=keys.json",
        "auth.certificate.user=common_name",
    ] {
        assert!(with_set(&[open, proof]).is_ok(), "{proof}");
    }
    // Rules alone prove nothing about who somebody is.
    assert!(with_set(&[open, "auth.acl_file=acl"]).is_err());
    assert!(
        with_set(&[
            "listeners.flight.bind=[::1]:0",
            "listeners.admin.bind=localhost:0"
        ])
        .is_ok()
    );
}

#[test]
fn units_are_read_and_written() {
    let config = with_set(&[
        "log.tail_bytes=2000000",
        "mqtt.connect_timeout=1500ms",
        "mqtt.session_expiry_max=2d",
    ])
    .unwrap();
    assert_eq!(config.log.tail_bytes.0, 2_000_000);
    assert_eq!(config.mqtt.connect_timeout.0.as_millis(), 1_500);
    assert_eq!(config.mqtt.session_expiry_max.to_string(), "2d");
}

#[test]
fn a_missing_file_is_named() {
    let source = Source {
        file: Some("no/such/broker.yaml".into()),
        ..Source::default()
    };
    assert!(sentence(Config::load(&source)).starts_with("cannot read no/such/broker.yaml: "));
}
