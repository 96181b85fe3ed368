//! The engine with its log, driven by hand: a test runs its turns and moves its clock.

use headwater_log::Partition;

use super::*;

/// The wall clock of a new rig, in Unix microseconds.
pub(super) const START_US: i64 = 1_700_000_000_000_000;

/// Lets the syncs pass when a test ends: a log whose syncs are held does not close.
struct Release([Arc<Gate>; 2]);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.iter().for_each(|gate| gate.set(Sync::Pass));
    }
}

pub(super) struct Rig {
    /// Dropped before the log.
    _release: Release,
    pub(super) engine: Engine,
    pub(super) log: Log,
    pub(super) state: Arc<StateStore>,
    /// Gate of the telemetry partitions.
    pub(super) gate: Arc<Gate>,
    /// Gate of the internal partition.
    pub(super) state_gate: Arc<Gate>,
    pub(super) moved: Receiver<()>,
    /// Whatever else makes a turn due is reported here.
    pub(super) tell: Arc<Mutex<Sender<()>>>,
    pub(super) now: Now,
    _watcher: Watcher,
}

impl Rig {
    pub(super) fn open(dir: &Path, sync: SyncMode) -> Self {
        let mut config = LogConfig::new(dir);
        config.sync = sync;
        Self::open_with(config)
    }

    pub(super) fn open_with(config: LogConfig) -> Self {
        Self::open_compacting(config, 1 << 20)
    }

    pub(super) fn open_compacting(config: LogConfig, compact_after_bytes: u64) -> Self {
        let settings = Settings {
            inline_publishers_max: MANY - 1,
            ..Settings::default()
        };
        Self::open_with_settings(config, compact_after_bytes, settings)
    }

    pub(super) fn open_with_settings(
        config: LogConfig,
        compact_after_bytes: u64,
        settings: Settings,
    ) -> Self {
        Self::open_at(START_US, config, compact_after_bytes, settings)
    }

    /// The same, at this time of the wall clock.
    pub(super) fn open_at(
        wall_us: i64,
        config: LogConfig,
        compact_after_bytes: u64,
        settings: Settings,
    ) -> Self {
        let gate = Arc::new(Gate::default());
        let state_gate = Arc::new(Gate::default());
        let seams = Seams {
            files: Arc::new(GatedFiles {
                telemetry: Arc::clone(&gate),
                internal: Arc::clone(&state_gate),
            }),
            ..Seams::system()
        };
        let (log, _) = Log::open(config, seams).expect("a log opens in its own folder");
        let state = Arc::new(
            StateStore::open(&log, compact_after_bytes).expect("state follows from the log"),
        );
        let (tell, moved) = channel();
        let told = tell.clone();
        // The test may have ended.
        let watcher: Watcher = Arc::new(move || {
            let _ = told.send(());
        });
        for partition in log.partitions() {
            partition.watch(&watcher);
        }
        let tell = Arc::new(Mutex::new(tell));
        let now = Now {
            mono_ms: 0,
            wall_us,
        };
        let engine = Engine::new(
            settings,
            log.clone(),
            Arc::clone(&state),
            Arc::default(),
            now,
        )
        .expect("the engine reads its log");
        Self {
            _release: Release([Arc::clone(&gate), Arc::clone(&state_gate)]),
            engine,
            log,
            state,
            gate,
            state_gate,
            moved,
            tell,
            now,
            _watcher: watcher,
        }
    }

    /// Appends what is staged for a partition.
    pub(super) fn append(&mut self, partition: &Partition) {
        let partition = PartitionIndex::of(partition.id());
        let engine = &mut self.engine;
        engine.ingest.append(partition, false, &mut engine.effects);
        engine.drain();
    }

    pub(super) fn turn(&mut self) {
        self.engine.begin(self.now);
        for key in self.engine.take_resumed() {
            self.engine.receive_held(key);
        }
        self.engine.tick();
        self.engine.commit();
    }

    pub(super) fn pass_time(&mut self, ms: u64) {
        self.now.mono_ms += ms;
        self.now.wall_us += i64::try_from(ms).expect("a short time") * 1000;
        self.turn();
    }

    /// The number of offsets assigned, if all of them are durable. If it is the same before and after a turn, nothing
    /// is in progress and the turn has seen everything.
    pub(super) fn quiet_at(&self) -> Option<u64> {
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

    /// Waits for news from the disk, but not for long: it may have come already.
    pub(super) fn wait_for_disk(&self) {
        let _ = self.moved.recv_timeout(Duration::from_millis(60));
    }

    /// Runs turns, whenever the log has moved, until a connection was sent `count` packets.
    pub(super) fn packets(&mut self, key: ConnKey, version: Version, count: usize) -> Vec<String> {
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

    /// What a connection was sent since the last call, in short form.
    pub(super) fn sent(&mut self, key: ConnKey, version: Version) -> Vec<String> {
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

    /// Offers bytes as a socket would; returns how many were taken.
    pub(super) fn receive(&mut self, key: ConnKey, bytes: &[u8]) -> usize {
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

    pub(super) fn feed(&mut self, key: ConnKey, encode: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        encode(&mut bytes);
        self.engine.begin(self.now);
        self.engine.receive(key, &bytes, true);
    }

    pub(super) fn connect(&mut self, fields: ConnectFields<'_>) -> ConnKey {
        let key = self.engine.open(crate::peer::Peer::nobody());
        self.feed(key, |out| encode::connect(out, &fields));
        let connack = self.packets(key, fields.version, 1);
        assert!(connack[0].starts_with("connack"), "{connack:?}");
        key
    }

    pub(super) fn clients(&mut self, version: Version, count: usize) -> Vec<ConnKey> {
        (0..count)
            .map(|n| self.connect(ConnectFields::new(version, &format!("c{n}"))))
            .collect()
    }

    pub(super) fn publish(&mut self, key: ConnKey, version: Version, id: u16, text: &str) {
        self.publish_to("t", false, key, version, id, text);
    }

    pub(super) fn publish_to(
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

    pub(super) fn subscribe(&mut self, key: ConnKey, version: Version) {
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

    /// Another engine on the same open log, after the first has left as at a clean stop, or in the middle of its work.
    pub(super) fn remade(mut self, leaves: bool, meanwhile: impl FnOnce(&Log)) -> Self {
        let (settings, metrics) = (&self.engine.env.settings, &self.engine.env.metrics);
        let (settings, metrics) = (settings.clone(), Arc::clone(metrics));
        if leaves {
            self.engine.begin(self.now);
            self.engine.close_all();
            self.engine.commit();
            self.engine.store_all();
        }
        drop(self.engine);
        meanwhile(&self.log);
        let (log, state) = (self.log.clone(), Arc::clone(&self.state));
        let engine = Engine::new(settings, log, state, metrics, self.now);
        let engine = engine.expect("the engine reads its log");
        Self { engine, ..self }
    }

    /// Stops without the clean stop of the engine: everything not stored is lost.
    pub(super) fn crash(self) {
        drop(self.engine);
        self.log.shutdown();
    }
}

pub(super) fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}
