//! What the console is told of the files of the log: segments, which of them go next, and what is kept aside.

use std::fs;

use serde_json::{Value, json};

use super::console::{get, refused};
use crate::auth::{basic, line, write};
use crate::common::http::{ask, status};
use crate::common::{start, start_with};
use crate::support::{Sent, TestBroker};

const ROW_BYTES: usize = 50_000;
const HOST: &str = "Host: localhost";

fn rows(count: usize) -> Vec<Sent> {
    let row = || Sent::new("devices/d/telemetry", vec![1; ROW_BYTES]);
    (0..count).map(|_| row()).collect()
}

fn partition<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let partitions = answer["partitions"].as_array().expect("a list");
    let mut named = partitions.iter().filter(|one| one["name"] == name);
    named.next().expect("it is told")
}

fn bases(answer: &Value) -> Vec<(String, u64)> {
    let segments = answer["segments"].as_array().expect("a list").iter();
    let place = |row: &Value| {
        let name = row["name"].as_str().expect("a name").to_owned();
        (name, row["base"].as_u64().expect("an offset"))
    };
    segments.map(place).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn segments_are_told_page_by_page_with_bounds_and_times() {
    let broker = TestBroker::start(&[
        "log.segment_bytes=1MiB",
        "log.classes.telemetry.partitions=2",
        "log.classes.telemetry.retention.age=1h",
        "log.classes.telemetry.retention.bytes=100TiB",
        "log.classes.telemetry.retention.hard_bytes=200TiB",
    ]);
    let mut client = broker.client().await;
    for _ in 0..10 {
        client.produce(&rows(10)).await.expect("they are taken");
    }
    let admin = broker.broker().admin_address();
    let all = get(admin, "/api/v1/segments");
    assert_eq!(all["next"], Value::Null);
    let places = bases(&all);
    let busy = places.iter().max_by_key(|(_, base)| *base).expect("some");
    let name = busy.0.clone();
    let own = get(admin, &format!("/api/v1/segments?partition={name}"));
    let segments = own["segments"].as_array().expect("a list");
    assert!(segments.len() > 3, "{own}");
    for pair in segments.windows(2) {
        assert_eq!(pair[0]["next"], pair[1]["base"]);
        assert_eq!(pair[0]["state"], "sealed");
        assert!(pair[0]["bytes"].as_u64() > Some(500_000));
        assert!(pair[0]["last_us"].as_i64() >= pair[0]["first_us"].as_i64());
        assert!(pair[1]["first_us"].as_i64() >= pair[0]["last_us"].as_i64());
    }
    let active = segments.last().expect("an active one");
    assert_eq!(active["state"], "active");
    assert_eq!(active["index"], "growing");
    let row = partition(&own, &name);
    assert_eq!(active["next"], row["high_watermark"]);
    assert!(active["last_us"].as_i64() >= active["first_us"].as_i64());
    assert_eq!(row["segments"], segments.len());
    assert_eq!(row["retention"]["age_s"], 3600);
    assert_eq!(row["goes_next"]["rule"], "age");
    assert_eq!(row["goes_next"]["base"], 0);
    let in_s = row["goes_next"]["in_s"].as_f64().expect("a time");
    assert!((3_000.0..=3_600.0).contains(&in_s), "{in_s}");
    assert_eq!(own["partitions"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        bases(&get(
            admin,
            &format!("/api/v1/segments?partition={}", row["partition"])
        )),
        bases(&own)
    );

    // The same, in pages of two.
    let mut paged = Vec::new();
    let mut path = "/api/v1/segments?limit=2".to_owned();
    loop {
        let page = get(admin, &path);
        assert!(bases(&page).len() <= 2);
        assert_eq!(page.get("partitions").is_some(), paged.is_empty());
        paged.extend(bases(&page));
        let Some(next) = page["next"].as_str() else {
            break;
        };
        path = format!("/api/v1/segments?limit=2&after={next}");
    }
    assert_eq!(paged, places);
    let past = format!(
        "/api/v1/segments?partition={name}&after={name}:{}",
        u64::MAX
    );
    assert_eq!(get(admin, &past), json!({"segments": [], "next": null}));
    for (query, code, needed) in [
        ("limit=0", 400, "write 1 to 1000"),
        ("limit=1001", 400, "write 1 to 1000"),
        ("partition=nothing-9", 404, "nothing-9"),
        ("after=telemetry-0", 400, "telemetry-0:4711"),
        ("after=telemetry-0:-1", 400, "telemetry-0:4711"),
        ("after=nothing-9:1", 404, "nothing-9"),
        ("segment=1", 400, "segment"),
    ] {
        let sentence = refused(admin, &format!("/api/v1/segments?{query}"), code);
        assert!(sentence.contains(needed), "{query}: {sentence}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_behind_is_named_as_what_keeps_the_oldest_segment() {
    let broker = TestBroker::start(&[
        "log.segment_bytes=1MiB",
        "log.classes.telemetry.partitions=1",
        "log.classes.telemetry.retention.bytes=1GiB",
        "log.classes.telemetry.retention.hard_bytes=2GiB",
        "log.classes.telemetry.retention.age=",
        "log.classes.telemetry.retention.hold_for_groups=true",
    ]);
    let mut client = broker.client().await;
    for _ in 0..6 {
        client.produce(&rows(10)).await.expect("they are taken");
    }
    let admin = broker.broker().admin_address();
    let next = || {
        let told = get(admin, "/api/v1/segments?partition=telemetry-0&limit=1");
        partition(&told, "telemetry-0")["goes_next"].clone()
    };
    assert_eq!(next()["rule"], "bytes", "{}", next());
    let number = get(admin, "/api/v1/topics?contains=devices/d")["topics"][0]["partition"].clone();
    let commit = json!({"group": "slow", "reader_epoch": 1, "offsets": {number.to_string(): {"committed": 1}}});
    client.act("commit", commit).await.expect("it is taken");
    assert_eq!(next()["held_by"], json!(["slow"]));
    assert_eq!(next()["rule"], "hard_bytes");
    let told = get(admin, "/api/v1/segments?partition=control-0");
    let control = partition(&told, "control-0");
    assert_eq!(
        control["goes_next"],
        Value::Null,
        "an active segment stays: {control}"
    );
}

#[test]
fn files_that_are_kept_aside_are_told_the_largest_first() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path());
    let admin = broker.admin_address();
    let kept = || {
        let told = get(admin, "/api/v1/segments?partition=telemetry-0");
        partition(&told, "telemetry-0").clone()
    };
    assert_eq!(kept()["kept_files"], json!([]));
    let folder = dir.path().join("telemetry-0");
    for number in 0..101_usize {
        let name = format!("{number:020}.1.torn");
        fs::write(folder.join(name), vec![0; 10 + number]).expect("a file");
    }
    let row = kept();
    let files = row["kept_files"].as_array().expect("a list");
    assert_eq!((files.len(), &row["kept_files_left_out"]), (100, &json!(1)));
    assert_eq!(
        files[0],
        json!({"name": format!("{:020}.1.torn", 100), "bytes": 110})
    );
    broker.shutdown();
}

#[test]
fn who_may_neither_look_nor_act_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    write(
        dir.path(),
        "users",
        &["root", "eye", "writer"].map(line).concat(),
    );
    write(
        dir.path(),
        "acl",
        "user root\noperator\nuser eye\nviewer\nuser writer\ntopic write #\n",
    );
    let broker = start_with(&dir.path().join("log"), |config| {
        config.auth.password_file = Some(dir.path().join("users"));
        config.auth.acl_file = Some(dir.path().join("acl"));
    });
    let admin = broker.admin_address();
    for (user, code) in [("root", 200), ("eye", 200), ("writer", 403)] {
        let shown = format!("Authorization: {}", basic(user));
        let answer = ask(admin, "GET /api/v1/segments", &[HOST, &shown]);
        assert_eq!(status(&answer), code, "{user}: {answer}");
    }
    assert_eq!(status(&ask(admin, "GET /api/v1/segments", &[HOST])), 401);
    broker.shutdown();
}
