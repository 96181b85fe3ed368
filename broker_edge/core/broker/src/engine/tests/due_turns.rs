//! When a turn is due although no socket is ready: answers of the threads that check credentials, new files of rights,
//! and records that could not be read.

use super::guarded::Guarded;
use super::*;

const V5: Version = Version::V5;

#[test]
fn an_answer_to_a_check_of_credentials_makes_a_turn_due() {
    let mut broker = Guarded::new(|_| {});
    let rig = &mut broker.rig;
    let key = rig.engine.open(crate::peer::Peer::nobody());
    let mut fields = ConnectFields::new(V5, "ann-1");
    fields.username = Some("ann");
    fields.password = Some(b"pw-a");
    assert!(!rig.engine.is_behind_log());
    rig.feed(key, |out| encode::connect(out, &fields));
    rig.engine.commit();
    while !rig.engine.is_behind_log() {
        rig.moved.recv_timeout(DEADLINE).expect("the answer");
    }
    rig.turn();
    assert_eq!(rig.sent(key, V5), ["connack false"]);
    assert!(!rig.engine.is_behind_log(), "it was taken");
}

#[test]
fn new_files_of_rights_make_a_turn_due() {
    let mut broker = Guarded::new(|_| {});
    broker.rig.turn();
    assert!(!broker.rig.engine.is_behind_log());
    broker.auth_service.reload().expect("the files are right");
    assert!(broker.rig.engine.is_behind_log());
    broker.rig.turn();
    assert!(!broker.rig.engine.is_behind_log(), "they are in use");
}

#[test]
fn records_that_could_not_be_read_make_a_turn_due_when_the_next_try_is() {
    const COUNT: u16 = 20;
    let dir = dir();
    let mut config = LogConfig::new(dir.path());
    // The records of a turn do not all stay in memory.
    config.tail_bytes = 64 << 10;
    let mut rig = Rig::open_with(config);
    let subscriber = rig.connect(ConnectFields::new(V5, "s"));
    rig.subscribe(subscriber, V5);
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    let telemetry = rig.log.by_name("telemetry-0").expect("there").clone();
    let noise = "x".repeat(32 << 10);
    rig.gate.set(Sync::Hold);
    for id in 1..=COUNT {
        rig.publish(publisher, V5, id, &format!("{id}{noise}"));
    }
    rig.engine.commit();
    rig.gate.set(Sync::Pass);
    while telemetry.high_watermark() < Offset(u64::from(COUNT)) {
        rig.wait_for_disk();
    }
    rig.gate.no_descriptors.store(true, Ordering::Relaxed);
    assert!(rig.engine.is_behind_log());
    rig.turn();
    let pubacks: Vec<String> = (1..=COUNT).map(|id| format!("puback {id}")).collect();
    assert_eq!(rig.sent(publisher, V5), pubacks);
    assert_eq!(rig.sent(subscriber, V5), [""; 0]);
    assert!(!rig.engine.is_behind_log(), "the loop may sleep");
    rig.pass_time(delivery::RETRY_MS - 1);
    assert!(!rig.engine.is_behind_log(), "not yet");
    rig.gate.no_descriptors.store(false, Ordering::Relaxed);
    rig.now.mono_ms += 1;
    rig.engine.begin(rig.now);
    assert!(rig.engine.is_behind_log());
    let told = rig.packets(subscriber, V5, usize::from(COUNT));
    let expected = (1..=COUNT).map(|id| format!("publish {id}{noise}"));
    assert!(told.into_iter().eq(expected));
    assert!(!rig.engine.is_behind_log());
}
