//! What lies between a socket and MQTT bytes: TLS, WebSocket frames, a proxy's header, and the first bytes of clients
//! that speak something else.
//!
//! Nothing here waits, polls or knows a packet of MQTT beyond its first byte. The event loop owns the sockets and calls
//! in when they are ready; what arrives before a connection may speak MQTT is the event loop's `arrivals`.

mod stream;
mod tls_link;
mod websocket;

pub use stream::{Stream, Taken};
