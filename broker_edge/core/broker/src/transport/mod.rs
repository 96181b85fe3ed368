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

use crate::hosts::Origins;
use crate::peer::Transport;

pub use stream::{ReceiveResult, Stream};

/// Connections that may wait to be accepted.
pub const BACKLOG: i32 = 4096;

/// A listener of the data plane that has its address. It listens once the loop serves it: an open port is one that
/// answers, however long the start takes.
#[derive(Debug)]
pub struct BoundListener {
    pub listener: TcpListener,
    pub speaks: ListenerProtocol,
}

/// What is spoken on the connections of a listener, from the socket up.
#[derive(Debug, Clone)]
pub struct ListenerProtocol {
    /// A header of PROXY protocol v2 comes first.
    pub proxy: bool,
    pub tls: Option<Arc<TlsContext>>,
    pub websocket: bool,
    /// With WebSocket, the web pages that count as the broker's own.
    pub origins: Arc<Origins>,
}

impl ListenerProtocol {
    pub fn transport(&self) -> Transport {
        match (self.tls.is_some(), self.websocket) {
            (false, false) => Transport::Mqtt,
            (true, false) => Transport::Mqtts,
            (false, true) => Transport::Ws,
            (true, true) => Transport::Wss,
        }
    }

    /// As the configuration calls it.
    pub fn name(&self) -> &'static str {
        self.transport().name()
    }
}
