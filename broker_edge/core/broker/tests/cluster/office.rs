//! A node that is elected and cannot serve clients, because it cannot read what they left.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use headwater_mqtt::Version;

use crate::common::Client;
use crate::site::Site;

/// Sessions fill more than one segment of the internal partition.
const SESSIONS: u64 = 100;
const FILTER_BYTES: usize = 6_000;
const ATTEMPTS: usize = 5;
/// Between so many attempts of a node: 250 ms, 500 ms, 1 s.
const PAUSES: Duration = Duration::from_millis(1_750);

fn first_internal_segment(site: &Site, at: usize) -> PathBuf {
    let folder = site.folder(at).join("internal-0");
    let found = std::fs::read_dir(&folder).unwrap();
    let mut segments: Vec<_> = found
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|suffix| suffix == "seg"))
        .collect();
    segments.sort();
    assert!(segments.len() > 1, "{segments:?}");
    segments.swap_remove(0)
}

#[test]
fn a_log_that_its_leader_cannot_serve_is_given_on_until_a_node_can() {
    let mut site = Site::start();
    let leader = site.leader();
    for number in 0..SESSIONS {
        let id = format!("session-{number}");
        let (mut client, _) = Client::resume(site.nodes[leader].mqtt(), Version::V5, &id);
        client.subscribe(&format!("{number}/{}", "x".repeat(FILTER_BYTES)), 1);
    }
    let followers = site.followers();
    // A process that begins has nothing of the files in memory.
    for at in &followers {
        assert_eq!(site.nodes[*at].stop(), Some(0));
        site.start_node(*at);
        site.until_in_sync(3);
    }
    let hidden: Vec<_> = followers
        .iter()
        .map(|at| {
            let segment = first_internal_segment(&site, *at);
            let aside = site.dir.path().join(format!("aside-{at}"));
            std::fs::rename(&segment, &aside).unwrap();
            (segment, aside)
        })
        .collect();
    let killed = Instant::now();
    site.nodes[leader].kill();
    for at in &followers {
        site.nodes[*at].until_said("again that it cannot serve clients", |said| {
            let failures = said.matches("this node leads and cannot serve clients");
            (failures.count() >= ATTEMPTS).then_some(())
        });
    }
    let waited = killed.elapsed();
    assert!(waited > PAUSES, "{ATTEMPTS} attempts each in {waited:?}");
    let (segment, aside) = &hidden[0];
    std::fs::rename(aside, segment).unwrap();
    assert_eq!(site.leader(), followers[0]);
    let mqtt = site.nodes[followers[0]].mqtt();
    let (client, is_present) = Client::resume(mqtt, Version::V5, "session-7");
    assert!(is_present);
    client.disconnect();
}
