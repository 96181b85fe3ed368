//! Conformance by clause: every rule of MQTT 5 and MQTT 3.1.1 for servers, tested on a real broker over TCP with
//! handmade packets.
//!
//! The comment above a test names the clauses that it covers, `v5:` for MQTT 5 and `v311:` for MQTT 3.1.1. `table`
//! compares them with the lists of all clauses (`mqtt5.txt`, `mqtt311.txt`) and with `docs/conformance.md`, which is
//! generated from both. One broker serves the whole suite, so every test has its own client ids and topics (`fresh`).

mod acknowledge;
mod authentication;
mod connect;
mod connect_fields;
mod disconnect;
mod exactly_once;
mod flow;
mod framing;
mod publish;
mod publish_properties;
mod retain;
mod rumqttc_clients;
mod sessions;
mod shared;
mod subscribe;
mod table;
mod talk;
mod text;
mod topics;
mod unsubscribe;
mod version_3_1;
mod wills;
mod wire;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use headwater_broker::Broker;

/// The address of this suite's broker. The next run empties its folder, because a static is never dropped.
fn address() -> SocketAddr {
    static BROKER: OnceLock<Broker> = OnceLock::new();
    let broker = BROKER.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance");
        let _ = std::fs::remove_dir_all(&dir);
        crate::common::start(&dir)
    });
    broker.mqtt_address()
}

/// A client id or topic that no other test uses.
fn fresh(prefix: &str) -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("{prefix}{}", COUNT.fetch_add(1, Ordering::Relaxed))
}
