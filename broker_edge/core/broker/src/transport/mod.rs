//! The layers between a socket and MQTT bytes: TLS, WebSocket frames, a proxy's header, and the detection of clients
//! with another protocol.
//!
//! Nothing here waits, polls or parses MQTT beyond the first bytes. The event loop owns the sockets and calls these
//! layers when sockets are ready. Connections before their CONNECT are in the event loop's `arrivals`.

pub mod certificates;
mod client_verifier;
pub mod first_bytes;
pub mod proxy;
pub mod revocations;
mod stream;
mod tcp;
mod tls_link;
pub mod upgrade;
pub(crate) mod websocket;

use std::net::TcpListener;
use std::sync::Arc;

use certificates::TlsContext;

use crate::hosts::Origins;
use crate::peer::Transport;

pub use stream::Stream;
pub use tcp::ReceiveResult;

/// Length of the listen backlog.
pub const BACKLOG: i32 = 4096;

/// A bound listener of the data plane. It listens only when the loop serves it, so that an open port always answers,
/// however long the start takes.
#[derive(Debug)]
pub struct BoundListener {
    pub listener: TcpListener,
    pub speaks: ListenerProtocol,
}

/// The protocol layers of a listener's connections, from the socket up.
#[derive(Debug, Clone)]
pub struct ListenerProtocol {
    /// Connections begin with a PROXY protocol v2 header.
    pub proxy: bool,
    pub tls: Option<Arc<TlsContext>>,
    pub websocket: bool,
    /// For WebSocket: the web pages that count as the broker's own.
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

    /// The name in the configuration.
    pub fn name(&self) -> &'static str {
        self.transport().name()
    }
}
