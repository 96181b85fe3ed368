//! What a record stores of its publish: the client, everything besides the payload, and the packet id.

use headwater_mqtt::encode::WillFields;

use super::qos2::{LASTS, lasting, publish, texts_of};
use super::stored_state::assert_next;
use super::world::small;
use super::*;

const VERSION: Version = Version::V5;

/// A short form of a record, with its MQTT properties.
type Said = (String, u8, bool, Vec<u8>);

fn said(rig: &Rig) -> Vec<Said> {
    let telemetry = rig.log.by_name("telemetry-0").expect("there by default");
    let batches = telemetry.read(Offset(0), 1 << 20);
    let batches = batches.expect("nothing is damaged");
    let records = batches.iter().flat_map(headwater_log::Batch::records);
    let said = |record: headwater_log::RecordView<'_>| {
        let client_id = record.client_id.to_owned();
        let properties = record.properties.to_vec();
        (client_id, record.qos, record.retain, properties)
    };
    records.map(said).collect()
}

#[test]
fn a_record_names_the_client_that_published_it_whoever_else_publishes_in_the_same_turn() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let keys = ["one", "two"].map(|name| rig.connect(ConnectFields::new(VERSION, name)));
    for (id, key) in [(1, keys[0]), (1, keys[1]), (2, keys[0])] {
        rig.publish_to("t", id == 2, key, VERSION, id, "x");
    }
    assert_eq!(rig.packets(keys[0], VERSION, 2).len(), 2);
    assert_eq!(rig.packets(keys[1], VERSION, 1).len(), 1);
    let of = |name: &str, retain| (name.to_owned(), 1, retain, Vec::new());
    let wanted = [of("one", false), of("two", false), of("one", true)];
    assert_eq!(said(&rig), wanted);
}

#[test]
fn a_will_is_a_record_of_its_client_and_as_the_client_left_it() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let telemetry = rig.log.by_name("telemetry-0").expect("there by default");
    let telemetry = telemetry.clone();
    for retain in [true, false] {
        let mut fields = ConnectFields::new(VERSION, "c");
        fields.will = Some(WillFields {
            topic: "t",
            payload: b"gone",
            qos: QoS::AtLeastOnce,
            retain,
            properties: &[Property::UserProperty {
                key: "k",
                value: "v",
            }],
        });
        let key = rig.connect(fields);
        rig.engine.lost(key);
        rig.engine.remove(key);
        let end = telemetry.next_offset().plus(1);
        while telemetry.high_watermark() < end {
            rig.turn();
            rig.wait_for_disk();
        }
    }
    let of = |retain| ("c".to_owned(), 1, retain, b"\x26\0\x01k\0\x01v".to_vec());
    assert_eq!(said(&rig), [of(true), of(false)]);
}

#[test]
fn i6_a_packet_id_that_qos_1_had_is_free_for_qos_2_also_after_a_crash() {
    let dir = dir();
    let mut rig = Rig::open_with(small(dir.path()));
    let key = rig.connect(lasting(VERSION, "p", &LASTS));
    rig.publish(key, VERSION, 7, "one");
    assert_eq!(rig.packets(key, VERSION, 1).len(), 1);
    rig.crash();
    let mut rig = Rig::open_with(small(dir.path()));
    let key = rig.connect(lasting(VERSION, "p", &LASTS));
    publish(&mut rig, key, VERSION, 7, "t", "two");
    assert_next(&mut rig, key, "Pubrec");
    assert_eq!(texts_of(&rig, "telemetry-0"), ["one", "two"]);
    rig.crash();
}
