//! Every metric named in the documents and the dashboard exists, and every metric is documented.

use std::collections::BTreeSet;
use std::path::Path;

use headwater_mqtt::Version;
use headwater_mqtt::encode::{self, ConnectFields};

use crate::common::http::text;
use crate::common::{Client, Got, start_with};

/// Metrics of a TLS listener, which this broker does not have.
const WITH_TLS: [&str; 1] = ["headwater_tls_certificate_expiry_seconds"];

/// Metrics of a node of a cluster, which tests/cluster looks at.
const IN_A_CLUSTER: [&str; 6] = [
    "headwater_cluster_elections_total",
    "headwater_cluster_epoch",
    "headwater_cluster_etcd_reachable",
    "headwater_cluster_follower_lag_records",
    "headwater_cluster_in_sync_members",
    "headwater_cluster_leads",
];

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../..")
        .join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every word that begins with `headwater_` and looks like a metric name.
fn named_in(text: &str) -> BTreeSet<String> {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    text.match_indices("headwater_")
        .map(|(at, _)| {
            let end = text[at..].find(|c| !is_word(c));
            text[at..end.map_or(text.len(), |end| at + end)].to_owned()
        })
        // A prefix is not a name.
        .filter(|name| !name.ends_with('_') && name.matches('_').count() > 1)
        .collect()
}

/// Names as used in queries: histograms with their three series and their own name.
fn exposed(metrics: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut base, mut all) = (BTreeSet::new(), BTreeSet::new());
    for line in metrics.lines() {
        let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        // Those of the process belong to no part of the broker.
        if !name.starts_with("headwater_") {
            continue;
        }
        let name = name.to_owned();
        if kind == "histogram" {
            all.extend(["bucket", "sum", "count"].map(|part| format!("{name}_{part}")));
        }
        all.insert(name.clone());
        base.insert(name);
    }
    (base, all)
}

#[test]
fn every_figure_of_the_documents_and_the_dashboard_exists_and_every_figure_is_documented() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start_with(dir.path(), |config| config.mqtt.max_sessions = 1);
    let mqtt = broker.mqtt_address();
    let mut client = Client::connect(mqtt, Version::V311, "c");
    client.subscribe("t", 1);
    client.publish("t", "x");
    client.message();
    for (client_id, served) in [("first", true), ("second", false)] {
        let mut fields = ConnectFields::new(Version::V311, client_id);
        fields.clean_start = false;
        let mut other = Client::open(mqtt, Version::V311);
        other.send(|out| encode::connect(out, &fields));
        assert!(matches!(other.next(), Got::Connack { accepted, .. } if accepted == served));
    }
    // The second answer includes the first request.
    text(broker.admin_address(), "GET", "/metrics");
    let (_, metrics) = text(broker.admin_address(), "GET", "/metrics");
    let (base, all) = exposed(&metrics);
    for line in [
        "headwater_mqtt_clients{transport=\"mqtt\",version=\"3.1.1\"} ",
        "headwater_mqtt_refusals_total{packet=\"connack\",reason=\"quota_exceeded\"} 1",
        "headwater_mqtt_ack_latency_seconds_count 1",
        "headwater_admin_requests_total{status=\"2xx\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    let elsewhere = WITH_TLS.into_iter().chain(IN_A_CLUSTER);
    let all: BTreeSet<String> = all
        .into_iter()
        .chain(elsewhere.map(str::to_owned))
        .collect();
    let documented = named_in(&file("docs/operating.md"));
    for place in [
        "docs/operating.md",
        "deploy/grafana/headwater.json",
        "deploy/prometheus/headwater.rules.yml",
    ] {
        let missing: Vec<String> = named_in(&file(place)).difference(&all).cloned().collect();
        assert!(
            missing.is_empty(),
            "{place} names {missing:?}, which do not exist"
        );
    }
    let silent: Vec<&String> = base.difference(&documented).collect();
    assert!(
        silent.is_empty(),
        "docs/operating.md does not name {silent:?}"
    );
    broker.shutdown();
}

#[test]
fn a_name_that_does_not_exist_is_found() {
    let text = "`headwater_mqtt_nothing_total{x=\"1\"}`, names begin with `headwater_`";
    assert_eq!(
        named_in(text).into_iter().collect::<Vec<_>>(),
        ["headwater_mqtt_nothing_total"]
    );
}
