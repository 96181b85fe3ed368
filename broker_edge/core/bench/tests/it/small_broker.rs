//! A broker of a hundred lines that counts, stalls and refuses as configured, over TCP or what a test puts on top of it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use headwater_bench::{Plan, Scenario};
use headwater_mqtt::encode::{self, PublishFields};
use headwater_mqtt::packet::{Packet, decode};
use headwater_mqtt::reason::ConnectReturnCode;
use headwater_mqtt::{Frame, Publish, QoS, ReasonCode, Version, filter_matches, frame};

/// A connection as the broker sees it.
pub trait Link: Read + Write {
    /// For deliveries from other connections; only plain TCP has it.
    fn second(&self) -> Option<TcpStream> {
        None
    }
}

impl Link for TcpStream {
    fn second(&self) -> Option<TcpStream> {
        Some(self.try_clone().expect("a descriptor is left"))
    }
}

/// Puts layers on a new connection; `None` when their handshake failed.
pub type Wrap = dyn Fn(TcpStream) -> Option<Box<dyn Link>> + Send + Sync;

#[derive(Default)]
pub struct Behaviour {
    /// After this many publishes, stalls once for this long.
    pub stall: Option<(u64, Duration)>,
    /// Stops answering publishes after this many.
    pub silent_after: Option<u64>,
    pub refuses: bool,
}

#[derive(Default)]
pub struct Seen {
    pub publishes: AtomicU64,
    pub connects: AtomicU64,
    pub bytes: AtomicU64,
    subscribers: Mutex<Vec<(String, TcpStream)>>,
}

pub struct SmallBroker {
    pub address: SocketAddr,
    pub seen: Arc<Seen>,
}

impl SmallBroker {
    pub fn start(behaviour: Behaviour) -> Self {
        Self::start_with(behaviour, Arc::new(|tcp| Some(Box::new(tcp))))
    }

    pub fn start_with(behaviour: Behaviour, wrap: Arc<Wrap>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (seen, behaviour) = (Arc::new(Seen::default()), Arc::new(behaviour));
        let all = Arc::clone(&seen);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, behaviour) = (Arc::clone(&all), Arc::clone(&behaviour));
                let wrap = Arc::clone(&wrap);
                thread::spawn(move || {
                    stream.set_nodelay(true).expect("it is a TCP socket");
                    if let Some(mut link) = wrap(stream) {
                        serve(&mut *link, &seen, &behaviour);
                    }
                });
            }
        });
        Self { address, seen }
    }

    pub fn plan(&self, scenario: Scenario) -> Plan {
        let mut plan = Plan::new(scenario, self.address);
        plan.connections = 3;
        plan.patience = Duration::from_secs(60);
        plan
    }
}

fn serve(stream: &mut dyn Link, seen: &Seen, behaviour: &Behaviour) {
    let mut bytes = Vec::new();
    let mut buffer = [0; 64 << 10];
    let mut version = Version::V311;
    while let Ok(count) = stream.read(&mut buffer) {
        bytes.extend_from_slice(&buffer[..count]);
        let (mut at, mut out) = (0, Vec::new());
        while let Ok(Frame::Whole {
            first_byte,
            header_len,
            total_len,
        }) = frame::next(&bytes[at..], 1 << 20)
        {
            if first_byte >> 4 == 1 {
                version = greet(bytes[at + header_len + 6], seen, behaviour, &mut out);
            } else {
                let body = &bytes[at + header_len..at + total_len];
                let packet = decode(version, first_byte, body).expect("the tool sends MQTT");
                answer(packet, version, stream, seen, behaviour, &mut out);
            }
            at += total_len;
        }
        bytes.drain(..at);
        if count == 0 || stream.write_all(&out).is_err() {
            return;
        }
    }
}

fn greet(level: u8, seen: &Seen, behaviour: &Behaviour, out: &mut Vec<u8>) -> Version {
    seen.connects.fetch_add(1, Ordering::Relaxed);
    if level == 5 {
        let reason = if behaviour.refuses {
            ReasonCode::NotAuthorized
        } else {
            ReasonCode::Success
        };
        encode::connack(out, false, reason, &[]);
        return Version::V5;
    }
    let code = if behaviour.refuses {
        ConnectReturnCode::NotAuthorized
    } else {
        ConnectReturnCode::Accepted
    };
    encode::connack_v3(out, false, code);
    Version::V311
}

fn answer(
    packet: Packet<'_>,
    version: Version,
    stream: &dyn Link,
    seen: &Seen,
    behaviour: &Behaviour,
    out: &mut Vec<u8>,
) {
    match packet {
        Packet::Publish(publish) => {
            let number = seen.publishes.fetch_add(1, Ordering::Relaxed) + 1;
            seen.bytes
                .fetch_add(publish.payload.len() as u64, Ordering::Relaxed);
            if let Some((at, time)) = behaviour.stall
                && at == number
            {
                thread::sleep(time);
            }
            deliver(&publish, version, seen);
            if behaviour.silent_after.is_some_and(|after| number > after) {
                return;
            }
            match (publish.qos, publish.packet_id) {
                (QoS::AtLeastOnce, Some(id)) => {
                    encode::puback(out, version, id, ReasonCode::Success, &[])
                }
                (_, Some(id)) => encode::pubrec(out, version, id, ReasonCode::Success, &[]),
                (_, None) => {}
            }
        }
        Packet::Pubrel(ack) => {
            encode::pubcomp(out, version, ack.packet_id, ReasonCode::Success, &[])
        }
        Packet::Subscribe(subscribe) => {
            let mut subscribers = seen.subscribers.lock().expect("nobody panics with it");
            for wanted in subscribe.subscriptions.iter() {
                let stream = stream.second().expect("subscribers use plain TCP");
                subscribers.push((wanted.filter.to_owned(), stream));
            }
            encode::suback(
                out,
                version,
                subscribe.packet_id,
                &[],
                &[ReasonCode::GrantedQos1],
            );
        }
        Packet::Pingreq => encode::pingresp(out),
        _ => {}
    }
}

fn deliver(publish: &Publish<'_>, version: Version, seen: &Seen) {
    for (filter, stream) in &mut *seen.subscribers.lock().expect("nobody panics with it") {
        if filter_matches(filter, publish.topic.as_str()) {
            let fields = PublishFields {
                version,
                dup: false,
                qos: publish.qos,
                retain: false,
                topic: publish.topic.as_str(),
                packet_id: publish.packet_id,
                properties: &[],
                extra: &[],
            };
            let mut packet = Vec::new();
            fields
                .encode(&mut packet, publish.payload)
                .expect("it is small");
            // A disconnected subscriber misses the message.
            let _ = stream.write_all(&packet);
        }
    }
}
