//! A leader, its standbys, and what happens when the leader is killed or stopped.

use std::collections::BTreeMap;

use headwater_broker::cluster::keys::Keys;
use headwater_mqtt::Version;
use serde_json::Value;

use crate::common::Client;
use crate::site::{CLUSTER, NAMES, Site, name, until};

const TOPIC: &str = "devices/d1/telemetry";

/// By partition: high watermark.
fn marks(report: &Value) -> BTreeMap<String, u64> {
    let partitions = report["partitions"].as_array().unwrap().iter();
    let mark = |one: &Value| {
        (
            one["name"].as_str().unwrap().to_owned(),
            one["high_watermark"].as_u64().unwrap(),
        )
    };
    partitions.map(mark).collect()
}

/// All running nodes show the same.
pub fn until_equal(site: &Site, running: &[usize]) -> BTreeMap<String, u64> {
    until("copies of equal length", || {
        let reports = running.iter().map(|at| site.nodes[*at].report());
        let all: Option<Vec<_>> = reports.map(|report| Some(marks(&report?))).collect();
        let all = all?;
        all.iter().all(|one| *one == all[0]).then(|| all[0].clone())
    })
}

/// Subscribes with a session, so that what is published later is kept for it.
pub fn session(site: &Site, id: &str) -> (Client, bool) {
    Client::resume(site.nodes[site.leader()].mqtt(), Version::V5, id)
}

pub fn publish(site: &Site, texts: std::ops::Range<u32>) {
    let mqtt = site.nodes[site.leader()].mqtt();
    let mut publisher = Client::connect(mqtt, Version::V5, "publisher");
    texts.for_each(|text| publisher.publish(TOPIC, text.to_string()));
}

#[test]
fn what_the_leader_acknowledges_is_on_all_nodes_and_others_say_where_it_is() {
    let site = Site::start();
    let leader = site.leader();
    publish(&site, 0..10);
    let marks = until_equal(&site, &[0, 1, 2]);
    let records: u64 = marks
        .iter()
        .filter(|(name, _)| name.starts_with("telemetry"))
        .map(|one| one.1)
        .sum();
    assert_eq!(records, 10);
    let at = site.nodes[leader].mqtt().to_string();
    for follower in site.followers() {
        let node = &site.nodes[follower];
        until("the address of the leader", || {
            (node.names_server()? == at).then_some(())
        });
        assert_eq!(node.connack(Version::V311), [0x20, 2, 0, 3]);
        let report = node.report().unwrap();
        assert_eq!(report["leader"], NAMES[leader]);
        assert_eq!(report["role"], "follower");
        assert_eq!(report["nodes"][NAMES[leader]]["mqtt"], at);
        assert_eq!(node.get("/readyz").unwrap().0, 503);
    }
    let report = site.nodes[leader].report().unwrap();
    assert_eq!(report["in_sync"].as_array().unwrap().len(), 3);
    assert_eq!(report["role"], "leader");
    assert_eq!(report["log_id"], "07070707-0707-0707-0707-070707070707");
}

#[test]
fn a_leader_shows_the_metrics_of_a_cluster() {
    let site = Site::start();
    let (_, metrics) = site.nodes[site.leader()].get("/metrics").expect("it runs");
    for line in [
        "headwater_cluster_leads 1",
        "headwater_cluster_epoch ",
        "headwater_cluster_in_sync_members ",
        "headwater_cluster_elections_total ",
        "headwater_cluster_etcd_reachable 1",
        "headwater_cluster_follower_lag_records{node=\"",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}

#[test]
fn a_killed_leader_is_followed_by_another_with_all_that_was_acknowledged() {
    let mut site = Site::start();
    let (mut reader, _) = session(&site, "reader");
    reader.subscribe("devices/+/telemetry", 1);
    let mut sent = 0;
    for round in 1..4 {
        publish(&site, sent..sent + 10);
        sent += 10;
        let killed = site.leader();
        let epoch = site.nodes[killed].report().unwrap()["epoch"]
            .as_u64()
            .unwrap();
        site.nodes[killed].kill();
        let leader = site.leader();
        assert_ne!(leader, killed);
        let report = site.nodes[leader].report().unwrap();
        assert!(report["epoch"].as_u64().unwrap() > epoch, "round {round}");
        publish(&site, sent..sent + 10);
        sent += 10;
        site.start_node(killed);
        site.until_in_sync(3);
        until_equal(&site, &[0, 1, 2]);
    }
    let (mut reader, present) = session(&site, "reader");
    assert!(present);
    // What was not acknowledged by the reader in time comes again, in order, and nothing is missing.
    let mut next = 0;
    while next < sent {
        let text: u32 = reader.message().text().parse().unwrap();
        assert!(text <= next, "{text} came where {next} was due");
        next = next.max(text + 1);
    }
}

#[test]
fn a_stopped_leader_gives_the_log_away_with_sessions_and_the_rest_goes_on() {
    let mut site = Site::start();
    let (mut reader, _) = session(&site, "reader");
    reader.subscribe("devices/+/telemetry", 1);
    publish(&site, 0..5);
    reader.texts(5);
    // The broker has handled the acknowledgements of the five.
    reader.expect_silence();
    let stopped = site.leader();
    assert_eq!(site.nodes[stopped].stop(), Some(0));
    let said = site.nodes[stopped].said();
    assert!(said.contains("gives the log to another node"), "{said}");
    assert!(!said.contains("was not given"), "{said}");
    assert_ne!(site.leader(), stopped);
    site.until_in_sync(2);
    publish(&site, 5..10);
    let (mut reader, present) = session(&site, "reader");
    assert!(present);
    // An orderly end stored where the session was, so nothing comes again.
    assert_eq!(reader.texts(5), ["5", "6", "7", "8", "9"]);
    // The address of a stopped node is gone at once.
    let key = Keys::new(&name(CLUSTER)).node(&name(NAMES[stopped]));
    let read = crate::etcd::run(headwater_etcd::MetaStore::get(&site.etcd.client(), &key));
    assert_eq!(read.unwrap().found, None);
    site.start_node(stopped);
    site.until_in_sync(3);
    until_equal(&site, &[0, 1, 2]);
}
