//! Delayed wills: published once, when they are due, also after a restart.

use headwater_mqtt::encode::WillFields;

use super::*;

const V5: Version = Version::V5;

fn connect(rig: &mut Rig, client_id: &str, delay_s: u32, text: &str) -> ConnKey {
    connect_to(rig, client_id, delay_s, "t", text)
}

fn connect_to(rig: &mut Rig, client_id: &str, delay_s: u32, topic: &str, text: &str) -> ConnKey {
    let session = [Property::SessionExpiryInterval(600)];
    let delay = [Property::WillDelayInterval(delay_s)];
    let mut fields = ConnectFields::new(V5, client_id);
    fields.clean_start = false;
    fields.properties = &session;
    fields.will = Some(WillFields {
        topic,
        payload: text.as_bytes(),
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: &delay,
    });
    rig.connect(fields)
}

fn watcher(rig: &mut Rig) -> ConnKey {
    let key = rig.connect(ConnectFields::new(V5, "watcher"));
    rig.subscribe(key, V5);
    key
}

/// What the watcher gets until the disk is idle.
fn seen(rig: &mut Rig, watcher: ConnKey) -> Vec<String> {
    let mut seen = Vec::new();
    loop {
        let quiet_at = rig.quiet_at();
        rig.turn();
        seen.extend(rig.sent(watcher, V5));
        let is_done = !rig.engine.has_more() && !rig.engine.is_behind_log();
        if is_done && quiet_at.is_some() && quiet_at == rig.quiet_at() {
            return seen;
        }
        if is_done {
            rig.wait_for_disk();
        }
    }
}

fn stored(rig: &Rig) -> usize {
    let mut count = 0;
    rig.state.for_each_prefix("will/", |_, _| count += 1);
    count
}

#[test]
fn a_waiting_will_outlives_the_broker_and_is_published_once() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let client = connect(&mut rig, "c", 60, "gone");
    rig.engine.remove(client);
    let mut eye = watcher(&mut rig);
    assert_eq!(seen(&mut rig, eye), [""; 0]);
    let begun = rig.now;
    rig.crash();
    for life in 0..3 {
        let mut rig = Rig::open(dir.path(), SyncMode::Always);
        rig.now.wall_us = begun.wall_us + 30_000_000;
        eye = watcher(&mut rig);
        rig.pass_time(29_000);
        assert_eq!(seen(&mut rig, eye), [""; 0], "life {life}: it is not due");
        rig.pass_time(31_000);
        let expected: &[&str] = if life == 0 { &["publish gone"] } else { &[] };
        assert_eq!(seen(&mut rig, eye), expected, "life {life}");
        if life == 0 {
            // The crash comes before the broker knows that the will need not be kept.
            assert_eq!(stored(&rig), 1);
        }
        rig.crash();
    }
}

#[test]
fn a_client_that_is_back_takes_its_will_with_it_also_after_a_crash() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let client = connect(&mut rig, "c", 60, "first");
    rig.engine.remove(client);
    let eye = watcher(&mut rig);
    seen(&mut rig, eye);
    rig.crash();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let client = connect(&mut rig, "c", 5, "second");
    assert_eq!(stored(&rig), 0, "the CONNACK waited for that");
    rig.engine.remove(client);
    let eye = watcher(&mut rig);
    rig.pass_time(6_000);
    assert_eq!(seen(&mut rig, eye), ["publish second"]);
    rig.pass_time(60_000);
    assert_eq!(seen(&mut rig, eye), [""; 0]);
    assert_eq!(stored(&rig), 0);
    rig.crash();
}

#[test]
fn every_due_will_of_many_clients_that_die_together_comes_exactly_once() {
    let count = 2000;
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let clients: Vec<ConnKey> = (0..count)
        .map(|n| connect(&mut rig, &format!("c{n}"), 10, &n.to_string()))
        .collect();
    for client in clients {
        rig.engine.remove(client);
    }
    let eye = watcher(&mut rig);
    seen(&mut rig, eye);
    let begun = rig.now;
    assert_eq!(stored(&rig), count);
    rig.crash();

    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    rig.now.wall_us = begun.wall_us + 11_000_000;
    let fields = ConnectFields::new(V5, "watcher");
    rig.engine.env.settings.mqtt.max_inflight = u16::MAX;
    rig.engine.env.settings.mqtt.out_buffer_bytes = ByteSize(64 << 20);
    let eye = rig.connect(fields);
    rig.subscribe(eye, V5);
    rig.pass_time(1000);
    rig.pass_time(11_000);
    let mut texts: Vec<u32> = seen(&mut rig, eye)
        .iter()
        .map(|text| text["publish ".len()..].parse().expect("a number"))
        .collect();
    texts.sort_unstable();
    assert_eq!(texts, (0..count as u32).collect::<Vec<_>>());
    rig.pass_time(tick::CHECKPOINT_MS);
    seen(&mut rig, eye);
    assert_eq!(stored(&rig), 0);
    rig.crash();
}

#[test]
fn the_will_of_a_session_that_ends_is_due_at_once_and_a_clean_stop_lets_the_others_wait() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let client = connect(&mut rig, "ends", 60, "over");
    rig.engine.remove(client);
    let eye = watcher(&mut rig);
    rig.connect(ConnectFields::new(V5, "ends"));
    assert_eq!(seen(&mut rig, eye), ["publish over"]);
    connect(&mut rig, "waits", 60, "later");
    rig.engine.close_all();
    rig.engine.commit();
    rig.engine.store_all();
    let begun = rig.now;
    rig.crash();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    rig.now.wall_us = begun.wall_us;
    let eye = watcher(&mut rig);
    assert_eq!(seen(&mut rig, eye), [""; 0]);
    rig.pass_time(61_000);
    assert_eq!(seen(&mut rig, eye), ["publish later"]);
    rig.crash();
}

#[test]
fn a_broker_that_is_killed_publishes_no_will_of_a_client_that_was_connected() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    connect(&mut rig, "now", 0, "now");
    connect(&mut rig, "later", 5, "later");
    let lost = connect(&mut rig, "lost", 5, "waits");
    rig.engine.remove(lost);
    let eye = watcher(&mut rig);
    seen(&mut rig, eye);
    let begun = rig.now;
    rig.crash();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    rig.now.wall_us = begun.wall_us;
    let eye = watcher(&mut rig);
    rig.pass_time(6_000);
    assert_eq!(
        seen(&mut rig, eye),
        ["publish waits"],
        "only what was waiting"
    );
    rig.crash();
}

#[test]
fn a_waiting_will_says_nothing_in_the_name_of_the_broker_and_nothing_that_a_publish_may_not() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let deep = "a/".repeat(usize::from(rig.engine.env.settings.mqtt.max_topic_levels)) + "b";
    let eye = rig.connect(ConnectFields::new(V5, "watcher"));
    let options = SubscriptionOptions::new(QoS::AtLeastOnce);
    let all = ["$receipts", "$gaps", "#"].map(|filter| Subscription { filter, options });
    rig.feed(eye, |out| {
        encode::subscribe(out, V5, PacketId::FIRST, &[], &all);
    });
    assert_eq!(rig.packets(eye, V5, 1), ["suback"]);
    for (number, topic) in ["$receipts", "$gaps", &deep].into_iter().enumerate() {
        let client = connect_to(&mut rig, &format!("c{number}"), 5, topic, "forged");
        rig.engine.remove(client);
    }
    let honest = connect_to(&mut rig, "honest", 5, "t", "gone");
    rig.engine.remove(honest);
    rig.pass_time(6_000);
    assert_eq!(seen(&mut rig, eye), ["publish gone"]);
    rig.crash();
    // A will stored by an earlier version is not published either.
    let rig = Rig::open(dir.path(), SyncMode::Always);
    let stored = r#"{"due_us":5,"token":"will/1/5","topic":"$receipts","qos":1,"properties":"","payload":"78"}"#;
    let value = crate::state::Change {
        key: "will/left",
        value: Some(stored.as_bytes()),
    };
    rig.state.write(&[value]).expect("a small value");
    rig.crash();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let next = |rig: &Rig| -> u64 {
        let data = rig.log.partitions();
        let data = data
            .iter()
            .filter(|partition| partition.class() != headwater_log::Class::Internal);
        data.map(|partition| partition.next_offset().0).sum()
    };
    let before = next(&rig);
    rig.pass_time(1000);
    assert_eq!(
        (before, next(&rig)),
        (1, 1),
        "only the honest will is there"
    );
    rig.crash();
}
