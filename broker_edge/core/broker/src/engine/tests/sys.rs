//! `$SYS`: who gets it, when, and that none of it is in the log.

use super::*;

fn subscribe(rig: &mut Rig, key: ConnKey, filter: &str) -> Vec<(String, String, bool)> {
    let options = SubscriptionOptions::new(QoS::ExactlyOnce);
    let wanted = [Subscription { filter, options }];
    rig.feed(key, |out| {
        encode::subscribe(out, Version::V5, PacketId::FIRST, &[], &wanted);
    });
    rig.turn();
    values(rig, key)
}

/// Topic, value and retain flag of what a client was sent; all of `$SYS` must be QoS 0.
fn values(rig: &mut Rig, key: ConnKey) -> Vec<(String, String, bool)> {
    let bytes = rig.engine.out(key).to_vec();
    rig.engine.written(key, bytes.len());
    let mut rest = bytes.as_slice();
    let mut found = Vec::new();
    while let Ok(Frame::Whole {
        first_byte,
        header_len,
        total_len,
    }) = frame::next(rest, 1 << 20)
    {
        let packet = decode_from_server(Version::V5, first_byte, &rest[header_len..total_len]);
        if let Ok(ServerPacket::Publish(publish)) = packet {
            let topic = publish.topic.as_str().to_owned();
            assert!(publish.qos == QoS::AtMostOnce || topic == "t");
            let value = String::from_utf8_lossy(publish.payload).into_owned();
            found.push((topic, value, publish.retain));
        }
        rest = &rest[total_len..];
    }
    found
}

fn value<'a>(found: &'a [(String, String, bool)], topic: &str) -> &'a str {
    let topic = format!("$SYS/broker/{topic}");
    let one = found.iter().find(|(of, ..)| *of == topic);
    &one.unwrap_or_else(|| panic!("no {topic} in {found:?}")).1
}

#[test]
fn a_new_subscription_gets_every_value_as_retained_and_later_those_that_changed() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let watcher = rig.connect(ConnectFields::new(Version::V5, "watcher"));
    let busy = rig.connect(ConnectFields::new(Version::V311, "busy"));
    let all = rig.connect(ConnectFields::new(Version::V5, "all"));
    let before: Vec<Offset> = rig
        .log
        .partitions()
        .iter()
        .map(|of| of.high_watermark())
        .collect();

    assert_eq!(subscribe(&mut rig, all, "#"), []);
    let first = subscribe(&mut rig, watcher, "$SYS/#");
    assert!(first.len() > 20, "{first:?}");
    assert!(first.iter().all(|(_, _, retain)| *retain));
    assert_eq!(value(&first, "clients/connected"), "3");
    assert!(value(&first, "version").starts_with("headwater version "));
    assert_eq!(value(&first, "subscriptions/count"), "2");
    assert_eq!(value(&first, "publish/messages/received"), "0");

    rig.pass_time(9_999);
    assert_eq!(values(&mut rig, watcher), [], "not before the interval");
    rig.publish(busy, Version::V311, 1, "four");
    assert_eq!(rig.packets(busy, Version::V311, 1), ["puback 1"]);
    rig.pass_time(1);
    let changed = values(&mut rig, watcher);
    assert!(changed.iter().all(|(_, _, retain)| !retain));
    assert_eq!(value(&changed, "publish/messages/received"), "1");
    assert_eq!(value(&changed, "publish/bytes/received"), "4");
    assert_eq!(value(&changed, "uptime"), "10 seconds");
    assert_eq!(
        value(&changed, "load/publish/received/1min")
            .parse::<f64>()
            .map(|of| of > 0.0),
        Ok(true)
    );
    rig.pass_time(10_000);
    let again = values(&mut rig, watcher);
    assert!(again.iter().any(|(topic, ..)| topic.ends_with("uptime")));
    assert!(
        !again
            .iter()
            .any(|(topic, ..)| topic.ends_with("publish/bytes/received")),
        "it did not change: {again:?}"
    );
    let others = values(&mut rig, all);
    assert!(
        others.iter().all(|(topic, ..)| topic == "t"),
        "a wildcard at the first level does not reach $SYS: {others:?}"
    );
    let one = subscribe(&mut rig, all, "$SYS/broker/clients/+");
    assert_eq!(one.len(), 5, "{one:?}");
    for (partition, before) in rig.log.partitions().iter().zip(before) {
        if partition.class() != Class::Internal {
            let records = partition.high_watermark().0 - before.0;
            assert!(records <= 1, "only the publish is in the log");
        }
    }
    rig.crash();
}

#[test]
fn nobody_publishes_below_sys_and_an_interval_of_zero_turns_it_off() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let key = rig.connect(ConnectFields::new(Version::V5, "c"));
    rig.publish_to("$SYS/broker/uptime", false, key, Version::V5, 1, "forged");
    assert_eq!(rig.packets(key, Version::V5, 1), ["refused NotAuthorized"]);
    rig.engine.env.settings.sys_interval_ms = 0;
    assert_eq!(subscribe(&mut rig, key, "$SYS/#"), []);
    rig.crash();
}
