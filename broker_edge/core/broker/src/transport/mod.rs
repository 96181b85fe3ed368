//! What lies between a socket and MQTT bytes: TLS, WebSocket frames, a proxy's header, and the first bytes of clients
//! that speak something else.
//!
//! Nothing here waits, polls or knows a packet of MQTT beyond its first bytes. The event loop owns the sockets and calls
//! in when they are ready; connections that may not speak MQTT yet are the event loop's `arrivals`.

pub mod certificates;
pub mod first_bytes;
pub mod proxy;
mod stream;
mod tls_link;
pub mod upgrade;
mod websocket;

use std::net::TcpListener;
use std::sync::Arc;

use certificates::TlsContext;

pub use stream::{Stream, Taken};

/// A listener of the data plane, bound and listening.
#[derive(Debug)]
pub struct Bound {
    pub listener: TcpListener,
    pub speaks: Speaks,
}

/// What is spoken on the connections of a listener, from the socket up.
#[derive(Debug, Clone)]
pub struct Speaks {
    /// A header of PROXY protocol v2 comes first.
    pub proxy: bool,
    pub tls: Option<Arc<TlsContext>>,
    pub websocket: bool,
}

impl Speaks {
    /// As the configuration and `Peer` call it.
    pub fn name(&self) -> &'static str {
        match (self.tls.is_some(), self.websocket) {
            (false, false) => "mqtt",
            (true, false) => "mqtts",
            (false, true) => "ws",
            (true, true) => "wss",
        }
    }
}
