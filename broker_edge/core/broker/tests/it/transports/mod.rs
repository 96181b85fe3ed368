//! How MQTT reaches the broker: TLS, WebSocket, a proxy's header, and what happens to those who do not get that far.

mod doors;
mod limits;
mod refusals;
mod tls;
mod websocket;
mod wires;
