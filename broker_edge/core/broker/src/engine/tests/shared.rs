//! Shared subscriptions: each record goes to one member, and none is lost with its member.

use std::collections::BTreeSet;

use super::member::*;
use super::*;

#[test]
fn each_record_goes_to_one_member_and_they_take_turns() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut all = members(&mut rig, 3, false, 100);
    let mut older = Member::new("older", Version::V311);
    older.connect(&mut rig, false, 0);
    older.subscribe(&mut rig, QoS::AtMostOnce);
    all.push(older);
    let texts = Publisher::new(&mut rig).publish(&mut rig, 40, QoS::AtLeastOnce);
    settle_all(&mut rig, &mut all);
    for member in &all {
        assert_eq!(member.got.len(), 10, "{}", member.name);
        let numbers: Vec<u64> = member
            .got
            .iter()
            .map(|text| text.parse().expect("own"))
            .collect();
        assert!(numbers.is_sorted(), "order per member: {numbers:?}");
    }
    assert_eq!(
        sorted(all.iter().flat_map(|member| member.got.clone())),
        sorted(texts)
    );
    assert!(all[3].unacked.is_empty(), "each member has its own QoS");
    rig.crash();
}

#[test]
fn what_a_lost_member_had_goes_to_others_and_each_of_it_once() {
    for lasts in [false, true] {
        let dir = dir();
        let mut rig = Rig::open(dir.path(), SyncMode::Always);
        let mut all = members(&mut rig, 3, lasts, 100);
        let texts = Publisher::new(&mut rig).publish(&mut rig, 30, QoS::AtLeastOnce);
        settle_all(&mut rig, &mut all);
        all[0].ack(&mut rig, 4);
        let lost: BTreeSet<String> = all[0]
            .unacked
            .iter()
            .map(|owed| owed.text.clone())
            .collect();
        assert_eq!(lost.len(), 6);
        all[0].lose(&mut rig);
        settle_all(&mut rig, &mut all);
        let again: Vec<String> = all[1..]
            .iter()
            .flat_map(|member| member.got[10..].to_vec())
            .collect();
        assert_eq!(again.len(), lost.len());
        assert_eq!(again.into_iter().collect::<BTreeSet<_>>(), lost);
        assert_eq!(rig.engine.env.metrics.mqtt.shared_returned.get(), 6);
        // A persistent member that is back has nothing to be sent again.
        let mut back = Member::new("m0", V5);
        back.connect(&mut rig, lasts, 100);
        settle(&mut rig, &mut [&mut back]);
        assert_eq!(back.got, [""; 0]);
        for member in &mut all[1..] {
            member.ack(&mut rig, 100);
        }
        let acked = all.iter().flat_map(|member| member.acked.clone());
        assert_eq!(sorted(acked), sorted(texts));
        rig.crash();
    }
}

#[test]
fn qos_2_stays_with_its_member_and_is_given_up_with_its_session() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut all = members(&mut rig, 2, true, 100);
    let mut publisher = Publisher::new(&mut rig);
    publisher.publish(&mut rig, 4, QoS::ExactlyOnce);
    settle_disk(&mut rig, &mut all.iter_mut().collect::<Vec<_>>());
    let first = all[0].got.clone();
    assert_eq!((first.len(), all[1].got.len()), (2, 2));
    all[0].lose(&mut rig);
    settle_all(&mut rig, &mut all);
    assert_eq!(all[1].got.len(), 2, "MQTT-4.8.2-4: it waits for its member");
    all[0].connect(&mut rig, true, 100);
    settle_disk(&mut rig, &mut all.iter_mut().collect::<Vec<_>>());
    assert_eq!(all[0].got[2..], first, "and is completed there");
    all[0].lose(&mut rig);
    let mut fields = ConnectFields::new(V5, "m0");
    fields.clean_start = true;
    rig.connect(fields);
    all[1].ack(&mut rig, 9);
    settle_disk(&mut rig, &mut all.iter_mut().collect::<Vec<_>>());
    assert_eq!(all[1].got.len(), 2, "MQTT-4.8.2-5: nobody else gets it");
    rig.crash();
}

#[test]
fn a_slow_member_is_passed_over_and_its_records_go_to_others_in_the_end() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut all = members(&mut rig, 2, false, 5);
    let mut publisher = Publisher::new(&mut rig);
    for _ in 0..10 {
        publisher.publish(&mut rig, 4, QoS::AtLeastOnce);
        settle_all(&mut rig, &mut all);
        all[1].ack(&mut rig, 100);
        settle_all(&mut rig, &mut all);
        all[1].ack(&mut rig, 100);
    }
    settle_all(&mut rig, &mut all);
    all[1].ack(&mut rig, 100);
    assert_eq!(all[0].got.len(), 5, "no more than its window");
    assert_eq!(all[1].acked.len(), 35, "the other has the rest");
    let after = rig.engine.env.settings.mqtt.shared_redelivery_after.as_ms();
    let mut waited = 0;
    while waited <= 2 * after && all[1].got.len() < 40 {
        rig.pass_time(1000);
        waited += 1000;
        settle_all(&mut rig, &mut all);
        all[1].ack(&mut rig, 100);
    }
    assert!((after..=2 * after).contains(&waited), "{waited} ms");
    assert_eq!(sorted(all[1].acked.clone()), (0..40).collect::<Vec<_>>());
    // A late acknowledgement is accepted and has no effect.
    all[0].ack(&mut rig, 100);
    publisher.publish(&mut rig, 2, QoS::AtLeastOnce);
    settle_all(&mut rig, &mut all);
    assert_eq!(all[0].got.len() + all[1].got.len(), 47);
    assert_eq!(all[0].got.len(), 6, "it takes its turns again");
    rig.crash();
}

#[test]
fn a_crash_loses_nothing_of_a_group_of_lasting_sessions_and_repeats_nothing_checkpointed() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut all = members(&mut rig, 2, true, 100);
    let mut publisher = Publisher::new(&mut rig);
    publisher.publish(&mut rig, 20, QoS::AtLeastOnce);
    settle_all(&mut rig, &mut all);
    all[1].ack(&mut rig, 100);
    all[0].ack(&mut rig, 3);
    rig.pass_time(tick::CHECKPOINT_MS);
    settle_disk(&mut rig, &mut []);
    let checkpointed: BTreeSet<u64> = sorted(all.iter().flat_map(|member| member.acked.clone()))
        .into_iter()
        .collect();
    assert_eq!(checkpointed.len(), 13);
    all[0].ack(&mut rig, 2);
    for member in &mut all {
        member.lose(&mut rig);
    }
    // No member is connected, but the group exists.
    publisher.publish(&mut rig, 5, QoS::AtLeastOnce);
    settle_disk(&mut rig, &mut []);
    rig.crash();

    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut back = Member::new("m1", V5);
    back.connect(&mut rig, true, 100);
    settle_disk(&mut rig, &mut [&mut back]);
    let got: BTreeSet<u64> = sorted(back.got.clone()).into_iter().collect();
    assert_eq!(got.len(), back.got.len(), "nothing twice: {:?}", back.got);
    assert!(got.is_disjoint(&checkpointed), "{got:?}");
    let both: Vec<u64> = got.union(&checkpointed).copied().collect();
    assert_eq!(both, (0..25).collect::<Vec<_>>());
    rig.crash();
}

#[test]
fn qos_2_of_a_group_stays_with_its_member_through_a_crash_and_what_was_received_does_not_come_again()
 {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut all = members(&mut rig, 2, true, 100);
    let mut publisher = Publisher::new(&mut rig);
    publisher.publish(&mut rig, 8, QoS::ExactlyOnce);
    settle_disk(&mut rig, &mut all.iter_mut().collect::<Vec<_>>());
    let had: Vec<Vec<u64>> = all
        .iter()
        .map(|member| sorted(member.got.clone()))
        .collect();
    assert_eq!((had[0].len(), had[1].len()), (4, 4));
    all[0].ack(&mut rig, 3);
    settle_disk(&mut rig, &mut all.iter_mut().collect::<Vec<_>>());
    let received: BTreeSet<u64> = sorted(all[0].acked.clone()).into_iter().collect();
    rig.crash();
    let left = had[0].iter().copied().filter(|n| !received.contains(n));
    let mut expected = [left.collect::<Vec<_>>(), had[1].clone()];
    for life in 0..2 {
        let mut rig = Rig::open(dir.path(), SyncMode::Always);
        let mut back: Vec<Member> = ["m0", "m1"].map(|name| Member::new(name, V5)).into();
        for member in &mut back {
            member.connect(&mut rig, true, 100);
        }
        settle_disk(&mut rig, &mut back.iter_mut().collect::<Vec<_>>());
        for (member, expected) in back.iter().zip(&expected) {
            assert_eq!(&sorted(member.got.clone()), expected, "life {life}");
        }
        for member in &mut back {
            member.ack(&mut rig, 100);
        }
        settle_disk(&mut rig, &mut back.iter_mut().collect::<Vec<_>>());
        expected = [Vec::new(), Vec::new()];
        rig.crash();
    }
}

#[test]
fn what_a_member_has_completed_of_qos_2_does_not_come_again_after_a_crash() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut all = members(&mut rig, 1, true, 100);
    let mut publisher = Publisher::new(&mut rig);
    for _ in 0..2 {
        // The second has to be stored, together with the end of the first.
        all[0].ack(&mut rig, 1);
        settle_disk(&mut rig, &mut all.iter_mut().collect::<Vec<_>>());
        publisher.publish(&mut rig, 1, QoS::ExactlyOnce);
        settle_disk(&mut rig, &mut all.iter_mut().collect::<Vec<_>>());
    }
    assert_eq!(all[0].got, ["0", "1"]);
    rig.crash();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut back = Member::new("m0", V5);
    back.connect(&mut rig, true, 100);
    settle_disk(&mut rig, &mut [&mut back]);
    assert_eq!(back.got, ["1"]);
    rig.crash();
}

#[test]
fn a_clean_stop_repeats_nothing_of_a_group() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut all = members(&mut rig, 2, true, 100);
    Publisher::new(&mut rig).publish(&mut rig, 10, QoS::AtLeastOnce);
    settle_all(&mut rig, &mut all);
    all[0].ack(&mut rig, 2);
    all[1].ack(&mut rig, 5);
    rig.engine.close_all();
    rig.engine.store_all();
    rig.crash();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut back = Member::new("m0", V5);
    back.connect(&mut rig, true, 100);
    settle_disk(&mut rig, &mut [&mut back]);
    assert_eq!(back.got.len(), 3);
    rig.crash();
}

#[test]
fn the_group_ends_with_its_last_subscription_and_a_position_counts_only_for_a_new_one() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut publisher = Publisher::new(&mut rig);
    publisher.publish(&mut rig, 3, QoS::AtLeastOnce);
    let earliest = [
        Property::UserProperty {
            key: "stream-offset",
            value: "earliest",
        },
        Property::SubscriptionIdentifier(7),
    ];
    let mut first = Member::new("first", V5);
    first.connect(&mut rig, true, 100);
    first.subscribe_with(&mut rig, GROUP, QoS::AtLeastOnce, &earliest);
    settle(&mut rig, &mut [&mut first]);
    assert_eq!(first.got, ["0", "1", "2"]);
    assert_eq!(first.ids, [7; 3]);
    first.ack(&mut rig, 3);
    let mut second = Member::new("second", V5);
    second.connect(&mut rig, false, 100);
    second.subscribe_with(&mut rig, GROUP, QoS::AtLeastOnce, &earliest);
    settle(&mut rig, &mut [&mut first, &mut second]);
    assert_eq!(second.got, [""; 0], "the group has its place");
    second.unsubscribe(&mut rig);
    first.unsubscribe(&mut rig);
    assert_eq!(rig.engine.groups.len(), 0);
    rig.pass_time(tick::CHECKPOINT_MS);
    settle_disk(&mut rig, &mut []);
    let mut kept = Vec::new();
    rig.state
        .for_each_prefix("share/", |key, _| kept.push(key.to_owned()));
    assert_eq!(kept, [""; 0], "the cursor went with the group");
    publisher.publish(&mut rig, 1, QoS::AtLeastOnce);
    second.subscribe(&mut rig, QoS::AtLeastOnce);
    settle(&mut rig, &mut [&mut first, &mut second]);
    assert_eq!(second.got, [""; 0], "a new group begins now");
    rig.crash();
}

#[test]
fn a_member_that_unsubscribes_keeps_what_it_has_until_its_connection_ends() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut all = members(&mut rig, 2, false, 100);
    let mut publisher = Publisher::new(&mut rig);
    publisher.publish(&mut rig, 10, QoS::AtLeastOnce);
    settle_all(&mut rig, &mut all);
    all[0].unsubscribe(&mut rig);
    publisher.publish(&mut rig, 2, QoS::AtLeastOnce);
    settle_all(&mut rig, &mut all);
    assert_eq!((all[0].got.len(), all[1].got.len()), (5, 7));
    all[0].ack(&mut rig, 2);
    all[0].lose(&mut rig);
    settle_all(&mut rig, &mut all);
    assert_eq!(
        all[1].got.len(),
        10,
        "the three that it had not acknowledged"
    );
    rig.crash();
}

#[test]
fn a_member_that_subscribes_again_gets_what_comes_after_a_time_with_nobody() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let (mut away, mut back) = (Member::new("away", V5), Member::new("back", V5));
    for member in [&mut away, &mut back] {
        member.connect(&mut rig, true, 10);
        member.subscribe(&mut rig, QoS::AtLeastOnce);
    }
    away.lose(&mut rig);
    let mut publisher = Publisher::new(&mut rig);
    let mut published = publisher.publish(&mut rig, 1, QoS::AtLeastOnce);
    settle(&mut rig, &mut [&mut back]);
    assert_eq!(back.got, published);
    // Its unacknowledged deliveries keep it known to the group.
    back.unsubscribe(&mut rig);
    for _ in 0..2 {
        published.extend(publisher.publish(&mut rig, 1, QoS::AtLeastOnce));
        settle(&mut rig, &mut [&mut back]);
    }
    back.subscribe(&mut rig, QoS::AtLeastOnce);
    for _ in 0..2 {
        published.extend(publisher.publish(&mut rig, 1, QoS::AtLeastOnce));
        settle(&mut rig, &mut [&mut back]);
    }
    assert_eq!(back.got, published);
    rig.crash();
}

#[test]
fn shared_and_plain_subscriptions_of_a_session_each_deliver() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut one = Member::new("one", V5);
    one.connect(&mut rig, false, 100);
    for filter in ["t", GROUP, GROUP, "$share/other/+", "$share/g/#"] {
        one.subscribe_with(&mut rig, filter, QoS::AtLeastOnce, &[]);
    }
    assert_eq!(rig.engine.groups.len(), 3);
    Publisher::new(&mut rig).publish(&mut rig, 2, QoS::AtLeastOnce);
    settle(&mut rig, &mut [&mut one]);
    assert_eq!(sorted(one.got.clone()), [0, 0, 0, 0, 1, 1, 1, 1]);
    rig.crash();
}

#[test]
fn what_is_too_large_for_one_member_goes_to_another_and_else_is_counted() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let small = [Property::MaximumPacketSize(30)];
    let mut fields = ConnectFields::new(V5, "small");
    fields.properties = &small;
    let mut tight = Member::new("small", V5);
    tight.key = Some(rig.connect(fields));
    tight.subscribe(&mut rig, QoS::AtLeastOnce);
    let mut wide = Member::new("wide", V5);
    wide.connect(&mut rig, false, 100);
    wide.subscribe(&mut rig, QoS::AtLeastOnce);
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    let long = "x".repeat(40);
    for id in 1..=2 {
        rig.publish(publisher, V5, id, &long);
    }
    rig.packets(publisher, V5, 2);
    settle(&mut rig, &mut [&mut tight, &mut wide]);
    assert_eq!((tight.got.len(), wide.got.len()), (0, 2));
    wide.lose(&mut rig);
    settle(&mut rig, &mut [&mut tight]);
    assert_eq!(tight.got.len(), 0);
    assert_eq!(rig.engine.env.metrics.mqtt.deliveries_dropped.get(), 2);
    rig.crash();
}

#[test]
fn i7_a_group_waits_at_its_bound_of_outstanding_records_and_goes_on_behind_it() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    rig.engine.env.settings.mqtt.max_inflight = u16::MAX;
    rig.engine.env.settings.mqtt.out_buffer_bytes = ByteSize(64 << 20);
    let mut all = members(&mut rig, 4, false, u16::MAX);
    let mut publisher = Publisher::new(&mut rig);
    for _ in 0..110 {
        publisher.publish(&mut rig, 1000, QoS::AtLeastOnce);
        settle_all(&mut rig, &mut all);
    }
    let id = rig.engine.groups.by_name(GROUP).expect("it is there");
    assert_eq!(
        rig.engine.groups.get(id).expect("it is there").pending(),
        100_000
    );
    let values = lend!(rig.engine => Checkpointing).group_values(&[id]);
    let (_, value) = values.into_iter().next().expect("it is there");
    let value = value.len();
    assert!(value < 64 << 10, "the stored cursor has {value} bytes");
    for _ in 0..2 {
        for member in &mut all {
            member.ack(&mut rig, usize::MAX);
        }
        settle_all(&mut rig, &mut all);
    }
    let acked = all.iter().flat_map(|member| member.acked.clone());
    assert_eq!(sorted(acked), (0..110_000).collect::<Vec<_>>());
    rig.crash();
}
