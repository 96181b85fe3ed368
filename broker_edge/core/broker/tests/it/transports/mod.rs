//! How MQTT reaches the broker: TLS, WebSocket, a proxy's header, and what happens to connections that fail before.

mod doors;
mod limits;
mod refusals;
mod revoked;
mod service_certificates;
mod tls;
mod websocket;
pub mod wires;
