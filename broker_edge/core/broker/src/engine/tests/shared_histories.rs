//! Shared groups through any history: members join, leave and are lost, the broker is killed, and no record is lost.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config as RunnerConfig, TestRunner};

use super::member::*;
use super::*;

#[derive(Debug, Clone)]
enum Event {
    Publish(usize),
    Join(usize, bool),
    Leave(usize),
    Lose(usize),
    Ack(usize, usize),
    Pass(u64),
    Kill,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let member = 0usize..4;
    let event = prop_oneof![
        4 => (1usize..6).prop_map(Event::Publish),
        3 => (member.clone(), any::<bool>()).prop_map(|(n, lasts)| Event::Join(n, lasts)),
        1 => member.clone().prop_map(Event::Leave),
        2 => member.clone().prop_map(Event::Lose),
        4 => (member, 1usize..8).prop_map(|(n, count)| Event::Ack(n, count)),
        1 => (500u64..40_000).prop_map(Event::Pass),
        1 => Just(Event::Kill),
    ];
    prop::collection::vec(event, 1..40)
}

/// Plays events beside a persistent member, so that the group never ends, and checks the fate of each record.
fn nothing_is_lost(events: &[Event], may_disconnect: bool) {
    let root = dir();
    let mut rig = Rig::open_with(world::small(root.path()));
    let mut keeper = Member::new("keeper", V5);
    keeper.connect(&mut rig, true, 3);
    keeper.subscribe(&mut rig, QoS::AtLeastOnce);
    let mut all: Vec<Member> = (0..4).map(|n| Member::new(&format!("m{n}"), V5)).collect();
    let mut publisher = Publisher::new(&mut rig);
    let mut published: Vec<String> = Vec::new();
    let mut kills = 0;
    for event in events {
        match event {
            Event::Publish(count) => {
                published.extend(publisher.publish(&mut rig, *count, QoS::AtLeastOnce));
            }
            Event::Join(n, lasts) if all[*n].key.is_none() => {
                all[*n].connect(&mut rig, *lasts, 4);
                all[*n].subscribe(&mut rig, QoS::AtLeastOnce);
            }
            Event::Leave(n) if may_disconnect && all[*n].key.is_some() => {
                all[*n].unsubscribe(&mut rig);
                all[*n].lose(&mut rig);
            }
            Event::Lose(n) if may_disconnect => all[*n].lose(&mut rig),
            Event::Ack(n, count) if all[*n].key.is_some() => all[*n].ack(&mut rig, *count),
            Event::Pass(ms) if may_disconnect => rig.pass_time(*ms),
            Event::Kill if may_disconnect && kills < 3 => {
                kills += 1;
                rig.crash();
                rig = Rig::open_with(world::small(root.path()));
                let sent = publisher.sent;
                publisher = Publisher::new(&mut rig);
                publisher.sent = sent;
                for member in all.iter_mut().chain([&mut keeper]) {
                    member.key = None;
                }
                keeper.connect(&mut rig, true, 3);
            }
            _ => {}
        }
        settle_all(&mut rig, &mut all);
        keeper.take(&mut rig);
        keeper.ack(&mut rig, 1);
    }
    for member in &mut all {
        if member.key.is_none() {
            member.connect(&mut rig, true, 4);
            member.subscribe(&mut rig, QoS::AtLeastOnce);
        }
    }
    let mut busy = true;
    while busy {
        settle_all(&mut rig, &mut all);
        let before =
            all.iter().map(|member| member.acked.len()).sum::<usize>() + keeper.acked.len();
        for member in all.iter_mut().chain([&mut keeper]) {
            member.ack(&mut rig, usize::MAX);
        }
        let after = all.iter().map(|member| member.acked.len()).sum::<usize>() + keeper.acked.len();
        busy = after > before || rig.engine.has_more();
    }
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for text in all.iter().chain([&keeper]).flat_map(|member| &member.acked) {
        *times.entry(text.clone()).or_default() += 1;
    }
    for text in &published {
        let count = times.get(text).copied().unwrap_or(0);
        assert!(count > 0, "{text} is lost: {events:?}");
        assert!(
            may_disconnect || count == 1,
            "{text} came {count} times without a reason: {events:?}"
        );
    }
    let id = rig
        .engine
        .groups
        .by_name(GROUP)
        .expect("the keeper is in it");
    assert_eq!(rig.engine.groups.get(id).expect("it is there").pending(), 0);
    rig.crash();
}

#[test]
fn whoever_comes_and_goes_every_record_is_acknowledged_by_somebody() {
    let config = RunnerConfig {
        cases: 24,
        failure_persistence: None,
        ..RunnerConfig::default()
    };
    let mut runner = TestRunner::new(config.clone());
    runner
        .run(&events(), |events| {
            nothing_is_lost(&events, true);
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
    let mut runner = TestRunner::new(config);
    runner
        .run(&events(), |events| {
            nothing_is_lost(&events, false);
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}
