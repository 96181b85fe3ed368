//! The log of a broker alone, which goes on as that of a cluster.

use headwater_mqtt::Version;

use crate::common::Client;
use crate::failover::{publish, session, until_equal};
use crate::site::{NAMES, Site, until};

#[test]
fn a_broker_alone_becomes_a_cluster_with_its_records_sessions_and_log_id() {
    let mut site = Site::unmade();
    // Two starts: their records are of two epochs, and more than a segment.
    site.start_alone(0);
    let mut reader = Client::resume(site.nodes[0].mqtt(), Version::V5, "reader").0;
    reader.subscribe("devices/+/telemetry", 1);
    publish(&site, 0..10);
    reader.texts(10);
    reader.expect_silence();
    assert_eq!(site.nodes[0].stop(), Some(0));
    site.start_alone(0);
    publish(&site, 10..20);
    let (code, said) = site.init(0);
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("is in use"), "{said}");
    site.nodes[0].stop();

    let (code, said) = site.init(0);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(site.init(0), (code, said.clone()), "again");
    site.start_node(0);
    // Two disks answer for a record of a cluster, so the first copy waits for the second.
    until("the leader", || {
        let report = site.nodes[0].report()?;
        (report["role"] == "leader").then_some(())
    });
    // Nothing was committed in this life, so a crash of the only copy ends nothing.
    site.nodes[0].kill();
    site.start_node(0);
    site.start_node(1);
    assert_eq!(site.leader(), 0);
    publish(&site, 20..30);
    site.start_node(2);
    site.until_in_sync(3);
    let marks = until_equal(&site, &[0, 1, 2]);
    let of_telemetry = marks.iter().filter(|one| one.0.starts_with("telemetry"));
    assert_eq!(of_telemetry.map(|one| one.1).sum::<u64>(), 30);
    let report = site.nodes[0].report().unwrap();
    assert!(said.contains(report["log_id"].as_str().unwrap()), "{said}");

    site.nodes[0].kill();
    let leader = site.leader();
    assert_ne!(NAMES[leader], "n1");
    let (mut reader, present) = session(&site, "reader");
    assert!(present);
    let texts: Vec<_> = (10..30).map(|number| number.to_string()).collect();
    assert_eq!(reader.texts(20), texts);
}
