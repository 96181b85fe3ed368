//! Watches across compaction and lost members.

use std::time::Duration;

use headwater_etcd::{
    CasOutcome, Change, Client, Fault, MetaStore, Patience, Revision, Update, VALUE_BYTES_MAX,
    Watch, Why,
};

use crate::support::{Etcd, PATIENT, client, run, update};

/// Of the client.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;

async fn put(client: &Client, key: &str, expected: Revision, value: &str) -> Revision {
    match client.cas(key, expected, value.into(), None).await {
        CasOutcome::Done(revision) => revision,
        other => panic!("not written: {other:?}"),
    }
}

fn changed(key: &str, revision: Revision, value: &str) -> Update {
    Update::Changes(vec![Change {
        key: key.to_owned(),
        revision,
        value: Some(value.into()),
    }])
}

#[test]
fn a_watch_goes_on_where_it_was_after_a_restart_of_etcd() {
    let mut etcd = Etcd::start(1);
    run(async {
        let client = etcd.client();
        let first = put(&client, "/w/a", Revision(0), "1").await;
        let mut watch = client.watch("/w/");
        assert!(matches!(watch.next().await, Update::All { .. }));
        let second = put(&client, "/w/a", first, "2").await;
        assert_eq!(watch.next().await, changed("/w/a", second, "2"));
        etcd.members[0].kill();
        etcd.members[0].start_again();
        // Another client: this one may still hold the connection that is lost.
        let third = put(&etcd.client(), "/w/a", second, "3").await;
        assert_eq!(update(&mut watch).await, changed("/w/a", third, "3"));
    });
}

#[test]
fn a_watch_that_missed_compacted_changes_reads_all_keys_and_says_so() {
    let mut etcd = Etcd::start(1);
    run(async {
        let client = etcd.client();
        let first = put(&client, "/w/a", Revision(0), "1").await;
        let mut watch = client.watch("/w/");
        assert!(matches!(watch.next().await, Update::All { .. }));
        let second = put(&client, "/w/a", first, "2").await;
        assert_eq!(watch.next().await, changed("/w/a", second, "2"));
        etcd.members[0].kill();
        etcd.members[0].start_again();
        let other = etcd.client();
        let third = put(&other, "/w/a", second, "3").await;
        let fourth = put(&other, "/w/a", third, "4").await;
        etcd.compact(fourth);
        let Update::All { why, listing } = update(&mut watch).await else {
            panic!("the third value is compacted");
        };
        assert_eq!((why, listing.revision), (Why::Missed, fourth));
        let values: Vec<_> = listing
            .keys
            .iter()
            .map(|found| found.value.as_slice())
            .collect();
        assert_eq!(values, [b"4"]);
        let fifth = put(&other, "/w/a", fourth, "5").await;
        assert_eq!(update(&mut watch).await, changed("/w/a", fifth, "5"));
    });
}

#[test]
fn compaction_of_what_a_watch_has_seen_is_not_noticed() {
    let etcd = Etcd::start(1);
    run(async {
        let client = etcd.client();
        let mut watch = client.watch("/w/");
        assert!(matches!(watch.next().await, Update::All { .. }));
        let first = put(&client, "/w/a", Revision(0), "1").await;
        assert_eq!(watch.next().await, changed("/w/a", first, "1"));
        etcd.compact(first);
        let second = put(&client, "/w/a", first, "2").await;
        assert_eq!(watch.next().await, changed("/w/a", second, "2"));
    });
}

/// etcd sends what a watch has missed in few answers.
#[test]
fn a_watch_that_missed_more_than_an_answer_has_room_for_reads_all_keys_and_says_so() {
    let mut etcd = Etcd::start(1);
    run(async {
        let client = etcd.client();
        let mut watch = client.watch("/w/");
        assert!(matches!(watch.next().await, Update::All { .. }));
        let mut last = put(&client, "/w/a", Revision(0), "1").await;
        assert_eq!(watch.next().await, changed("/w/a", last, "1"));
        etcd.members[0].kill();
        etcd.members[0].start_again();
        let other = etcd.client();
        let value = "v".repeat(VALUE_BYTES_MAX);
        for _ in 0..ANSWER_BYTES_MAX / VALUE_BYTES_MAX {
            last = put(&other, "/w/a", last, &value).await;
        }
        let Update::All { why, listing } = update(&mut watch).await else {
            panic!("the changes are too large");
        };
        assert_eq!((why, listing.revision), (Why::Missed, last));
        assert_eq!(listing.keys.len(), 1);
        let next = put(&other, "/w/a", last, "2").await;
        assert_eq!(update(&mut watch).await, changed("/w/a", next, "2"));
    });
}

/// Counts from 0 in a key until each number is known to be written.
async fn count(client: &Client, key: &str, to: u64) {
    let found = loop {
        // There may be no leader for a moment.
        if let Ok(read) = client.get(key).await {
            break read.found;
        }
    };
    let mut revision = found.map_or(Revision(0), |found| found.revision);
    for n in 0..to {
        revision = loop {
            match client.cas(key, revision, n.to_string().into(), None).await {
                CasOutcome::Done(revision) => break revision,
                // An earlier one, whose outcome was unknown, was written.
                CasOutcome::Conflict(Some(found)) => break found.revision,
                _ => {}
            }
        };
    }
}

#[test]
fn a_watch_of_a_paused_member_moves_to_another_one() {
    let etcd = Etcd::start(3);
    run(async {
        let patience = Patience {
            progress: Duration::from_millis(200),
            ..PATIENT
        };
        let client = client(&etcd.urls(), None, None, patience);
        let mut watch = client.watch("/w/");
        assert!(matches!(update(&mut watch).await, Update::All { .. }));
        count(&etcd.client(), "/w/a", 1).await;
        assert!(matches!(update(&mut watch).await, Update::Changes(_)));
        let used = client.member().expect("connected").to_string();
        let (paused, others): (Vec<_>, Vec<_>) =
            etcd.members.iter().partition(|one| one.url == used);
        paused[0].pause();
        let Update::Failed(error) = watch.next().await else {
            panic!("nothing has changed");
        };
        assert_eq!((error.endpoint, error.fault), (used, Fault::Silent(400)));
        let urls: Vec<_> = others.iter().map(|one| one.url.as_str()).collect();
        count(
            &crate::support::client(&urls, None, None, PATIENT),
            "/w/a",
            3,
        )
        .await;
        let mut seen = Vec::new();
        while seen.len() < 3 {
            if let Update::Changes(changes) = update(&mut watch).await {
                seen.extend(changes.into_iter().filter_map(|change| change.value));
            }
        }
        assert_eq!(seen, [b"0", b"1", b"2"]);
        paused[0].go_on();
    });
}

#[test]
fn an_idle_watch_of_a_member_that_lives_says_nothing() {
    let etcd = Etcd::start(1);
    run(async {
        let progress = Duration::from_millis(100);
        let patience = Patience {
            progress,
            ..PATIENT
        };
        let client = client(&etcd.urls(), None, None, patience);
        let mut watch = client.watch("/w/");
        assert!(matches!(update(&mut watch).await, Update::All { .. }));
        // On a machine under load an answer may come too late: then it says so and goes on.
        let idle = tokio::time::timeout(10 * progress, watch.next()).await;
        let is_late =
            matches!(&idle, Ok(Update::Failed(error)) if error.fault == Fault::Silent(200));
        assert!(idle.is_err() || is_late, "{idle:?}");
        let first = put(&etcd.client(), "/w/a", Revision(0), "1").await;
        assert_eq!(update(&mut watch).await, changed("/w/a", first, "1"));
    });
}
