//! What clients can make the broker keep permanently: persistent sessions, retained messages, filters.

use super::*;

fn lasting(version: Version, client_id: &str) -> ConnectFields<'_> {
    let mut fields = ConnectFields::new(version, client_id);
    fields.clean_start = false;
    fields
}

#[test]
fn i7_one_lasting_session_too_many_is_refused_with_the_code_of_the_version() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    rig.engine.env.settings.mqtt.max_sessions = 1;
    let first = rig.connect(lasting(Version::V311, "first"));
    rig.engine.remove(first);
    rig.connect(lasting(Version::V311, "first"));
    rig.connect(ConnectFields::new(Version::V311, "passing"));
    let expiry = [Property::SessionExpiryInterval(60)];
    for (version, code) in [(Version::V5, 0x97), (Version::V311, 3)] {
        let mut fields = lasting(version, "second");
        if version.is_v5() {
            fields.properties = &expiry;
        }
        let key = rig.engine.open(crate::peer::Peer::nobody());
        rig.feed(key, |out| encode::connect(out, &fields));
        rig.turn();
        let connack = rig.engine.out(key).to_vec();
        assert_eq!(connack[3], code, "{connack:?}");
    }
    assert_eq!(rig.engine.env.metrics.mqtt.sessions_refused.get(), 2);
    rig.crash();
    // The sessions in the log count after a restart.
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    assert_eq!(rig.engine.quotas.stored_sessions(), 1);
    // A removed session makes room.
    rig.engine.env.settings.mqtt.max_sessions = 1;
    rig.connect(ConnectFields::new(Version::V311, "first"));
    rig.connect(lasting(Version::V311, "second"));
    rig.crash();
}

#[test]
fn i7_one_retained_topic_too_many_is_refused_and_an_old_one_can_change() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    rig.engine.retained.lock().limit(1, 1 << 20);
    let new = rig.connect(ConnectFields::new(Version::V5, "new"));
    let old = rig.connect(ConnectFields::new(Version::V311, "old"));
    rig.publish_to("a", true, new, Version::V5, 1, "1");
    assert_eq!(rig.packets(new, Version::V5, 1), ["puback 1"]);
    rig.publish_to("b", true, new, Version::V5, 2, "2");
    assert_eq!(rig.packets(new, Version::V5, 1), ["refused QuotaExceeded"]);
    rig.publish_to("a", true, new, Version::V5, 3, "3");
    assert_eq!(rig.packets(new, Version::V5, 1), ["puback 3"]);
    rig.publish_to("b", true, old, Version::V311, 1, "4");
    rig.turn();
    assert!(
        rig.engine.take_closed().contains(&old),
        "older versions cannot be told"
    );
    rig.publish_to("a", true, new, Version::V5, 4, "");
    rig.publish_to("c", true, new, Version::V5, 5, "x");
    let answers = rig.packets(new, Version::V5, 2);
    assert_eq!(answers[0], "puback 4");
    assert_eq!(
        rig.engine.env.metrics.mqtt.retained_refused.get(),
        3,
        "{answers:?}"
    );
    rig.publish_to("c", true, new, Version::V5, 6, "now there is room");
    assert_eq!(rig.packets(new, Version::V5, 1), ["puback 6"]);
    rig.engine.retained.lock().limit(9, 20);
    rig.publish_to(
        "d",
        true,
        new,
        Version::V5,
        7,
        "it has more than twenty bytes",
    );
    assert_eq!(rig.packets(new, Version::V5, 1), ["refused QuotaExceeded"]);
    rig.crash();
}

#[test]
fn i7_filters_over_the_bytes_of_a_session_are_refused() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    rig.engine.env.settings.mqtt.max_filter_bytes = ByteSize(10);
    let version = Version::V311;
    let key = rig.connect(ConnectFields::new(version, "c"));
    let options = SubscriptionOptions::new(QoS::AtMostOnce);
    let wanted = ["12345678", "12345", "12"].map(|filter| Subscription { filter, options });
    rig.feed(key, |out| {
        encode::subscribe(out, version, PacketId::FIRST, &[], &wanted);
    });
    rig.turn();
    let bytes = rig.engine.out(key).to_vec();
    assert_eq!(bytes[4..], [0, 0x80, 0]);
}
