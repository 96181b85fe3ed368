//! A leader that gives the log to the node that an operator names.

use headwater_mqtt::Version;

use crate::common::Client;
use crate::failover::{publish, session};
use crate::site::{NAMES, Site, until};

#[test]
fn an_operator_gives_the_log_to_another_node_and_what_clients_confirmed_stays_so() {
    let site = Site::start();
    site.until_in_sync(3);
    let (mut reader, _) = session(&site, "reader");
    reader.subscribe("devices/+/telemetry", 1);
    publish(&site, 0..5);
    reader.texts(5);
    // The broker has handled the acknowledgements of the five.
    reader.expect_silence();
    let (from, to) = (site.leader(), site.followers()[1]);
    let (code, answer) = site.nodes[from].elect(NAMES[to]);
    assert_eq!(code, 202, "{answer}");
    assert_eq!(
        (&answer["from"], &answer["to"]),
        (&NAMES[from].into(), &NAMES[to].into())
    );
    let report = until("the other leader", || {
        let report = site.nodes[to].report()?;
        (report["role"] == "leader" && site.nodes[to].serves()).then_some(report)
    });
    assert!(
        report["epoch"].as_u64() > answer["epoch"].as_u64(),
        "{report}"
    );
    publish(&site, 5..10);
    let (mut reader, present) = session(&site, "reader");
    assert!(present);
    assert_eq!(reader.texts(5), ["5", "6", "7", "8", "9"]);
    // The one that led goes on as a follower, and says where clients go.
    until("the address of the leader", || {
        (site.nodes[from].names_server()? == site.nodes[to].mqtt().to_string()).then_some(())
    });
    site.until_in_sync(3);
}

#[test]
fn a_leader_says_why_it_does_not_give_the_log_away() {
    let mut site = Site::start();
    site.until_in_sync(3);
    let (leader, followers) = (site.leader(), site.followers());
    let refused = |site: &Site, at: usize, to: &str| {
        let (code, answer) = site.nodes[at].elect(to);
        (code, answer["message"].as_str().unwrap().to_owned())
    };
    let (code, why) = refused(&site, followers[0], NAMES[followers[1]]);
    assert_eq!(code, 409);
    assert_eq!(
        why,
        format!("this node does not lead; ask {}", NAMES[leader])
    );
    let (code, why) = refused(&site, leader, "n9");
    assert_eq!((code, why.as_str()), (404, "n9 is no node of this cluster"));
    let (code, why) = refused(&site, leader, NAMES[leader]);
    assert_eq!(
        (code, why),
        (409, format!("{} leads already", NAMES[leader]))
    );
    assert_eq!(refused(&site, leader, "a%20b").0, 400);
    site.nodes[followers[0]].kill();
    site.until_in_sync(2);
    let (code, why) = refused(&site, leader, NAMES[followers[0]]);
    assert_eq!(code, 409);
    assert!(
        why.contains("is not in sync, so it may lack records"),
        "{why}"
    );
}

#[test]
fn a_leader_goes_on_when_the_other_node_does_not_take_over() {
    let site = Site::start();
    site.until_in_sync(3);
    let (leader, to) = (site.leader(), site.followers()[0]);
    let mut publisher = Client::connect(site.nodes[leader].mqtt(), Version::V5, "publisher");
    site.nodes[to].freeze();
    // It cannot have this one, so it is not ready to lead.
    publisher.send_publish("devices/d1/telemetry", b"late", 1, false, &[]);
    until("a record that the frozen node lacks", || {
        let report = site.nodes[leader].report()?;
        (report["lag"][NAMES[to]].as_u64()? > 0).then_some(())
    });
    assert_eq!(site.nodes[leader].elect(NAMES[to]).0, 202);
    assert_eq!(
        site.nodes[leader].elect(NAMES[to]).0,
        409,
        "it is under way"
    );
    site.nodes[leader].until_says("the other node did not take over the log");
    assert_eq!(site.leader(), leader);
    publish(&site, 0..3);
    site.nodes[to].thaw();
    site.until_in_sync(3);
    assert_eq!(site.leader(), leader);
}
