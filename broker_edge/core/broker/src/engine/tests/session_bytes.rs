//! Sessions are limited by the bytes they hold for their clients, not only by their number.

use headwater_mqtt::encode::WillFields;

use crate::engine::clients::charges::UNCOUNTED_BYTES;

use super::super::quotas::Kind;
use super::guarded::Guarded;
use super::*;

const V5: Version = Version::V5;
const EXPIRY: &[Property<'static>] = &[Property::SessionExpiryInterval(600)];
const DELAY: &[Property<'static>] = &[Property::WillDelayInterval(60)];
/// Together with its topic and its client id of two bytes each.
const WILL: &[u8] = &[b'w'; 4000 + UNCOUNTED_BYTES as usize - 4];

fn fields<'a>(version: Version, client_id: &'a str, will: &'a [u8]) -> ConnectFields<'a> {
    let mut fields = ConnectFields::new(version, client_id);
    fields.clean_start = false;
    fields.keep_alive_s = 0;
    if version.is_v5() {
        fields.properties = EXPIRY;
    }
    fields.will = (!will.is_empty()).then_some(WillFields {
        topic: "wt",
        payload: will,
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: if version.is_v5() { DELAY } else { &[] },
    });
    fields
}

fn as_ann<'a>(client_id: &'a str, will: &'a [u8]) -> ConnectFields<'a> {
    let mut fields = fields(V5, client_id, will);
    fields.username = Some("ann");
    fields.password = Some(b"pw-a");
    fields
}

fn open_rig(bytes_max: u64) -> (tempfile::TempDir, Rig) {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    rig.engine.env.settings.mqtt.max_session_bytes = ByteSize(bytes_max);
    (dir, rig)
}

/// The code of the CONNACK.
fn connect(rig: &mut Rig, fields: &ConnectFields<'_>) -> (ConnKey, u8) {
    let key = rig.engine.open(crate::peer::Peer::nobody());
    rig.feed(key, |out| encode::connect(out, fields));
    loop {
        let out = rig.engine.out(key).to_vec();
        if !out.is_empty() {
            rig.engine.written(key, out.len());
            return (key, out[3]);
        }
        rig.turn();
        if rig.engine.out(key).is_empty() && !rig.engine.has_more() {
            rig.moved.recv_timeout(DEADLINE).expect("an answer");
        }
    }
}

/// The codes of the SUBACK.
fn subscribe(rig: &mut Rig, key: ConnKey, version: Version, filters: &[&str]) -> Vec<u8> {
    let options = SubscriptionOptions::new(QoS::AtMostOnce);
    let wanted: Vec<_> = filters
        .iter()
        .map(|filter| Subscription { filter, options })
        .collect();
    rig.feed(key, |out| {
        encode::subscribe(out, version, PacketId::FIRST, &[], &wanted);
    });
    loop {
        let out = rig.engine.out(key).to_vec();
        if !out.is_empty() {
            rig.engine.written(key, out.len());
            return out[out.len() - filters.len()..].to_vec();
        }
        rig.turn();
        if rig.engine.out(key).is_empty() && !rig.engine.has_more() {
            rig.moved.recv_timeout(DEADLINE).expect("an answer");
        }
    }
}

fn unsubscribe(rig: &mut Rig, key: ConnKey, filter: &str) {
    rig.feed(key, |out| {
        encode::unsubscribe(out, V5, PacketId::FIRST, &[], &[filter]);
    });
    rig.packets(key, V5, 1);
}

#[test]
fn wills_over_the_bytes_of_all_sessions_are_refused_until_one_is_published() {
    let (_dir, mut rig) = open_rig(10_000);
    for client_id in ["c1", "c2"] {
        let (key, code) = connect(&mut rig, &fields(V5, client_id, WILL));
        assert_eq!(code, 0, "{client_id}");
        rig.engine.remove(key);
    }
    assert_eq!(
        rig.engine.quotas.session_bytes(),
        8000,
        "they wait, and count"
    );
    assert_eq!(connect(&mut rig, &fields(V5, "c3", WILL)).1, 0x97);
    assert_eq!(connect(&mut rig, &fields(Version::V311, "c3", WILL)).1, 3);
    rig.turn();
    assert_eq!(rig.engine.env.metrics.mqtt.sessions_refused.get(), 2);
    // A client that has a session may have it again, and an ordinary device is always admitted.
    assert_eq!(connect(&mut rig, &fields(V5, "c1", WILL)).1, 0);
    assert_eq!(connect(&mut rig, &fields(V5, "c4", &WILL[..200])).1, 0);
    assert_eq!(rig.engine.quotas.session_bytes(), 8000);
    // The will of c2 is published; connected clients keep theirs.
    rig.pass_time(61_000);
    rig.turn();
    assert_eq!(rig.engine.quotas.session_bytes(), 4000);
    assert_eq!(connect(&mut rig, &fields(V5, "c3", WILL)).1, 0);
    assert_eq!(rig.engine.quotas.session_bytes(), 8000);
    rig.turn();
    assert_eq!(rig.engine.env.metrics.mqtt.session_bytes.get(), 8000);
    rig.crash();
}

#[test]
fn the_will_of_a_clean_session_counts_as_long_as_it_is_connected() {
    let (_dir, mut rig) = open_rig(4000);
    let mut clean = fields(V5, "c1", WILL);
    (clean.clean_start, clean.properties) = (true, &[]);
    let (key, code) = connect(&mut rig, &clean);
    assert_eq!((code, rig.engine.quotas.session_bytes()), (0, 4000));
    let mut other = clean;
    other.client_id = "c2";
    assert_eq!(connect(&mut rig, &other).1, 0x97);
    // Its new connection replaces the earlier one.
    let (again, code) = connect(&mut rig, &clean);
    assert_eq!((code, rig.engine.quotas.session_bytes()), (0, 4000));
    rig.engine.remove(key);
    rig.engine.remove(again);
    assert_eq!(rig.engine.quotas.session_bytes(), 0);
    assert_eq!(connect(&mut rig, &other).1, 0);
    rig.crash();
}

#[test]
fn filters_over_the_bytes_of_all_sessions_are_refused_each_for_itself() {
    let (_dir, mut rig) = open_rig(2000);
    let long = |n: usize, share: &str| format!("{share}{n}/{}", "f".repeat(998 - share.len()));
    let filters: Vec<String> = [(1, ""), (2, "$share/g/"), (3, "")]
        .map(|(n, share)| long(n, share))
        .to_vec();
    let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
    // The id and a will use up the uncounted bytes, so that each filter counts in full.
    let will = &WILL[..UNCOUNTED_BYTES as usize - 4];
    for (version, refused) in [(V5, 0x97), (Version::V311, 0x80)] {
        let mut wanted = fields(version, "c1", will);
        wanted.clean_start = true;
        let (key, code) = connect(&mut rig, &wanted);
        assert_eq!(code, 0);
        let codes = subscribe(&mut rig, key, version, &filters);
        assert_eq!(codes, [0, 0, refused]);
        assert_eq!(rig.engine.quotas.session_bytes(), 2000);
        let codes = subscribe(&mut rig, key, version, &filters);
        assert_eq!(codes, [0, 0, refused], "what is there can be asked again");
        assert_eq!(rig.engine.quotas.session_bytes(), 2000);
        if version.is_v5() {
            unsubscribe(&mut rig, key, filters[1]);
            assert_eq!(rig.engine.quotas.session_bytes(), 1000);
            let codes = subscribe(&mut rig, key, version, &filters[2..]);
            assert_eq!(codes, [0]);
        }
        rig.engine.remove(key);
    }
    rig.crash();
}

#[test]
fn long_client_ids_count_and_a_clean_start_gives_back() {
    let (_dir, mut rig) = open_rig(1000);
    let long = "i".repeat(1000);
    assert_eq!(connect(&mut rig, &fields(V5, &long, b"")).1, 0);
    let held = 1000 - UNCOUNTED_BYTES;
    assert_eq!(rig.engine.quotas.session_bytes(), held);
    assert_eq!(
        connect(&mut rig, &fields(V5, &"j".repeat(1000), b"")).1,
        0x97
    );
    let mut clean = fields(V5, &long, b"");
    clean.clean_start = true;
    assert_eq!(connect(&mut rig, &clean).1, 0);
    assert_eq!(rig.engine.quotas.session_bytes(), held);
    rig.crash();
}

#[test]
fn restored_sessions_count_with_their_filters_and_waiting_wills_also_over_the_bound() {
    let (dir, mut rig) = open_rig(u64::MAX);
    let (key, _) = connect(&mut rig, &fields(V5, "c1", WILL));
    let filter = "f".repeat(500);
    subscribe(&mut rig, key, V5, &[&filter, "$share/g/f"]);
    rig.engine.remove(key);
    let held = rig.engine.quotas.session_bytes();
    assert_eq!(held, 4000 + 500 + 10);
    // Its CONNACK is sent when all of that is durable.
    connect(&mut rig, &fields(V5, "c9", b""));
    rig.crash();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    rig.engine.env.settings.mqtt.max_session_bytes = ByteSize(100);
    assert_eq!(rig.engine.quotas.session_bytes(), held);
    assert_eq!(connect(&mut rig, &fields(V5, "c2", WILL)).1, 0x97);
    // It has lost nothing, and gets nothing more.
    let (key, code) = connect(&mut rig, &fields(V5, "c1", WILL));
    assert_eq!((code, rig.engine.quotas.session_bytes()), (0, held));
    assert_eq!(subscribe(&mut rig, key, V5, &[&filter, "g"]), [0, 0x97]);
    unsubscribe(&mut rig, key, &filter);
    unsubscribe(&mut rig, key, "$share/g/f");
    let (_, code) = connect(&mut rig, &fields(V5, "c1", b""));
    assert_eq!((code, rig.engine.quotas.session_bytes()), (0, 0));
    rig.crash();
}

#[test]
fn a_user_that_fills_its_bytes_leaves_the_others_theirs_and_is_named() {
    let mut broker = Guarded::new(|_| {});
    broker.write(
        "acl",
        "user ann\ntopic readwrite #\nuser bob\ntopic readwrite #\n",
    );
    broker.auth_service.reload().expect("the file is right");
    broker.rig.turn();
    let mut limits = QuotaLimits::default();
    limits.tenant[Kind::SessionBytes as usize] = 5000;
    broker.rig.engine.quotas.limit(limits);
    let (key, code) = broker.try_connect(&as_ann("a1", WILL));
    assert_eq!(code, 0);
    broker.rig.engine.remove(key);
    assert_eq!(broker.try_connect(&as_ann("a2", WILL)).1, 0x97);
    let (key, code) = broker.try_connect(&as_ann("a2", b""));
    assert_eq!(code, 0);
    let filter = "f".repeat(1000 + UNCOUNTED_BYTES as usize - 2);
    for (filter, code) in [(&*filter, 0), ("more", 0x97), (&filter, 0)] {
        assert_eq!(subscribe(&mut broker.rig, key, V5, &[filter]), [code]);
    }
    let mut of_bob = as_ann("b1", WILL);
    of_bob.username = Some("bob");
    of_bob.password = Some(b"pw-b");
    assert_eq!(broker.try_connect(&of_bob).1, 0);
    let refusals = broker.rig.engine.env.metrics.audit.refusals();
    let row = refusals
        .users
        .iter()
        .find(|row| row.user.as_deref() == Some("ann"));
    let row = row.expect("ann is named");
    assert!(
        row.refused
            .iter()
            .all(|kind| kind.reason == "quota:session_bytes"),
        "{row:?}"
    );
    assert_eq!(row.refused.len(), 2, "a CONNECT and a SUBSCRIBE: {row:?}");
    // Restored sessions count for their owners.
    let mut broker = broker.restart();
    let mut limits = QuotaLimits::default();
    limits.user[Kind::SessionBytes as usize] = 5000;
    broker.rig.engine.quotas.limit(limits);
    assert_eq!(broker.try_connect(&as_ann("a3", WILL)).1, 0x97);
    assert_eq!(broker.try_connect(&as_ann("a3", b"")).1, 0);
    broker.rig.crash();
}
