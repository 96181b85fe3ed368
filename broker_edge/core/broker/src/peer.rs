//! The other end of an MQTT connection, as far as the transport knows it before any packet is read.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use crate::audit::Interface;
use crate::transport::revocations::{CertificateId, Revocations};
use crate::words::words;

/// The names in a client certificate that the listener's authority signed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateNames {
    /// The common name of the subject.
    pub common_name: Option<String>,
    /// Subject alternative names (DNS, URI, mail), in the order of the certificate.
    pub alternative_names: Vec<String>,
    /// When the certificate expires, in Unix microseconds.
    pub expires_us: Option<i64>,
    /// Issuer and serial number, by which its authority may revoke it.
    pub id: CertificateId,
    /// The same of the certificates between it and the listener's authority, as far as the client presented them.
    pub authorities: Box<[CertificateId]>,
    /// What the authorities of its listener have revoked; `None` where the listener has no revocation lists.
    pub revocations: Option<Arc<Revocations>>,
}

impl CertificateNames {
    /// Whether it, or a certificate above it, is in a revocation list.
    pub fn is_revoked(&self) -> bool {
        let lists = self.revocations.as_ref();
        lists.is_some_and(|lists| {
            lists.contains(&self.id) || self.authorities.iter().any(|id| lists.contains(id))
        })
    }
}

words! {
    /// The layers between MQTT and TCP, by their names in the configuration.
    pub enum Transport {
        Mqtt = "mqtt",
        Mqtts = "mqtts",
        Ws = "ws",
        Wss = "wss",
    }
}

impl Transport {
    /// The listener as the audit names it.
    #[must_use]
    pub const fn interface(self) -> Interface {
        match self {
            Self::Mqtt | Self::Mqtts => Interface::Mqtt,
            Self::Ws | Self::Wss => Interface::WebSocket,
        }
    }
}

/// The other end of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    pub transport: Transport,
    /// `None` without TLS, and when the client showed no certificate.
    pub certificate: Option<Arc<CertificateNames>>,
    /// A web page from another host opened it: neither anonymous access nor a certificate admits it.
    pub foreign_origin: bool,
    address: Address,
}

/// An address in half the size of the standard library's, because every connection stores one. It omits the zone of a
/// link-local address.
#[derive(Debug, Clone, Copy)]
struct Address {
    /// An IPv4 address is mapped.
    ip: Ipv6Addr,
    port: u16,
    is_v4: bool,
}

impl Peer {
    /// `address` is the client's own, even behind a proxy that reports it.
    pub fn new(
        address: SocketAddr,
        transport: Transport,
        certificate: Option<Arc<CertificateNames>>,
    ) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Self {
            transport,
            certificate,
            foreign_origin: false,
            address: Address {
                ip,
                port: address.port(),
                is_v4: address.is_ipv4(),
            },
        }
    }

    /// A client on plain MQTT.
    pub fn plain(address: SocketAddr) -> Self {
        Self::new(address, Transport::Mqtt, None)
    }

    /// For engines without sockets.
    pub fn nobody() -> Self {
        Self::plain(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))
    }

    /// The client's own address.
    pub fn address(&self) -> SocketAddr {
        let Address { ip, port, is_v4 } = self.address;
        let ip = match ip.to_ipv4_mapped() {
            Some(ip) if is_v4 => IpAddr::V4(ip),
            _ => IpAddr::V6(ip),
        };
        SocketAddr::new(ip, port)
    }
}

/// A host can use all addresses of its IPv6 network, so these count as one site.
pub fn site_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            IpAddr::V6(Ipv6Addr::from(u128::from(address) >> 64 << 64))
        }
        other => other,
    }
}

/// Someone may have all addresses of a network, or of a few: those of a site's /24, or IPv6 /48.
pub fn network_of(site: IpAddr) -> IpAddr {
    match site.to_canonical() {
        IpAddr::V4(site) => IpAddr::V4(Ipv4Addr::from(u32::from(site) >> 8 << 8)),
        IpAddr::V6(site) => IpAddr::V6(Ipv6Addr::from(u128::from(site) >> 80 << 80)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_back_as_it_was_given() {
        for text in [
            "192.0.2.7:1883",
            "[2001:db8::7]:8883",
            "[::ffff:192.0.2.7]:9",
        ] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(Peer::plain(address).address(), address);
        }
        assert!(size_of::<Peer>() <= 32, "what an idle connection pays");
    }
}
