//! Plans: what they count, and that they use up their limits.

use proptest::prelude::*;
use proptest::test_runner::{Config as ProptestConfig, TestRunner};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{FILTERS, filled, matches, whole_log};
use crate::support::{Row, Sent, TestBroker};

/// A plan, compared with the whole log.
fn check_plan(
    plan: &Value,
    log: &[(u32, Vec<Row>)],
    from: &[u64],
    filters: Option<&[&str]>,
    max_records: Option<u64>,
    max_bytes: Option<u64>,
) -> Result<(), TestCaseError> {
    let (mut records, mut bytes, mut waiting, mut waiting_bytes) = (0, 0, 0, 0);
    for ((partition, rows), from) in log.iter().zip(from) {
        let row = &plan["partitions"][partition.to_string()];
        let number = |name: &str| row[name].as_u64().unwrap();
        let (end, scanned) = (number("end"), number("scanned"));
        let found: Vec<&Row> = rows
            .iter()
            .filter(|row| row.offset >= *from && matches(filters, &row.topic))
            .collect();
        let taken: Vec<&&Row> = found.iter().filter(|row| row.offset < end).collect();
        prop_assert!(*from <= end && end <= scanned && scanned <= rows.len() as u64);
        prop_assert_eq!(number("records"), taken.len() as u64);
        prop_assert_eq!(
            end,
            taken.last().map_or(*from, |row| row.offset + 1),
            "one past the last matching record"
        );
        prop_assert!(
            found
                .iter()
                .all(|row| row.offset < end || row.offset >= scanned),
            "none matches up to scanned"
        );
        if filters.is_some() || max_bytes.is_some() {
            prop_assert_eq!(
                number("bytes"),
                taken.iter().map(|row| row.value.len() as u64).sum::<u64>()
            );
        }
        let epoch = end
            .checked_sub(1)
            .map(|before| rows[usize::try_from(before).unwrap()].epoch);
        prop_assert_eq!(row["epoch"].as_i64(), epoch);
        prop_assert_eq!(number("high_watermark"), rows.len() as u64);
        records += taken.len() as u64;
        bytes += taken.iter().map(|row| row.value.len() as u64).sum::<u64>();
        waiting += found.len() as u64;
        waiting_bytes += found.iter().map(|row| row.value.len() as u64).sum::<u64>();
    }
    prop_assert!(records <= max_records.unwrap_or(u64::MAX));
    prop_assert!(bytes <= max_bytes.unwrap_or(u64::MAX) || records == 1);
    prop_assert!(
        records > 0 || waiting == 0,
        "one record always gets through"
    );
    if waiting_bytes <= max_bytes.unwrap_or(u64::MAX) {
        prop_assert_eq!(
            records,
            waiting.min(max_records.unwrap_or(u64::MAX)),
            "limits are used up"
        );
    }
    Ok(())
}

#[test]
fn a_plan_counts_exactly_and_uses_its_limits_up() {
    let runtime = Runtime::new().unwrap();
    let (_broker, client) = runtime.block_on(filled(3_000));
    let client = std::cell::RefCell::new(client);
    let log = runtime.block_on(whole_log(&mut client.borrow_mut()));
    assert!(log.len() > 1, "limits are shared over partitions");
    let limit = prop_oneof![
        Just(None),
        (1..40u64).prop_map(Some),
        (40..4_000u64).prop_map(Some)
    ];
    let bytes = prop_oneof![
        Just(None),
        (1..2_000u64).prop_map(Some),
        (2_000..900_000u64).prop_map(Some)
    ];
    let strategy = (
        proptest::collection::vec(0.0..1.0f64, log.len()),
        0..FILTERS.len(),
        limit,
        bytes,
    );
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 96,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let checked = runner.run(&strategy, |(shares, filters, max_records, max_bytes)| {
        let from: Vec<u64> = log.iter().zip(&shares).map(|((_, rows), share)| (rows.len() as f64 * share) as u64).collect();
        let starts: serde_json::Map<String, Value> =
            log.iter().zip(&from).map(|((partition, _), from)| (partition.to_string(), json!(from))).collect();
        let filters = FILTERS[filters];
        let body = json!({"from": starts, "filters": filters, "max_records": max_records, "max_bytes": max_bytes});
        let plan = runtime.block_on(client.borrow_mut().act("plan", body)).unwrap();
        check_plan(&plan, &log, &from, filters, max_records, max_bytes)
    });
    checked.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_plan_is_the_same_whether_it_lists_topics_or_reads_records() {
    let broker = TestBroker::start(&["log.classes.telemetry.partitions=1"]);
    let mut client = broker.client().await;
    let one = Sent::new("devices/d1/telemetry", "21.5");
    let some = vec![one; 10_000];
    for _ in 0..7 {
        client.produce(&some).await.unwrap();
    }
    let partition = client
        .high_watermarks()
        .await
        .into_iter()
        .find(|(_, end)| *end > 0)
        .unwrap()
        .0
        .to_string();
    // A limit on bytes means that records are read.
    for (others, max_records, end) in [
        (0, 66_000, 66_000),
        (0, 80_000, 70_000),
        (5, 80_000, 70_000),
    ] {
        let other = Sent::new("devices/d2/telemetry", "0");
        if others > 0 {
            client.produce(&vec![other; others]).await.unwrap();
        }
        for max_bytes in [Value::Null, json!(1_u64 << 40)] {
            let body = json!({
                "from": {&partition: 0},
                "filters": ["devices/d1/+"],
                "max_records": max_records,
                "max_bytes": max_bytes,
            });
            let plan = client.act("plan", body).await.unwrap();
            let row = &plan["partitions"][&partition];
            assert_eq!(
                (&row["end"], &row["records"]),
                (&json!(end), &json!(end)),
                "{others} others, {max_bytes}"
            );
        }
    }
}
