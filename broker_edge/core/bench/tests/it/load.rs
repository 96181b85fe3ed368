//! Runs the tool against the small broker. The report must match what that broker has seen.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use headwater_bench::{BenchError, EXIT_USAGE, Limit, Pace, Plan, Report, Scenario, measure};
use headwater_mqtt::Version;

use crate::small_broker::{Behaviour, SmallBroker};

fn run(plan: &Plan) -> Report {
    measure(plan, &AtomicBool::new(false)).expect("the small broker answers")
}

/// Runs the command line. Mixes are private to the crate, so the tests use them through it.
fn command(broker: &SmallBroker, words: &str) -> i32 {
    let words = format!("{words} --mqtt {} --json", broker.address);
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    headwater_bench::run(&words)
}

#[test]
fn every_message_is_sent_and_counted_once() {
    let broker = SmallBroker::start(Behaviour::default());
    let mut plan = broker.plan(Scenario::Pub);
    plan.limit = Limit::Messages(1000);
    plan.topics = 7;
    for version in [Version::V311, Version::V5] {
        plan.version = version;
        let before = broker.seen.publishes.load(Ordering::Relaxed);
        let report = run(&plan);
        let came = broker.seen.publishes.load(Ordering::Relaxed) - before;
        assert_eq!((came, report.sent, report.acked), (1000, 1000, 1000));
        assert_eq!(report.acks.count(), 1000);
        assert_eq!(report.payload_bytes, 64_000);
        assert!(!report.is_short() && report.seconds > 0.0);
    }
}

#[test]
fn publishes_without_answers_are_not_held_up() {
    let broker = SmallBroker::start(Behaviour::default());
    let began = std::time::Instant::now();
    let words = "pub -c 1 -n 2000 -w 10 -q 0";
    assert_eq!(command(&broker, words), 0);
    assert_eq!(broker.seen.publishes.load(Ordering::Relaxed), 2000);
    // 200 turns, none of which waits for an answer.
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn mixes_of_sizes_and_qos_arrive_in_their_proportions() {
    let broker = SmallBroker::start(Behaviour::default());
    let words = "pub -c 3 -n 900 --size 10:2,100:1 --qos 0:1,1:1,2:1 --protocol 5";
    assert_eq!(command(&broker, words), 0);
    assert_eq!(broker.seen.publishes.load(Ordering::Relaxed), 900);
    assert_eq!(
        broker.seen.bytes.load(Ordering::Relaxed),
        600 * 10 + 300 * 100
    );
}

#[test]
fn deliveries_are_those_of_every_subscriber() {
    for qos in ["0", "1", "2"] {
        let broker = SmallBroker::start(Behaviour::default());
        let words = format!("sub -c 4 --publishers 1 -n 120 --topics 3 -w 10 -q {qos}");
        assert_eq!(command(&broker, &words), 0, "QoS {qos}");
        let words = format!("pair -c 4 -n 120 -w 10 -q {qos} --prefix other");
        assert_eq!(command(&broker, &words), 0, "QoS {qos}");
    }
    let broker = SmallBroker::start(Behaviour::default());
    let mut plan = broker.plan(Scenario::Sub);
    plan.limit = Limit::Messages(100);
    let report = run(&plan);
    assert_eq!((report.sent, report.delivered), (100, 300));
    assert_eq!(report.deliveries.count(), 300);
}

/// Latencies of a thousand messages when the broker stalls once for this long.
fn with_a_stall(pace: Pace, stall: Duration) -> Report {
    let broker = SmallBroker::start(Behaviour {
        stall: Some((300, stall)),
        ..Behaviour::default()
    });
    let mut plan = broker.plan(Scenario::Pub);
    plan.connections = 1;
    plan.limit = Limit::Messages(1000);
    plan.pace = pace;
    run(&plan)
}

#[test]
fn a_stall_is_charged_to_every_message_that_was_due_meanwhile() {
    let stall = Duration::from_millis(400);
    // 400 of 1,000 messages are due during the stall, and wait 200 ms on average.
    let open = with_a_stall(Pace::Open { per_s: 1000.0 }, stall);
    assert_eq!(open.acked, 1000);
    assert!(open.acks.ms(0.9) >= 200.0, "p90 {} ms", open.acks.ms(0.9));
    assert!(open.acks.ms(0.99) >= 350.0, "p99 {} ms", open.acks.ms(0.99));
    assert!(
        open.seconds >= 0.999,
        "the rate is kept: {} s",
        open.seconds
    );
    // Negative control: a client that waits sends nothing during the stall, so only one message of a thousand shows it.
    let closed = with_a_stall(Pace::Closed { window: 1 }, stall);
    assert!(closed.acks.max_ms() >= 400.0);
    assert!(
        closed.acks.ms(0.9) < 200.0,
        "p90 {} ms",
        closed.acks.ms(0.9)
    );
}

#[test]
fn what_is_never_answered_is_missing_from_the_report() {
    let broker = SmallBroker::start(Behaviour {
        silent_after: Some(90),
        ..Behaviour::default()
    });
    let mut plan = broker.plan(Scenario::Pub);
    plan.limit = Limit::Messages(100);
    plan.patience = Duration::from_secs(2);
    let report = run(&plan);
    assert_eq!((report.acks_wanted, report.acked), (100, 90));
    assert!(report.is_short());
}

#[test]
fn connections_that_come_and_go_are_counted() {
    let broker = SmallBroker::start(Behaviour::default());
    let mut plan = broker.plan(Scenario::Connect);
    plan.limit = Limit::Messages(200);
    for pace in [Pace::Closed { window: 1 }, Pace::Open { per_s: 1000.0 }] {
        plan.pace = pace;
        let before = broker.seen.connects.load(Ordering::Relaxed);
        let report = run(&plan);
        let came = broker.seen.connects.load(Ordering::Relaxed) - before;
        assert_eq!((came, report.acked, report.acks.count()), (200, 200, 200));
    }
}

#[test]
fn a_broker_that_refuses_or_is_away_is_said_by_exit_code() {
    let refusing = Behaviour {
        refuses: true,
        ..Behaviour::default()
    };
    let broker = SmallBroker::start(refusing);
    for scenario in [Scenario::Pub, Scenario::Connect] {
        let refused = measure(&broker.plan(scenario), &AtomicBool::new(false));
        assert!(
            matches!(refused, Err(BenchError::Refused { .. })),
            "{refused:?}"
        );
    }
    let away = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.local_addr().expect("it is bound")
    };
    let unreachable = measure(&Plan::new(Scenario::Pub, away), &AtomicBool::new(false));
    let error = unreachable.expect_err("nobody listens");
    assert_eq!(error.exit_code(), 3, "{error}");
    assert_eq!(command(&broker, "pub --window 0"), EXIT_USAGE);
    assert_eq!(command(&broker, "sub --size 4"), EXIT_USAGE);
}

#[test]
fn an_interrupt_ends_it_with_a_report() {
    let broker = SmallBroker::start(Behaviour::default());
    let mut plan = broker.plan(Scenario::Pub);
    plan.limit = Limit::Time(Duration::from_secs(3600));
    let stop = Arc::new(AtomicBool::new(false));
    let (seen, signal) = (Arc::clone(&broker.seen), Arc::clone(&stop));
    let watcher = thread::spawn(move || {
        while seen.publishes.load(Ordering::Relaxed) < 1000 {
            thread::yield_now();
        }
        signal.store(true, Ordering::Relaxed);
    });
    let report = measure(&plan, &stop).expect("it ends");
    watcher.join().expect("it saw the messages");
    assert!(report.interrupted && report.sent >= 1000);
}
