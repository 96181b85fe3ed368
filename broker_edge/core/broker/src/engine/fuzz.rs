//! Whole MQTT connections as a function of bytes: the input is a script of what three clients send and read, how the
//! clock moves, and when the broker starts again. No socket and no file; the log is in memory and new for each input.
//!
//! Checked: nothing panics; each connection gets one CONNACK, before anything else, and then whole and well-formed
//! packets of its version; every readable record can be read; no connection is left over.

mod broker;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use headwater_mqtt::encode::{self, ConnectFields};
use headwater_mqtt::packet::{ServerPacket, decode_from_server};
use headwater_mqtt::{Frame, Property, Version, frame};

use super::{ConnKey, Now, ReadPlan};
use crate::fuzz::memory_files::MemoryFiles;
use broker::{Broker, START_US, ScriptClock};

const CLIENTS: usize = 3;
/// A longer script would be split by the fuzzer sooner than it would find more.
const STEPS_MAX: usize = 64;
/// What a script can let pass, in milliseconds.
const TIMES_MS: [u64; 8] = [10, 100, 1_000, 1_500, 15_000, 70_000, 3_600_000, 90_000_000];
/// Turns until nothing is left to do; each does a bounded part.
const TURNS_MAX: usize = 10_000;
const WRITER_WAIT: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Client {
    key: Option<ConnKey>,
    /// Sent and not yet taken by the engine, as in the buffer of a socket.
    unread: Vec<u8>,
    received: Vec<u8>,
    /// Of a CONNECT that is well formed and came first; the packets of other connections are not examined.
    version: Option<Version>,
    has_connack: bool,
}

struct Script<'a> {
    input: &'a [u8],
}

impl<'a> Script<'a> {
    fn byte(&mut self) -> u8 {
        self.input.split_off_first().copied().unwrap_or(0)
    }

    /// Bytes with their number before them; the last may be fewer.
    fn bytes(&mut self) -> &'a [u8] {
        let count = usize::from(self.byte()).min(self.input.len());
        let (bytes, rest) = self.input.split_at(count);
        self.input = rest;
        bytes
    }
}

struct Run {
    files: MemoryFiles,
    clock: Arc<ScriptClock>,
    now: Now,
    /// `None` while it starts again.
    broker: Option<Broker>,
    clients: [Client; CLIENTS],
}

impl Run {
    fn new() -> Self {
        let now = Now {
            mono_ms: 0,
            wall_us: START_US,
        };
        let (files, clock) = (
            MemoryFiles::default(),
            Arc::new(ScriptClock(AtomicI64::new(START_US))),
        );
        Self {
            broker: Some(Broker::open(&files, &clock, now)),
            files,
            clock,
            now,
            clients: Default::default(),
        }
    }

    fn broker(&mut self) -> &mut Broker {
        self.broker.as_mut().expect("it runs between steps")
    }

    /// The lowest two bits choose the client, the next three what happens.
    fn step(&mut self, script: &mut Script<'_>) {
        let step = script.byte();
        let at = usize::from(step & 3) % CLIENTS;
        let mut taken = usize::MAX;
        match step >> 2 & 7 {
            0 => self.connect(at, script.byte()),
            1 => {
                let (first, body) = (script.byte(), script.bytes());
                let mut packet = vec![first];
                match u8::try_from(body.len()) {
                    Ok(short @ 0..128) => packet.push(short),
                    _ => packet.extend([body.len() as u8 & 0x7f | 0x80, (body.len() >> 7) as u8]),
                }
                packet.extend_from_slice(body);
                self.send(at, &packet);
            }
            2 => self.send(at, script.bytes()),
            3 => {
                let ms = TIMES_MS[usize::from(script.byte()) % TIMES_MS.len()];
                self.now.mono_ms += ms;
                self.now.wall_us += 1_000 * ms as i64;
                self.clock.0.store(self.now.wall_us, Ordering::Relaxed);
                self.broker().log.maintain();
            }
            4 => taken = usize::from(script.byte()),
            5 => {
                if let Some(key) = self.clients[at].key {
                    self.broker().engine.lost(key);
                }
            }
            // The disk is slower than the next step.
            6 => return self.turn(),
            _ => self.start_again(script.byte() & 1 == 0),
        }
        self.settle(at, taken);
    }

    fn connect(&mut self, at: usize, flags: u8) {
        let version = [Version::V5, Version::V311, Version::V31][usize::from(flags & 3) % 3];
        let id = ["a", "b", "c", "shared"][usize::from(flags >> 2 & 3)];
        let mut fields = ConnectFields::new(version, id);
        fields.clean_start = flags & 0x10 != 0;
        fields.keep_alive_s = if flags & 0x20 == 0 { 0 } else { 10 };
        let properties = [
            Property::SessionExpiryInterval(if flags & 0x40 == 0 { 0 } else { 4_000 }),
            Property::ReceiveMaximum(if flags & 0x80 == 0 { 2 } else { 65_535 }),
        ];
        fields.properties = if version.is_v5() { &properties } else { &[] };
        let mut packet = Vec::new();
        encode::connect(&mut packet, &fields);
        if self.clients[at].key.is_none() && self.clients[at].unread.is_empty() {
            self.clients[at].version = Some(version);
        }
        self.send(at, &packet);
    }

    fn send(&mut self, at: usize, bytes: &[u8]) {
        if self.clients[at].key.is_none() {
            let key = self.broker().engine.open(crate::peer::Peer::nobody());
            self.clients[at].key = Some(key);
        }
        self.clients[at].unread.extend_from_slice(bytes);
        self.offer(at);
    }

    /// Offers what is unread, as a socket would.
    fn offer(&mut self, at: usize) {
        let (Some(key), now) = (self.clients[at].key, self.now) else {
            return;
        };
        let unread = std::mem::take(&mut self.clients[at].unread);
        let engine = &mut self.broker().engine;
        engine.begin(now);
        let count = match engine.read_plan(key) {
            ReadPlan::Wait => 0,
            ReadPlan::Shared {
                mut held,
                bytes_max,
            } => {
                let count = unread.len().min(bytes_max - held.len());
                held.extend_from_slice(&unread[..count]);
                engine.receive(key, &held, count > 0);
                count
            }
            ReadPlan::Own { wanted } => {
                let count = unread.len().min(wanted);
                if let Some(held) = engine.held_mut(key) {
                    held.extend_from_slice(&unread[..count]);
                }
                engine.receive_held(key);
                count
            }
        };
        self.clients[at].unread = unread;
        self.clients[at].unread.drain(..count);
    }

    fn turn(&mut self) {
        let now = self.now;
        let engine = &mut self.broker().engine;
        engine.begin(now);
        for key in engine.take_resumed() {
            engine.receive_held(key);
        }
        engine.tick();
        engine.commit();
    }

    /// Turns until nothing is left to do. Client `at` reads at most `taken` bytes a turn, the others read
    /// everything.
    fn settle(&mut self, at: usize, taken: usize) {
        for _ in 0..TURNS_MAX {
            let before = self.broker().quiet_at();
            self.turn();
            let mut is_busy = false;
            for client in 0..CLIENTS {
                is_busy |= self.read(client, if client == at { taken } else { usize::MAX });
                if !self.clients[client].unread.is_empty() {
                    let waited = self.clients[client].unread.len();
                    self.offer(client);
                    is_busy |= self.clients[client].unread.len() < waited;
                }
            }
            self.remove_closed();
            let broker = self.broker();
            match broker.quiet_at() {
                None => {
                    // A timeout is fine: the news may have come before.
                    let _ = broker.moved.recv_timeout(WRITER_WAIT);
                }
                now if now == before && !is_busy && !broker.engine.has_more() => return,
                _ => {}
            }
        }
        panic!("there is always something left to do");
    }

    /// Takes what the engine has for this client. Returns whether there was anything.
    fn read(&mut self, at: usize, most: usize) -> bool {
        let Some(key) = self.clients[at].key else {
            return false;
        };
        let engine = &mut self.broker().engine;
        let bytes = engine.out(key).to_vec();
        let count = bytes.len().min(most);
        engine.written(key, count);
        let client = &mut self.clients[at];
        client.received.extend_from_slice(&bytes[..count]);
        client.check();
        count > 0 && most == usize::MAX
    }

    fn remove_closed(&mut self) {
        for key in self.broker().engine.take_closed() {
            let at = self.clients.iter().position(|it| it.key == Some(key));
            if let Some(at) = at {
                self.read(at, usize::MAX);
                let client = std::mem::take(&mut self.clients[at]);
                let is_known = client.version.is_some();
                assert!(
                    !is_known || client.received.is_empty(),
                    "a packet is cut off"
                );
            }
            self.broker().engine.remove(key);
        }
    }

    /// Another broker on the same files, after a clean stop or in the middle of the work.
    fn start_again(&mut self, leaves: bool) {
        let now = self.now;
        let mut old = self.broker.take().expect("it runs between steps");
        if leaves {
            old.engine.begin(now);
            old.engine.close_all();
            old.engine.commit();
            old.engine.store_all();
        }
        drop(old.engine);
        old.log.shutdown();
        self.clients = Default::default();
        self.broker = Some(Broker::open(&self.files, &self.clock, now));
    }

    fn end(mut self) {
        for at in 0..CLIENTS {
            if let Some(key) = self.clients[at].key {
                self.broker().engine.lost(key);
            }
        }
        self.settle(0, usize::MAX);
        let broker = self.broker.take().expect("it runs between steps");
        assert_eq!(broker.engine.connections(), 0, "a connection is left over");
        broker.check_log();
        drop(broker.engine);
        broker.log.shutdown();
    }
}

impl Client {
    /// Examines the whole packets received so far.
    fn check(&mut self) {
        let Some(version) = self.version else {
            return self.received.clear();
        };
        let mut rest = self.received.as_slice();
        while let Ok(Frame::Whole {
            first_byte,
            header_len,
            total_len,
        }) = frame::next(rest, 1 << 28)
        {
            let packet = decode_from_server(version, first_byte, &rest[header_len..total_len]);
            let packet = packet.expect("the engine sends well-formed packets");
            let is_connack = matches!(packet, ServerPacket::Connack(_));
            assert_eq!(
                is_connack, !self.has_connack,
                "one CONNACK, before anything else"
            );
            self.has_connack = true;
            rest = &rest[total_len..];
        }
        let left = rest.len();
        self.received.drain(..self.received.len() - left);
    }
}

pub(crate) fn session(input: &[u8]) {
    let mut run = Run::new();
    let mut script = Script { input };
    for _ in 0..STEPS_MAX {
        if script.input.is_empty() {
            break;
        }
        run.step(&mut script);
    }
    run.end();
}

#[cfg(test)]
mod tests {
    use headwater_log::Offset;
    use headwater_mqtt::ConnectReturnCode;

    use super::*;

    #[test]
    fn a_script_connects_subscribes_and_gets_what_another_client_publishes() {
        let mut run = Run::new();
        // Client 0 connects and subscribes to `a`, client 1 connects and publishes.
        let mut steps = vec![0, 0x91, 4, 0x82, 6, 0, 1, 0, 1, b'a', 0];
        steps.extend([1, 0x95, 5, 0x32, 6, 0, 1, b'a', 0, 1, b'x']);
        let mut script = Script { input: &steps };
        while !script.input.is_empty() {
            run.step(&mut script);
        }
        assert!(run.clients[0].has_connack && run.clients[1].has_connack);
        let broker = run.broker();
        let telemetry = broker.log.by_name("telemetry-0").expect("a class");
        assert_eq!(telemetry.high_watermark(), Offset(1));
        run.step(&mut Script {
            input: &[7 << 2, 1],
        });
        assert!(run.clients[0].key.is_none());
        let telemetry = run.broker().log.by_name("telemetry-0").expect("a class");
        assert_eq!(
            telemetry.high_watermark(),
            Offset(1),
            "it was there before the restart"
        );
        run.end();
    }

    fn received(received: Vec<u8>) -> Client {
        Client {
            received,
            version: Some(Version::V311),
            ..Client::default()
        }
    }

    /// The negative controls.
    #[test]
    #[should_panic(expected = "one CONNACK, before anything else")]
    fn a_packet_before_the_connack_is_noticed() {
        let mut bytes = Vec::new();
        encode::connack_v3(&mut bytes, false, ConnectReturnCode::Accepted);
        received(bytes.clone()).check();
        bytes.splice(0..0, [0xd0, 0]);
        received(bytes).check();
    }

    #[test]
    #[should_panic(expected = "the engine sends well-formed packets")]
    fn a_malformed_packet_is_noticed() {
        received(vec![0x20, 1, 0]).check();
    }
}
