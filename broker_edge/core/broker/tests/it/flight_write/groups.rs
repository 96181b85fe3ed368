//! Consumer groups: their offsets, their limits, and fencing.

use crate::support::{Sent, TestBroker};
use serde_json::json;
use tonic::Code;

/// Gives both telemetry partitions at least 100 records.
async fn fill(client: &mut crate::support::Client) {
    let sent: Vec<Sent> = (0..400)
        .map(|number| Sent::new(&format!("devices/d{number}/telemetry"), "1"))
        .collect();
    client.produce(&sent).await.unwrap();
    let marks = client.high_watermarks().await;
    assert!(marks.iter().filter(|(_, mark)| *mark >= 100).count() == 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_reader_fences_the_older_and_initial_is_kept_once() {
    let mut broker = TestBroker::start(&["log.classes.telemetry.partitions=2"]);
    let mut client = broker.client().await;
    fill(&mut client).await;
    let unknown = client
        .act("committed", json!({"group": "g"}))
        .await
        .unwrap();
    assert_eq!(
        unknown,
        json!({"group": "g", "reader_epoch": 0, "partitions": {}})
    );
    let commit = json!({"group": "g", "reader_epoch": 5, "initial": {"3": 10}, "offsets": {"3": {"committed": 12, "scanned": 20}}});
    client.act("commit", commit).await.unwrap();
    let again = json!({"group": "g", "reader_epoch": 6, "initial": {"3": 99, "4": 1}, "offsets": {"3": {"committed": 13}}});
    let answer = client.act("commit", again).await.unwrap();
    let expected = json!({"group": "g", "reader_epoch": 6, "partitions": {
        "3": {"initial": 10, "committed": 13, "scanned": 20},
        "4": {"initial": 1, "committed": null, "scanned": null},
    }});
    assert_eq!(answer, expected);
    let old = json!({"group": "g", "reader_epoch": 5, "offsets": {"3": {"committed": 50}}});
    let refused = client.refusal("commit", old).await;
    assert_eq!(refused.code, Code::FailedPrecondition);
    assert_eq!(
        (&refused.body["error"], &refused.body["reader_epoch"]),
        (&json!("fenced"), &json!(6))
    );
    assert_eq!(
        client
            .refusal("committed", json!({"group": "g", "reader_epoch": 5}))
            .await
            .code,
        Code::FailedPrecondition
    );
    broker.restart();
    let mut client = broker.client().await;
    assert_eq!(
        client
            .act("committed", json!({"group": "g"}))
            .await
            .unwrap(),
        expected
    );
    assert_eq!(
        client.act("groups", json!({})).await.unwrap(),
        json!({"groups": [expected], "next": null})
    );
    assert_eq!(
        client
            .refusal("commit", json!({"group": "a/b", "reader_epoch": 1}))
            .await
            .body["field"],
        "group"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_of_an_earlier_place_forgets_what_was_passed_from_a_later_one() {
    let broker = TestBroker::start(&[]);
    let mut client = broker.client().await;
    fill(&mut client).await;
    for (commit, scanned) in [
        (json!({"committed": 12, "scanned": 20}), json!(20)),
        (json!({"committed": 12}), json!(20)),
        (json!({"committed": 11}), json!(null)),
        (json!({"committed": 10, "scanned": 15}), json!(15)),
    ] {
        let body = json!({"group": "g", "reader_epoch": 1, "offsets": {"3": commit}});
        let answer = client.act("commit", body).await.unwrap();
        assert_eq!(answer["partitions"]["3"]["scanned"], scanned);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_keeps_only_offsets_of_the_log() {
    let broker = TestBroker::start(&[]);
    let mut client = broker.client().await;
    fill(&mut client).await;
    let beyond = 1_000_000_000_000_000_000_u64;
    for commit in [
        json!({"offsets": {"3": {"committed": beyond}}}),
        json!({"offsets": {"3": {"committed": 1, "scanned": beyond}}}),
        json!({"initial": {"3": beyond}}),
    ] {
        let mut body = json!({"group": "g", "reader_epoch": 1});
        body.as_object_mut()
            .unwrap()
            .extend(commit.as_object().unwrap().clone());
        let refused = client.refusal("commit", body).await;
        assert_eq!(refused.code, Code::OutOfRange);
        assert_eq!(refused.body["wanted"], json!(beyond));
    }
    let unknown = json!({"group": "g", "reader_epoch": 1, "initial": {"77": 0}});
    assert_eq!(client.refusal("commit", unknown).await.code, Code::NotFound);
    assert_eq!(
        client.act("groups", json!({})).await.unwrap(),
        json!({"groups": [], "next": null})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_moves_a_group_and_fences_its_reader() {
    let mut broker = TestBroker::start(&["log.classes.telemetry.partitions=2"]);
    let mut client = broker.client().await;
    fill(&mut client).await;
    let commit = json!({"group": "g", "reader_epoch": 5, "initial": {"3": 50, "4": 60},
        "offsets": {"3": {"committed": 70, "scanned": 80}}});
    client.act("commit", commit.clone()).await.unwrap();
    let reset = json!({"group": "g", "offsets": {"3": 10}});
    let answer = client.act("reset_group", reset).await.unwrap();
    let expected = json!({"group": "g", "reader_epoch": 6, "partitions": {
        "3": {"initial": 10, "committed": 10, "scanned": null},
        "4": {"initial": 60, "committed": null, "scanned": null},
    }});
    assert_eq!(answer, expected);
    let refused = client.refusal("commit", commit).await;
    assert_eq!(refused.body["error"], "fenced");
    broker.restart();
    let mut client = broker.client().await;
    let of_group = json!({"group": "g"});
    let answer = client.act("committed", of_group).await.unwrap();
    assert_eq!(answer, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_that_cannot_be_is_refused_and_changes_nothing() {
    let broker = TestBroker::start(&["log.classes.telemetry.partitions=2"]);
    let mut client = broker.client().await;
    fill(&mut client).await;
    let commit = json!({"group": "g", "reader_epoch": 1, "initial": {"3": 50}});
    let before = client.act("commit", commit).await.unwrap();
    for (body, code, says) in [
        (
            json!({"group": "other", "offsets": {"3": 0}}),
            Code::NotFound,
            "there is no consumer group other",
        ),
        (
            json!({"group": "g", "offsets": {}}),
            Code::InvalidArgument,
            "at least one partition",
        ),
        (
            json!({"group": "g", "offsets": {"3": 0, "77": 0}}),
            Code::NotFound,
            "there is no partition 77",
        ),
        (
            json!({"group": "g", "offsets": {"3": 1_000_000}}),
            Code::OutOfRange,
            "1000000",
        ),
        (
            json!({"group": "a/b", "offsets": {"3": 0}}),
            Code::InvalidArgument,
            "group name",
        ),
    ] {
        let refused = client.refusal("reset_group", body).await;
        assert_eq!(refused.code, code);
        let message = refused.body["message"].as_str().unwrap();
        assert!(message.contains(says), "{message}");
    }
    let of_group = json!({"group": "g"});
    assert_eq!(client.act("committed", of_group).await.unwrap(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_are_limited_and_come_in_pages() {
    let broker = TestBroker::start(&["flight.max_groups=7"]);
    let mut client = broker.client().await;
    for number in 0..7 {
        let commit = json!({"group": format!("g{number}"), "reader_epoch": 1});
        client.act("commit", commit).await.unwrap();
    }
    let refused = client
        .refusal("commit", json!({"group": "g7", "reader_epoch": 1}))
        .await;
    assert_eq!(refused.code, Code::ResourceExhausted);
    let message = refused.body["message"].as_str().unwrap();
    assert!(message.contains("flight.max_groups"), "{message}");

    let (mut names, mut after) = (Vec::new(), json!(null));
    loop {
        let mut body = json!({"limit": 3});
        if !after.is_null() {
            body["after"] = after;
        }
        let page = client.act("groups", body).await.unwrap();
        let groups = page["groups"].as_array().unwrap();
        assert!(groups.len() <= 3);
        names.extend(groups.iter().map(|group| group["group"].clone()));
        after = page["next"].clone();
        if after.is_null() {
            break;
        }
    }
    assert_eq!(names, ["g0", "g1", "g2", "g3", "g4", "g5", "g6"]);
    client
        .act("remove_group", json!({"group": "g0"}))
        .await
        .unwrap();
    client
        .act("commit", json!({"group": "g7", "reader_epoch": 1}))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_version_stored_of_groups_is_brought_within_the_log() {
    let mut broker = TestBroker::start(&["log.classes.telemetry.partitions=1"]);
    let mut client = broker.client().await;
    let rows: Vec<Sent> = (0..10).map(|_| Sent::new("t", "1")).collect();
    client.produce(&rows).await.unwrap();
    let end = client.high_watermarks().await[0].1;
    broker.stop();
    {
        let config = headwater_log::LogConfig::new(broker.dir.path().join("log"));
        let (log, _) = headwater_log::Log::open(config, headwater_log::Seams::system()).unwrap();
        let state = headwater_broker::state::StateStore::open(&log, u64::MAX).unwrap();
        let mut partitions: serde_json::Map<String, serde_json::Value> = (100..50_000)
            .map(|number| (number.to_string(), json!({"committed": 1})))
            .collect();
        let beyond = 1_000_000_000_000_000_000_u64;
        partitions.insert("3".to_owned(), json!({"initial": 7, "committed": beyond}));
        let value = json!({"reader_epoch": 4, "touched_us": 1, "partitions": partitions});
        let written = state
            .put("group/old", value.to_string().as_bytes())
            .unwrap();
        assert!(state.wait_durable(written, crate::support::DEADLINE));
        log.shutdown();
    }
    broker.restart();
    let mut client = broker.client().await;
    let place = json!({"initial": 7, "committed": end, "scanned": null});
    let expected = json!({"group": "old", "reader_epoch": 4, "partitions": {"3": place}});
    assert_eq!(
        client
            .act("committed", json!({"group": "old"}))
            .await
            .unwrap(),
        expected
    );
}
