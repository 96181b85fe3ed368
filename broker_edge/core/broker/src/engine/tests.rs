//! The engine driven by hand: no sockets, a clock that the test moves, and a disk whose syncs the test holds or fails.

mod auth;
mod edges;
mod enhanced;
mod exactly_once;
mod full_queue;
mod fuzz;
mod hostile;
mod large;
mod limits;
mod packet_ids;
mod qos2;
mod quotas;
mod shared;
mod sys;
mod wills;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use headwater_log::{
    File, Files, LockError, LockGuard, Log, LogConfig, OpenMode, Seams, SyncMode, SystemFiles,
};
use headwater_mqtt::encode::{self, ConnectFields, PublishFields};
use headwater_mqtt::packet::subscribe::{Subscription, SubscriptionOptions};
use headwater_mqtt::packet::{ServerPacket, decode_from_server};
use headwater_mqtt::{Frame, PacketId, Property, QoS, ReasonCode, Version, frame};
use parking_lot::{Condvar, Mutex};

use super::*;

/// What a sync of the telemetry partitions does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sync {
    Pass,
    Hold,
    Fail,
}

#[derive(Default)]
struct Gate {
    sync: Mutex<Option<Sync>>,
    changed: Condvar,
    /// No file of the telemetry partitions can be opened for reading.
    no_descriptors: AtomicBool,
    /// They cannot grow.
    is_full: AtomicBool,
}

impl Gate {
    fn set(&self, sync: Sync) {
        *self.sync.lock() = Some(sync);
        self.changed.notify_all();
    }

    fn pass(&self) -> io::Result<()> {
        let mut sync = self.sync.lock();
        while *sync == Some(Sync::Hold) {
            self.changed.wait(&mut sync);
        }
        match *sync {
            Some(Sync::Fail) => Err(io::Error::other("the disk is gone")),
            _ => Ok(()),
        }
    }
}

struct GatedFiles(Arc<Gate>);
struct GatedFile(Arc<dyn File>, Arc<Gate>);

impl File for GatedFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.0.read_at(buffer, position)
    }
    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        let end = position + bytes.len() as u64;
        if self.1.is_full.load(Ordering::Relaxed) && end > self.0.len()? {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.write_all_at(bytes, position)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.1.pass()?;
        self.0.sync_data()
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }
}

impl Files for GatedFiles {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        SystemFiles.create_dir(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        SystemFiles.list(dir)
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let is_telemetry = path.to_string_lossy().contains("telemetry-0");
        if is_telemetry && mode == OpenMode::Read && self.0.no_descriptors.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let file = SystemFiles.open(path, mode)?;
        if is_telemetry {
            return Ok(Arc::new(GatedFile(file, Arc::clone(&self.0))));
        }
        Ok(file)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        SystemFiles.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        SystemFiles.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        SystemFiles.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> Result<LockGuard, LockError> {
        SystemFiles.lock(path)
    }
}

/// The longest that a test waits for the writer's thread.
const DEADLINE: Duration = Duration::from_secs(60);
/// Enough publishers in a turn that the loop does not commit on its own thread.
const MANY: usize = 3;

struct Rig {
    engine: Engine,
    log: Log,
    gate: Arc<Gate>,
    moved: Receiver<()>,
    /// Whatever else makes a turn due says so here.
    tell: Arc<Mutex<Sender<()>>>,
    now: Now,
}

impl Rig {
    fn open(dir: &Path, sync: SyncMode) -> Self {
        let mut config = LogConfig::new(dir);
        config.sync = sync;
        Self::open_with(config)
    }

    fn open_with(config: LogConfig) -> Self {
        Self::open_compacting(config, 1 << 20)
    }

    fn open_compacting(config: LogConfig, compact_after_bytes: u64) -> Self {
        let settings = Settings {
            inline_publishers_max: MANY - 1,
            ..Settings::default()
        };
        Self::open_with_settings(config, compact_after_bytes, settings)
    }

    fn open_with_settings(config: LogConfig, compact_after_bytes: u64, settings: Settings) -> Self {
        let gate = Arc::new(Gate::default());
        let seams = Seams {
            files: Arc::new(GatedFiles(Arc::clone(&gate))),
            ..Seams::system()
        };
        let (log, _) = Log::open(config, seams).expect("a log opens in its own folder");
        let state = Arc::new(
            StateStore::open(&log, compact_after_bytes).expect("state follows from the log"),
        );
        let (tell, moved) = channel();
        for partition in log.partitions() {
            let tell = tell.clone();
            // The test may have ended.
            partition.watch(Arc::new(move || {
                let _ = tell.send(());
            }));
        }
        let tell = Arc::new(Mutex::new(tell));
        let now = Now {
            mono_ms: 0,
            wall_us: 1_700_000_000_000_000,
        };
        let engine = Engine::new(settings, log.clone(), state, Arc::default(), now)
            .expect("the engine reads its log");
        Self {
            engine,
            log,
            gate,
            moved,
            tell,
            now,
        }
    }

    fn turn(&mut self) {
        self.engine.begin(self.now);
        for key in self.engine.take_resumed() {
            self.engine.receive_held(key);
        }
        self.engine.tick();
        self.engine.commit();
    }

    fn pass_time(&mut self, ms: u64) {
        self.now.mono_ms += ms;
        self.now.wall_us += i64::try_from(ms).expect("a short time") * 1000;
        self.turn();
    }

    /// How many offsets were given, when all of them are durable. The same before and after a turn: nothing is on its
    /// way, and the turn has seen it all.
    fn quiet_at(&self) -> Option<u64> {
        let mut given = 0;
        for partition in self.log.partitions() {
            let next = partition.next_offset();
            if next != partition.high_watermark() {
                return None;
            }
            given += next.0;
        }
        Some(given)
    }

    /// Waits until the disk has something new to say, but not for long: it may have been said already.
    fn wait_for_disk(&self) {
        let _ = self.moved.recv_timeout(Duration::from_millis(60));
    }

    /// Turns, whenever the log has moved, until a connection was sent `count` packets.
    fn packets(&mut self, key: ConnKey, version: Version, count: usize) -> Vec<String> {
        let mut packets = self.sent(key, version);
        while packets.len() < count {
            self.turn();
            packets.extend(self.sent(key, version));
            if packets.len() < count && !self.engine.has_more() {
                self.moved
                    .recv_timeout(DEADLINE)
                    .unwrap_or_else(|_| panic!("only {packets:?} of {count} packets"));
            }
        }
        packets
    }

    /// What a connection was sent since the last look, in short.
    fn sent(&mut self, key: ConnKey, version: Version) -> Vec<String> {
        let bytes = self.engine.out(key).to_vec();
        self.engine.written(key, bytes.len());
        let mut rest = bytes.as_slice();
        let mut packets = Vec::new();
        while let Ok(Frame::Whole {
            first_byte,
            header_len,
            total_len,
        }) = frame::next(rest, 1 << 28)
        {
            let packet = decode_from_server(version, first_byte, &rest[header_len..total_len]);
            packets.push(
                match packet.expect("the engine encodes well-formed packets") {
                    ServerPacket::Connack(connack) => {
                        format!("connack {}", connack.session_present)
                    }
                    ServerPacket::Puback(ack) if ack.reason.is_error() => {
                        format!("refused {:?}", ack.reason)
                    }
                    ServerPacket::Puback(ack) => format!("puback {}", ack.packet_id),
                    ServerPacket::Publish(publish) => {
                        let text = String::from_utf8_lossy(publish.payload);
                        match publish.properties.user_property("stream-offset") {
                            Some(place) => format!("publish {text} from {place}"),
                            None => format!("publish {text}"),
                        }
                    }
                    ServerPacket::Suback(_) => "suback".to_owned(),
                    ServerPacket::Disconnect(disconnect) => {
                        format!("disconnect {:?}", disconnect.reason)
                    }
                    other => format!("{other:?}"),
                },
            );
            rest = &rest[total_len..];
        }
        packets
    }

    /// Offers bytes as a socket would; gives how many were taken.
    fn receive(&mut self, key: ConnKey, bytes: &[u8]) -> usize {
        self.engine.begin(self.now);
        match self.engine.read_plan(key) {
            ReadPlan::Wait => 0,
            ReadPlan::Shared {
                mut held,
                bytes_max,
            } => {
                let count = bytes.len().min(bytes_max - held.len());
                held.extend_from_slice(&bytes[..count]);
                self.engine.receive(key, &held, count > 0);
                count
            }
            ReadPlan::Own { wanted } => {
                let count = bytes.len().min(wanted);
                if let Some(held) = self.engine.held_mut(key) {
                    held.extend_from_slice(&bytes[..count]);
                }
                self.engine.receive_held(key);
                count
            }
        }
    }

    fn feed(&mut self, key: ConnKey, encode: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        encode(&mut bytes);
        self.engine.begin(self.now);
        self.engine.receive(key, &bytes, true);
    }

    fn connect(&mut self, fields: ConnectFields<'_>) -> ConnKey {
        let key = self.engine.open(crate::peer::Peer::nobody());
        self.feed(key, |out| encode::connect(out, &fields));
        let connack = self.packets(key, fields.version, 1);
        assert!(connack[0].starts_with("connack"), "{connack:?}");
        key
    }

    fn clients(&mut self, version: Version, count: usize) -> Vec<ConnKey> {
        (0..count)
            .map(|n| self.connect(ConnectFields::new(version, &format!("c{n}"))))
            .collect()
    }

    fn publish(&mut self, key: ConnKey, version: Version, id: u16, text: &str) {
        self.publish_to("t", false, key, version, id, text);
    }

    fn publish_to(
        &mut self,
        topic: &str,
        retain: bool,
        key: ConnKey,
        version: Version,
        id: u16,
        text: &str,
    ) {
        let packet_id = PacketId::new(id);
        let fields = PublishFields {
            version,
            dup: false,
            qos: QoS::AtLeastOnce,
            retain,
            topic,
            packet_id,
            properties: &[],
            extra: &[],
        };
        self.feed(key, |out| {
            fields.encode(out, text.as_bytes()).expect("a small packet");
        });
    }

    fn subscribe(&mut self, key: ConnKey, version: Version) {
        let options = SubscriptionOptions::new(QoS::AtLeastOnce);
        let one = [Subscription {
            filter: "t",
            options,
        }];
        self.feed(key, |out| {
            encode::subscribe(out, version, PacketId::FIRST, &[], &one)
        });
        assert_eq!(self.packets(key, version, 1), ["suback"]);
    }

    /// Everything but the clean stop of the engine: what was not stored is lost.
    fn crash(self) {
        drop(self.engine);
        self.log.shutdown();
    }
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// Publishes from many clients while syncs are held; gives them and a subscriber.
fn publish_while_syncs_are_held(rig: &mut Rig) -> (Vec<ConnKey>, ConnKey) {
    let publishers = rig.clients(Version::V311, MANY);
    let subscriber = rig.connect(ConnectFields::new(Version::V311, "subscriber"));
    rig.subscribe(subscriber, Version::V311);
    rig.gate.set(Sync::Hold);
    for key in &publishers {
        rig.publish(*key, Version::V311, 1, "x");
    }
    rig.turn();
    (publishers, subscriber)
}

/// What all of them were sent until now.
fn sent_to_all(rig: &mut Rig, publishers: &[ConnKey], subscriber: ConnKey) -> Vec<String> {
    rig.turn();
    let mut sent = rig.sent(subscriber, Version::V311);
    for key in publishers {
        sent.extend(rig.sent(*key, Version::V311));
    }
    sent
}

#[test]
fn i1_i2_nothing_is_acknowledged_or_delivered_before_the_sync_returned() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let (publishers, subscriber) = publish_while_syncs_are_held(&mut rig);
    // The writer has taken the records; without a held sync the mark would move now.
    while rig.moved.recv_timeout(Duration::from_millis(300)).is_ok() {}
    let early = sent_to_all(&mut rig, &publishers, subscriber);
    assert_eq!(early, [""; 0]);
    rig.gate.set(Sync::Pass);
    for key in publishers {
        assert_eq!(rig.packets(key, Version::V311, 1), ["puback 1"]);
    }
    assert_eq!(
        rig.packets(subscriber, Version::V311, MANY),
        ["publish x"; MANY]
    );
}

#[test]
fn negative_control_without_syncs_acknowledgements_do_not_wait() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let (publishers, subscriber) = publish_while_syncs_are_held(&mut rig);
    let mut early = Vec::new();
    while early.len() < 2 * MANY {
        early.extend(sent_to_all(&mut rig, &publishers, subscriber));
        if early.len() < 2 * MANY && !rig.engine.has_more() {
            let moved = rig.moved.recv_timeout(DEADLINE);
            assert!(moved.is_ok(), "only {early:?} without a sync");
        }
    }
    rig.gate.set(Sync::Pass);
}

#[test]
fn a_small_turn_is_durable_and_acknowledged_when_it_ends() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    rig.engine.settings.inline_publishers_max = MANY;
    let publishers = rig.clients(Version::V311, MANY);
    for key in &publishers {
        rig.publish(*key, Version::V311, 1, "x");
    }
    rig.turn();
    for key in publishers {
        assert_eq!(rig.sent(key, Version::V311), ["puback 1"]);
    }
}

#[test]
fn a_failed_sync_closes_who_waits_for_it_and_refuses_who_comes_later() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let publishers = rig.clients(Version::V5, MANY);
    let idle = rig.connect(ConnectFields::new(Version::V5, "idle"));
    let older = rig.connect(ConnectFields::new(Version::V311, "older"));
    rig.gate.set(Sync::Fail);
    for key in &publishers {
        rig.publish(*key, Version::V5, 1, "x");
    }
    for key in publishers {
        assert_eq!(
            rig.packets(key, Version::V5, 1),
            ["disconnect UnspecifiedError"]
        );
    }
    rig.publish(idle, Version::V5, 1, "later");
    assert_eq!(
        rig.packets(idle, Version::V5, 1),
        ["refused UnspecifiedError"]
    );
    rig.publish(older, Version::V311, 1, "later");
    rig.turn();
    assert!(
        rig.engine.take_closed().contains(&older),
        "a version without refusals loses its connection"
    );
}

#[test]
fn a_crash_repeats_what_came_after_the_checkpoint_and_skips_nothing() {
    let dir = dir();
    let version = Version::V311;
    let mut fields = ConnectFields::new(version, "lasting");
    fields.clean_start = false;
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let client = rig.connect(fields);
    rig.subscribe(client, version);
    let publisher = rig.connect(ConnectFields::new(version, "p"));
    for n in 0..6 {
        rig.publish(publisher, version, n + 1, &n.to_string());
    }
    assert_eq!(rig.packets(client, version, 6).len(), 6);
    let ack = |rig: &mut Rig, id| {
        let id = PacketId::new(id).expect("not zero");
        rig.feed(client, |out| {
            encode::puback(out, version, id, ReasonCode::Success, &[])
        });
    };
    (1..=3).for_each(|id| ack(&mut rig, id));
    rig.pass_time(tick::CHECKPOINT_MS);
    ack(&mut rig, 4);
    rig.crash();

    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let key = rig.engine.open(crate::peer::Peer::nobody());
    rig.feed(key, |out| encode::connect(out, &fields));
    let packets = rig.packets(key, version, 4);
    assert_eq!(
        packets,
        ["connack true", "publish 3", "publish 4", "publish 5"]
    );
    rig.crash();
}

#[test]
fn silence_is_measured_from_the_last_packet_and_ends_the_connection() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut fields = ConnectFields::new(Version::V5, "c");
    fields.keep_alive_s = 10;
    let key = rig.connect(fields);
    rig.pass_time(14_000);
    rig.feed(key, encode::pingreq);
    rig.pass_time(14_000);
    assert_eq!(rig.sent(key, Version::V5), ["Pingresp"]);
    rig.pass_time(1_000);
    assert_eq!(rig.sent(key, Version::V5), ["disconnect KeepAliveTimeout"]);
    let mute = rig.engine.open(crate::peer::Peer::nobody());
    rig.pass_time(Settings::default().connect_timeout_ms);
    assert!(rig.engine.take_closed().contains(&mute));
}

#[test]
fn bytes_split_anywhere_are_the_same_packets() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let version = Version::V5;
    let key = rig.engine.open(crate::peer::Peer::nobody());
    let mut bytes = Vec::new();
    encode::connect(&mut bytes, &ConnectFields::new(version, "c"));
    for _ in 0..3 {
        encode::pingreq(&mut bytes);
    }
    for byte in &bytes {
        rig.engine.begin(rig.now);
        let ReadPlan::Shared { mut held, .. } = rig.engine.read_plan(key) else {
            panic!("small packets are read")
        };
        held.push(*byte);
        rig.engine.receive(key, &held, true);
    }
    rig.turn();
    assert_eq!(
        rig.sent(key, version),
        ["connack false", "Pingresp", "Pingresp", "Pingresp"]
    );
}

#[test]
fn a_large_packet_waits_for_the_budget_and_is_received_once_others_are_done() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    rig.engine.settings.receive_budget_bytes = 300 << 10;
    let keys = rig.clients(Version::V311, 2);
    let payload = vec![b'x'; 200 << 10];
    let mut packet = vec![0x30];
    packet.extend_from_slice(&[0x83, 0xc0, 0x0c]);
    packet.extend_from_slice(b"\x00\x01t");
    packet.extend_from_slice(&payload);
    rig.engine.begin(rig.now);
    for key in &keys {
        rig.engine.receive(*key, &packet[..1000], true);
    }
    assert!(matches!(
        rig.engine.read_plan(keys[0]),
        ReadPlan::Own { .. }
    ));
    assert_eq!(rig.engine.read_plan(keys[1]), ReadPlan::Wait);
    rig.engine
        .held_mut(keys[0])
        .expect("it is open")
        .extend_from_slice(&packet[1000..]);
    assert!(rig.engine.receive_held(keys[0]));
    rig.engine.commit();
    assert_eq!(rig.engine.take_resumed(), [keys[1]]);
    assert!(matches!(
        rig.engine.read_plan(keys[1]),
        ReadPlan::Own { .. }
    ));
}

#[test]
fn a_retained_message_outlives_the_segment_that_it_was_in() {
    let dir = dir();
    let version = Version::V311;
    let config = || {
        let mut config = LogConfig::new(dir.path());
        config.segment_bytes = 256 << 10;
        for class in &mut config.classes {
            class.retention_bytes = Some(512 << 10);
        }
        config
    };
    let mut rig = Rig::open_with(config());
    let publisher = rig.connect(ConnectFields::new(version, "p"));
    rig.publish_to("t", true, publisher, version, 1, "kept");
    assert_eq!(rig.packets(publisher, version, 1), ["puback 1"]);
    let telemetry = rig
        .log
        .by_name("telemetry-0")
        .expect("there by default")
        .clone();
    let noise = "x".repeat(32 << 10);
    let mut id = 1;
    while telemetry.log_start() == Offset(0) {
        id += 1;
        assert!(id < 1000, "retention never removed a segment");
        rig.publish_to("noise", false, publisher, version, id, &noise);
        assert_eq!(rig.packets(publisher, version, 1), [format!("puback {id}")]);
        rig.log.maintain();
    }
    for round in 0..2 {
        let subscriber = rig.connect(ConnectFields::new(version, "s"));
        let one = [Subscription {
            filter: "t",
            options: SubscriptionOptions::new(QoS::AtMostOnce),
        }];
        rig.feed(subscriber, |out| {
            encode::subscribe(out, version, PacketId::FIRST, &[], &one)
        });
        assert_eq!(
            rig.packets(subscriber, version, 2),
            ["suback", "publish kept"],
            "round {round}"
        );
        rig.crash();
        rig = Rig::open_with(config());
    }
}
