//! The settings of a node of a cluster.

use std::path::PathBuf;

use super::{from_text, sentence};
use crate::config::{Advertised, Config, ConfigError, Listening};

/// A valid node with these keys of `cluster` replaced or added; one without a value is left out.
fn node(changes: &[(&str, &str)]) -> Result<Config, ConfigError> {
    changed(changes, "")
}

fn changed(changes: &[(&str, &str)], rest: &str) -> Result<Config, ConfigError> {
    let mut keys = vec![
        ("name", "c"),
        ("node", "n1"),
        ("listen", "127.0.0.1:7400"),
        ("secret_file", "secret"),
        ("etcd", "{endpoints: ['http://127.0.0.1:2379']}"),
    ];
    for (key, value) in changes {
        keys.retain(|(name, _)| name != key);
        keys.push((key, value));
    }
    let keys = keys.iter().filter(|(_, value)| !value.is_empty());
    let lines: String = keys
        .map(|(key, value)| format!("  {key}: {value}\n"))
        .collect();
    from_text(&format!("cluster:\n{lines}{rest}"))
}

const TLS: (&str, &str) = ("tls", "{cert: a, key: b, ca: c}");
const TOLD: (&str, &str) = ("advertise", "{mesh: 'a:1', mqtt: 'a:2', flight: 'a:3'}");

#[test]
fn a_broker_without_the_section_is_alone() {
    assert!(!Config::default().cluster.is_on());
    let alone = sentence(node(&[("name", "")]));
    assert!(
        alone.starts_with("cluster.name: is needed with other settings of `cluster`"),
        "{alone}"
    );
}

#[test]
fn a_node_on_this_machine_needs_no_certificates() {
    let config = node(&[]).unwrap();
    assert!(config.cluster.is_on());
    assert_eq!(config.cluster.secret_file, Some(PathBuf::from("secret")));
}

#[test]
fn each_wrong_value_has_its_sentence() {
    for (key, value, expected) in [
        ("name", "a/b", "cluster.name: `a/b` is not a name"),
        (
            "node",
            "",
            "cluster.node: a name is needed, different for each node",
        ),
        ("node", "n 1", "cluster.node: \"n 1\" is not a node name"),
        ("listen", "", "cluster.listen: an address is needed"),
        ("secret_file", "", "cluster.secret_file: a file is needed"),
        (
            "tls",
            "{cert: a, key: b}",
            "cluster.tls: cert, key and ca are needed together",
        ),
        (
            "listen",
            "10.0.0.1:7400",
            "cluster.listen: 10.0.0.1:7400 can be reached from other hosts and the connection has no TLS",
        ),
        (
            "advertise",
            "{mqtt: box1}",
            "cluster.advertise.mqtt: `box1` is not an address; write HOST:PORT",
        ),
        (
            "advertise",
            "{admin: 'box1:0'}",
            "cluster.advertise.admin: `box1:0` is not an address",
        ),
    ] {
        let refused = sentence(node(&[(key, value)]));
        assert!(refused.starts_with(expected), "{refused}");
    }
}

#[test]
fn etcd_is_named_and_reached_safely() {
    for (etcd, expected) in [
        ("{}", "endpoints: at least one is needed"),
        (
            "{endpoints: [etcd]}",
            "endpoints: \"etcd\" is no endpoint of etcd",
        ),
        (
            "{endpoints: ['http://localhost:1', 'http://localhost:1']}",
            "endpoints: http://localhost:1 is given twice",
        ),
        (
            "{endpoints: ['http://10.0.0.1:2379']}",
            "endpoints: http://10.0.0.1:2379 is another machine and the connection has no TLS",
        ),
        (
            "{endpoints: ['http://localhost:1', 'https://b:1'], ca: a}",
            "endpoints: some are http and some https",
        ),
        ("{endpoints: ['https://b:1']}", "ca: is needed with https"),
        (
            "{endpoints: ['http://localhost:1'], ca: a}",
            "ca: has no effect with http",
        ),
        (
            "{endpoints: ['http://localhost:1'], cert: a, key: b}",
            "cert: has no effect with http",
        ),
        (
            "{endpoints: ['https://b:1'], ca: a, cert: b}",
            "key: is needed",
        ),
        (
            "{endpoints: ['https://b:1'], ca: a, key: b}",
            "cert: is needed",
        ),
        (
            "{endpoints: ['http://localhost:1'], user: a}",
            "password_file: is needed with cluster.etcd.user",
        ),
        (
            "{endpoints: ['http://localhost:1'], password_file: a}",
            "user: is needed with cluster.etcd.password_file",
        ),
    ] {
        let refused = sentence(node(&[("etcd", etcd)]));
        let expected = format!("cluster.etcd.{expected}");
        assert!(refused.starts_with(&expected), "{refused}");
    }
    let secret = sentence(node(&[("etcd", "{endpoints: ['http://a:secret@b:1']}")]));
    assert!(!secret.contains("secret"), "{secret}");
}

#[test]
fn plain_text_to_other_machines_has_to_be_said() {
    let far = ("etcd", "{endpoints: ['http://10.0.0.9:2379']}");
    let open = ("listen", "10.0.0.1:7400");
    assert!(node(&[far, open, TOLD]).is_err());
    assert!(node(&[far, open, TOLD, ("plaintext", "true")]).is_ok());
    assert!(node(&[open, TLS, TOLD]).is_ok());
}

#[test]
fn a_log_that_is_not_synced_is_no_replica() {
    let never = sentence(changed(&[], "log: {sync: never}"));
    assert!(
        never.starts_with("log.sync: a node of a cluster has to sync"),
        "{never}"
    );
    let written = sentence(changed(&[], "log: {sync: interval, ack: written}"));
    assert!(
        written.starts_with("log.ack: a node of a cluster"),
        "{written}"
    );
    assert!(changed(&[], "log: {sync: interval}").is_ok());
}

#[test]
fn what_others_are_told_can_be_dialled() {
    let open = ("listen", "0.0.0.0:7400");
    for (advertise, expected) in [
        (
            "{}",
            "cluster.advertise.mesh: an address is needed, because others cannot connect to 0.0.0.0:7400",
        ),
        (
            "{mesh: 'box1:1'}",
            "cluster.advertise.mqtt: an address is needed, because others cannot connect to 127.0.0.1:1883",
        ),
        (
            "{mesh: 'box1:1', mqtt: 'box1:2'}",
            "cluster.advertise.flight: an address is needed",
        ),
    ] {
        let refused = sentence(node(&[open, TLS, ("advertise", advertise)]));
        assert!(refused.starts_with(expected), "{refused}");
    }
    assert!(node(&[open, TLS, TOLD]).is_ok());
}

#[test]
fn addresses_come_from_the_listeners_where_none_is_given() {
    let at = |text: &str| text.parse().unwrap();
    let bound = Listening {
        mesh: at("127.0.0.1:7401"),
        mqtt: at("127.0.0.1:1"),
        flight: at("[::1]:2"),
        admin: at("127.0.0.1:3"),
    };
    let config = node(&[]).unwrap();
    let expected = Advertised {
        mesh: "127.0.0.1:7401".to_owned(),
        mqtt: "127.0.0.1:1".to_owned(),
        flight: "grpc://[::1]:2".to_owned(),
        admin: Some("http://127.0.0.1:3".to_owned()),
    };
    assert_eq!(config.cluster.advertised(&config, bound), expected);
    let tls = "listeners: {flight: {tls: {cert: a, key: b}}, admin: {tls: {cert: a, key: b}}}";
    let config = changed(&[TOLD], tls).unwrap();
    let told = config.cluster.advertised(&config, bound);
    assert_eq!((&told.mesh[..], &told.mqtt[..]), ("a:1", "a:2"));
    // Others cannot reach an admin listener on loopback, so they are not told of it.
    assert_eq!((&told.flight[..], told.admin), ("grpc+tls://a:3", None));
    let with_admin = (
        "advertise",
        "{mesh: 'a:1', mqtt: 'a:2', flight: 'a:3', admin: 'a:4'}",
    );
    let config = changed(&[with_admin], tls).unwrap();
    let told = config.cluster.advertised(&config, bound);
    assert_eq!(told.admin.as_deref(), Some("https://a:4"));
}
