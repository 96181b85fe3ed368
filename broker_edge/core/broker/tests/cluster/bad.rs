//! What a node refuses to start with, in one sentence each, and etcd that is away.

use std::io::Read as _;

use base64::Engine as _;
use headwater_broker::cluster::keys::{Keys, Meta};
use headwater_etcd::{CasOutcome, MetaStore};
use headwater_log::LogId;
use headwater_mqtt::Version;

use crate::common::Client;
use crate::etcd;
use crate::site::{CLUSTER, NAMES, Site, name};

/// What a node says that does not start with these settings.
fn refusal(site: &Site, at: usize, more: &[&str]) -> String {
    let more: Vec<_> = more.iter().map(|one| (*one).to_owned()).collect();
    let before = site.nodes[at].said().len();
    let (mut child, mut stdout) = site.spawn(at, &more);
    let mut line = String::new();
    stdout.read_to_string(&mut line).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{line}");
    site.nodes[at].until_said("its last line", |said| {
        let mut lines = said[before..].split_inclusive('\n');
        let last = lines.find(|line| line.starts_with("headwaterd: "))?;
        last.strip_suffix('\n').map(str::to_owned)
    })
}

#[test]
fn wrong_names_folders_and_clusters_are_refused_in_a_sentence() {
    let mut site = Site::start();
    let follower = site.followers()[0];
    let free = site.dir.path().join("free").display().to_string();
    let data = format!("data_dir={free}");
    let text = refusal(&site, follower, &["cluster.name=paris", &data]);
    assert!(
        text.contains("etcd has no cluster paris") && text.contains("headwater cluster init"),
        "{text}"
    );
    let text = refusal(&site, follower, &["cluster.node=n9", &data]);
    assert!(
        text.contains("has the nodes n1, n2, n3, and not n9"),
        "{text}"
    );

    // A node of this name runs, with another folder.
    let text = refusal(&site, follower, &[&data]);
    assert!(
        text.contains(&format!("another node {} runs", NAMES[follower])),
        "{text}"
    );

    // The folder of another node.
    site.nodes[follower].stop();
    let other = site.folder(
        site.followers()
            .into_iter()
            .find(|at| *at != follower)
            .unwrap(),
    );
    let kept = site.dir.path().join("kept");
    std::fs::rename(site.folder(follower), &kept).unwrap();
    copy(&other, &site.folder(follower));
    let text = refusal(&site, follower, &[]);
    assert!(text.contains(NAMES[follower]), "{text}");
    std::fs::remove_dir_all(site.folder(follower)).unwrap();

    // A folder from before a start.
    copy(&kept, &site.folder(follower));
    site.start_node(follower);
    site.nodes[follower].stop();
    std::fs::remove_dir_all(site.folder(follower)).unwrap();
    std::fs::rename(&kept, site.folder(follower)).unwrap();
    let text = refusal(&site, follower, &[]);
    assert!(text.contains("it was rolled back or copied"), "{text}");

    // An empty folder joins under the old name, and gets all there is.
    std::fs::remove_dir_all(site.folder(follower)).unwrap();
    site.start_node(follower);
    site.until_in_sync(3);
}

#[test]
fn the_folder_of_another_log_is_refused() {
    let site = Site::start();
    let follower = site.followers()[0];
    let keys = Keys::new(&name("other"));
    let meta = Meta::new(LogId::from_bytes([8; 16]), &NAMES.map(name));
    let made = etcd::run(
        site.etcd
            .client()
            .put_if_absent(&keys.meta(), meta.encode(), None),
    );
    assert!(matches!(made, CasOutcome::Done(_)), "{made:?}");
    let copied = site.dir.path().join("copied");
    copy(&site.folder(follower), &copied);
    let data = format!("data_dir={}", copied.display());
    let text = refusal(&site, follower, &["cluster.name=other", &data]);
    assert!(
        text.contains("08080808-0808-0808-0808-080808080808"),
        "{text}"
    );
    assert!(!text.contains('\n'));
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    let status = std::process::Command::new("cp")
        .arg("-a")
        .args([from, to])
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn records_are_acknowledged_while_etcd_is_away_and_a_line_says_what_waits() {
    let mut site = Site::start();
    let leader = site.leader();
    let mut publisher = Client::connect(site.nodes[leader].mqtt(), Version::V5, "publisher");
    publisher.publish("devices/d1/telemetry", "before");
    site.etcd.members[0].kill();
    site.nodes[leader].until_says("records are acknowledged as before, but a change of the leader");
    for text in 0..20 {
        publisher.publish("devices/d1/telemetry", text.to_string());
    }
    let report = site.nodes[leader].report().unwrap();
    assert_eq!(report["etcd"]["reachable"], false);
    let said = site.nodes[leader].said();
    assert_eq!(
        said.matches("records are acknowledged as before").count(),
        1,
        "{said}"
    );
    site.etcd.members[0].start_again();
    site.nodes[leader].until_says("etcd is back");
    assert_eq!(site.leader(), leader);
    // Elections work again.
    site.nodes[leader].kill();
    assert_ne!(site.leader(), leader);
}

#[test]
fn a_start_that_waits_for_etcd_ends_by_a_signal() {
    let mut site = Site::made();
    site.etcd.members[0].kill();
    let (mut child, _stdout) = site.spawn(0, &[]);
    site.nodes[0].until_says("so this one waits");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    site.nodes[0].until_says("it was stopped before etcd answered");
}

/// A person, or a restore, has removed what says who leads.
#[test]
fn records_are_acknowledged_without_the_key_of_the_shard_and_a_line_says_what_waits() {
    let mut site = Site::start();
    let leader = site.leader();
    let key = Keys::new(&name(CLUSTER)).shard();
    let found = etcd::run(site.etcd.client().get(&key)).unwrap().found;
    let value = found.unwrap().value;
    let encoded = base64::engine::general_purpose::STANDARD.encode(&key);
    let body = format!(r#"{{"key": "{encoded}"}}"#);
    site.etcd.members[0].post("kv/deleterange", &body);
    for node in &site.nodes {
        node.until_says("etcd no longer has this key: records are acknowledged as before");
    }
    let mut publisher = Client::connect(site.nodes[leader].mqtt(), Version::V5, "publisher");
    for text in 0..20 {
        publisher.publish("devices/d1/telemetry", text.to_string());
    }
    let written = etcd::run(site.etcd.client().put_if_absent(&key, value, None));
    assert!(matches!(written, CasOutcome::Done(_)), "{written:?}");
    // Elections work again.
    site.nodes[leader].kill();
    assert_ne!(site.leader(), leader);
    for node in &site.nodes {
        let said = node.said();
        assert_eq!(said.matches("etcd no longer has").count(), 1, "{said}");
    }
}
