//! One sentence for each mistake.

use super::{from_text, sentence, with_set, with_variable};
use crate::config::{Config, Source};

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
fn each_mistake_of_a_file_has_its_own_line() {
    for (text, said) in [
        (
            "log:\n  sync: always\n  classes:\n    telemetry:\n      partitions: 2\n      filter: [a]\n",
            "configuration, line 6: unknown key `filter`; did you mean `filters`?",
        ),
        (
            "\nlog: always\n",
            "configuration, line 2: `log` is a section: write its keys below it, indented",
        ),
        (
            "log:\n  sync:\n    sometimes\n",
            "configuration, line 2: unknown variant `sometimes`",
        ),
        (
            "data_dir: a\nbroker:\n  max_connections: [1]\n",
            "configuration, line 3: invalid type: sequence, expected u",
        ),
        (
            "mqtt:\n  max_inflight: 3\n  max_inflight: 4\n",
            "configuration, line 3: ",
        ),
        (
            "log: {tail_bytes: 1MiB, colour: 2}\n1: 2\n",
            "configuration, line 1: unknown key `colour`",
        ),
        (
            "data_dir: a\n1: 2\n",
            "configuration, line 2: unknown key `1`",
        ),
        ("data_dir: a\n  b: c\n", "configuration, line 2: "),
        ("- a\n", "configuration: the file must hold keys and values"),
    ] {
        let found = sentence(from_text(text));
        assert!(found.starts_with(said), "{text:?} says {found}");
    }
}

#[test]
fn of_an_anchor_the_line_of_its_use_is_named() {
    let text = "log:\n  classes:\n    control: &same {partitions: 2}\n    telemetry: *same\n";
    let classes = from_text(text)
        .expect("an anchor may be used again")
        .log
        .classes;
    assert_eq!(
        (classes.control.partitions, classes.telemetry.partitions),
        (2, 2)
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
fn a_missing_file_is_named() {
    let source = Source {
        file: Some("no/such/broker.yaml".into()),
        ..Source::default()
    };
    assert!(sentence(Config::load(&source)).starts_with("cannot read no/such/broker.yaml: "));
}

#[test]
fn a_pipe_is_named_and_not_waited_for() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let pipe = crate::regular_file::pipe_in(dir.path());
    let source = Source {
        file: Some(pipe.clone()),
        ..Source::default()
    };
    let expected = format!("cannot read {}: it is no regular file", pipe.display());
    assert_eq!(sentence(Config::load(&source)), expected);
}

#[test]
fn a_value_with_ends_of_lines_or_escapes_of_a_terminal_is_shown_in_one_line() {
    for value in [
        "listeners.mqtt.bind=1\r\n2",
        "listeners.mqtt.bind=\u{1b}[2J",
    ] {
        let said = sentence(with_set(&[value]));
        assert!(said.contains("is not an address"), "{said}");
        assert!(!said.chars().any(char::is_control), "{said:?}");
    }
    let said = sentence(with_set(&["log.sync_interval\r1=3"]));
    assert!(!said.chars().any(char::is_control), "{said:?}");
}
