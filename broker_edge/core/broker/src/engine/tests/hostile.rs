//! Clients that do not behave, and those that have to live beside them: stuck, slow, flooding, back with less room.

use super::*;

fn persistent(version: Version, client_id: &str) -> ConnectFields<'_> {
    let mut fields = ConnectFields::new(version, client_id);
    fields.clean_start = false;
    fields
}

fn subscribe_to(rig: &mut Rig, key: ConnKey, filter: &str, qos: QoS) {
    let version = rig.engine.conns.get(key).expect("it is open").version;
    let options = SubscriptionOptions::new(qos);
    let one = [Subscription { filter, options }];
    rig.feed(key, |out| {
        encode::subscribe(out, version, PacketId::FIRST, &[], &one)
    });
    assert_eq!(rig.packets(key, version, 1)[0], "suback");
}

/// Turns until nothing is left to do at once, and gives what a connection was sent.
fn until_idle(rig: &mut Rig, key: ConnKey, version: Version) -> Vec<String> {
    let mut sent = Vec::new();
    loop {
        rig.turn();
        sent.extend(rig.sent(key, version));
        if !rig.engine.has_more() && !rig.engine.is_behind_log() {
            return sent;
        }
    }
}

#[test]
fn a_session_that_has_caught_up_in_one_partition_goes_on_in_the_others() {
    let dir = dir();
    let version = Version::V311;
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let client = rig.connect(persistent(version, "lasting"));
    subscribe_to(&mut rig, client, "wanted", QoS::AtLeastOnce);
    rig.engine.remove(client);
    let publisher = rig.connect(ConnectFields::new(version, "p"));
    // Much in one partition, of which nothing is wanted but the last, and little in another.
    let noise = "x".repeat(60 << 10);
    let topics = std::iter::repeat_n("noise", 40).chain(["devices/d/actions", "wanted"]);
    for (topic, id) in topics.zip(1..) {
        rig.publish_to(topic, false, publisher, version, id, &noise);
        assert_eq!(rig.packets(publisher, version, 1), [format!("puback {id}")]);
    }
    let key = rig.engine.open();
    rig.feed(key, |out| {
        encode::connect(out, &persistent(version, "lasting"))
    });
    assert_eq!(rig.packets(key, version, 1), ["connack true"]);
    assert_eq!(until_idle(&mut rig, key, version).len(), 1);
}
