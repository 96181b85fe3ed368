//! What a configuration promises: complete defaults, layers in order, and one sentence for each mistake.

mod cluster;
mod declared;
mod mistakes;
mod older_names;

use std::path::Path;

use super::{Config, ConfigError, Source, to_yaml};

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

#[test]
fn an_empty_file_is_the_defaults() {
    assert_eq!(from_text("").unwrap(), Config::default());
    assert_eq!(from_text("# nothing\n").unwrap(), Config::default());
    assert_eq!(from_text("listeners:\n").unwrap(), Config::default());
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

/// What the process grows by for each subscription of a stored session, measured with 200,000 of them.
const SUBSCRIPTION_BYTES: u64 = 825;

#[test]
fn as_many_subscriptions_as_the_defaults_allow_fit_in_the_memory_of_a_small_machine() {
    let mqtt = Config::default().mqtt;
    let bytes = u64::from(mqtt.max_total_subscriptions) * SUBSCRIPTION_BYTES;
    assert!(bytes <= 2 << 30, "{bytes} bytes");
}

#[test]
fn a_class_that_changes_one_key_keeps_its_other_defaults() {
    let config = from_text("log:\n  classes:\n    telemetry:\n      partitions: 8\n").unwrap();
    let mut expected = Config::default();
    expected.log.classes.telemetry.partitions = 8;
    assert_eq!(config, expected);
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
fn printed_settings_read_back_to_the_same_values() {
    let config = with_set(&[
        "data_dir=a: b # c",
        "log.segment_bytes=1234567",
        "log.classes.telemetry.filters=[x/#, '#']",
    ]);
    let config = config.unwrap();
    assert_eq!(config.data_dir, Path::new("a: b # c"));
    assert_eq!(from_text(&to_yaml(&config)).unwrap(), config);
    // Each of these is special to JSON or to YAML, and none is written as it is.
    for c in "\0\t\u{1f}\u{7f}\u{85}\u{9f}\u{2028}\u{2029}\u{feff}\u{fffe}\u{ffff}\"\\".chars() {
        let config = with_set(&[&format!("data_dir=a{c}b")]).unwrap();
        assert_eq!(config.data_dir, Path::new(&format!("a{c}b")), "{c:?}");
        assert_eq!(from_text(&to_yaml(&config)).unwrap(), config, "{c:?}");
    }
}

#[test]
fn a_key_with_a_line_end_is_refused_in_one_line() {
    let refused = sentence(from_text("\"a\\nb\": 1"));
    assert!(refused.contains(r"unknown key `a\nb`"), "{refused}");
    assert!(!refused.contains('\n'), "{refused}");
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
