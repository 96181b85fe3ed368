//! Who is at the other end of an MQTT connection, as far as the transport knows: before any packet was read.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// The names in a client certificate that the listener's authority signed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateNames {
    /// The common name of the subject.
    pub common_name: Option<String>,
    /// Subject alternative names (DNS, URI, mail), in the order of the certificate.
    pub alternative_names: Vec<String>,
}

/// The other end of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The client's own address, also behind a proxy that names it.
    pub address: SocketAddr,
    /// What it came in by: `mqtt`, `mqtts`, `ws` or `wss`.
    pub transport: &'static str,
    /// `None` without TLS, and when the client showed no certificate.
    pub certificate: Option<Arc<CertificateNames>>,
}

impl Peer {
    /// A client that came over plain MQTT.
    pub fn plain(address: SocketAddr) -> Self {
        Self {
            address,
            transport: "mqtt",
            certificate: None,
        }
    }

    /// For engines without a socket.
    pub fn nobody() -> Self {
        Self::plain(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))
    }
}
