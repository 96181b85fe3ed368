//! Settings of the listeners: the address of each and its protocol.
//!
//! A new one also needs: `are_proxied`, `addresses` and `check` below (invariant I11, in `config/mod.rs`, rests on the
//! first two), `broker/listen.rs`, its transport (`transport/mod.rs`, `peer.rs`), and its line in `cli/mod.rs` when it
//! is ready. One that is not TCP over IP also needs another socket in `transport` (`stream`, `tcp`, `tls_link`) and in
//! `event_loop` (`listener`, `arrivals`), and another address than `SocketAddr`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::ConfigError;
use super::declare::{Choice, Kind, Value, choice, settings};
use super::units::{Bind, Binds};
use crate::words::words;

settings! {
    /// The addresses that the broker listens on, and what each of them speaks.
    pub struct Listeners {}
    sections {
        /// MQTT over TCP.
        mqtt: PlainListener = PlainListener {
            bind: Binds(vec![loopback(1883)]),
            proxy_protocol: false,
        };
        /// MQTT over TLS. The usual port is 8883.
        mqtts: SecureListener;
        /// MQTT over WebSocket (path `/mqtt`, subprotocol `mqtt`). The usual port is 8083.
        ws: WebListener;
        /// MQTT over WebSocket and TLS. The usual port is 8084.
        wss: SecureWebListener;
        /// Arrow Flight. With a certificate, over TLS only.
        flight: ServiceListener = ServiceListener::on_port(8815);
        /// Health, metrics and status over HTTP. With a certificate, over HTTPS only.
        admin: ServiceListener = ServiceListener::on_port(8080);
    }
}

/// A listener for MQTT: what all of them have, then what this one has.
macro_rules! mqtt_listener {
    ($(#[doc = $about:tt])* $Name:ident { $($key:tt)* } $($sections:tt)*) => {
        settings! {
            $(#[doc = $about])*
            pub struct $Name {
                /// Address of the listener, or a list of addresses; port 0 picks a free port. Without an address there
                /// is no such listener, but `listeners.mqtt` needs one.
                bind: Binds = Binds::default();
                /// Whether every connection begins with a PROXY protocol v2 header, which names the client's address. A
                /// connection without the header is closed.
                proxy_protocol: bool = false;
                $($key)*
            }
            $($sections)*
        }
    };
}

/// A listener for MQTT over WebSocket.
macro_rules! web_listener {
    ($(#[doc = $about:tt])* $Name:ident $($sections:tt)*) => {
        mqtt_listener! {
            $(#[doc = $about])*
            $Name {
                /// Origins of other hosts whose pages may do what pages of this host do, for example
                /// https://app.example.com. A page of any other host is let in only with a password or token.
                origins: Vec<String> = Vec::new(), Kind::Origins;
            }
            $($sections)*
        }
    };
}

mqtt_listener! {
    /// MQTT over TCP.
    PlainListener {}
}
mqtt_listener! {
    /// MQTT over TLS.
    SecureListener {}
    sections {
        tls: TlsSettings;
    }
}
web_listener! {
    /// MQTT over WebSocket.
    WebListener
}
web_listener! {
    /// MQTT over WebSocket and TLS.
    SecureWebListener
    sections {
        tls: TlsSettings;
    }
}

settings! {
    /// Flight or admin HTTP, over TLS when there is a certificate.
    pub struct ServiceListener {
        /// Address of the listener; port 0 picks a free port.
        bind: Bind = Bind(loopback(0));
    }
    sections {
        tls: TlsSettings;
    }
}

settings! {
    pub struct TlsSettings {
        /// PEM file with the certificate, followed by its intermediate certificates. Relative paths start at the
        /// working directory of the broker.
        #[effect = AtReload]
        cert: Option<PathBuf> = None;
        /// PEM file with the private key of the certificate.
        #[effect = AtReload]
        key: Option<PathBuf> = None;
        /// PEM file with the authorities that sign client certificates.
        #[effect = AtReload]
        client_ca: Option<PathBuf> = None;
        /// PEM file with the revocation lists (CRL) of the authorities that sign client certificates. A client whose
        /// certificate is revoked, or whose authority has no valid list in the file, is refused. The certificates
        /// between it and `client_ca` are checked where the file has a list of their authority; an expired one refuses
        /// them.
        #[effect = AtReload]
        crl: Option<PathBuf> = None;
        /// Whether clients present a certificate.
        client_auth: ClientAuth = ClientAuth::None;
        /// Oldest version of TLS that is accepted.
        min_version: TlsVersion = TlsVersion::V12;
    }
}

choice! {
    /// Whether clients present a certificate.
    pub enum ClientAuth {
        /// they are not asked for one
        None = "none",
        /// a client may connect without a certificate, but not with an invalid one
        Optional = "optional",
        /// every client needs a valid certificate
        Required = "required",
    }
}

words! {
    pub enum TlsVersion {
        V12 = "1.2",
        V13 = "1.3",
    }
}

impl Value for TlsVersion {
    const KIND: Kind = Kind::Choice(&[
        Choice {
            name: "1.2",
            meaning: &[],
        },
        Choice {
            name: "1.3",
            meaning: &[],
        },
    ]);
}

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

impl ServiceListener {
    fn on_port(port: u16) -> Self {
        ServiceListener {
            bind: Bind(loopback(port)),
            ..ServiceListener::default()
        }
    }
}

impl Listeners {
    /// Whether a listener expects a proxy in front of it, so that its address does not say who reaches it.
    pub fn are_proxied(&self) -> bool {
        self.mqtt.proxy_protocol
            || self.mqtts.proxy_protocol
            || self.ws.proxy_protocol
            || self.wss.proxy_protocol
    }

    /// Every address that the broker will listen on, with the key that names it.
    pub fn addresses(&self) -> impl Iterator<Item = (&'static str, SocketAddr)> {
        let mqtt = [
            ("listeners.mqtt.bind", &self.mqtt.bind),
            ("listeners.mqtts.bind", &self.mqtts.bind),
            ("listeners.ws.bind", &self.ws.bind),
            ("listeners.wss.bind", &self.wss.bind),
        ];
        let mqtt = mqtt
            .into_iter()
            .flat_map(|(key, binds)| binds.0.iter().map(move |bind| (key, *bind)));
        let service = [
            ("listeners.flight.bind", self.flight.bind.0),
            ("listeners.admin.bind", self.admin.bind.0),
        ];
        mqtt.chain(service)
    }

    /// The rules that join the keys of a listener.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.mqtt.bind.0.is_empty() {
            let reason = "an address is needed, for example 127.0.0.1:1883";
            return Err(ConfigError::bad_value("listeners.mqtt.bind", reason));
        }
        let (mqtts, wss) = (&self.mqtts, &self.wss);
        for (name, tls, is_needed) in [
            ("mqtts", &mqtts.tls, !mqtts.bind.0.is_empty()),
            ("wss", &wss.tls, !wss.bind.0.is_empty()),
            ("flight", &self.flight.tls, false),
            ("admin", &self.admin.tls, false),
        ] {
            let key = format!("listeners.{name}.tls");
            tls.check(is_needed)
                .map_err(|reason| ConfigError::bad_value(&key, reason))?;
        }
        Ok(())
    }
}

impl TlsSettings {
    /// Whether there is a certificate to show.
    pub fn is_on(&self) -> bool {
        self.cert.is_some()
    }

    fn check(&self, is_needed: bool) -> Result<(), &'static str> {
        let reason = match (&self.cert, &self.key, &self.client_ca, self.client_auth) {
            (None, None, _, _) if is_needed => {
                "cert and key are needed: the PEM files of the certificate and of its key"
            }
            (Some(_), None, _, _) => "key is needed: the PEM file of the certificate's key",
            (None, Some(_), _, _) => "cert is needed: the PEM file of the key's certificate",
            (None, None, Some(_), _) => {
                "client_ca has no effect without cert and key; give them or leave it out"
            }
            (_, _, None, ClientAuth::Optional | ClientAuth::Required) => {
                "client_auth needs client_ca: the PEM file of those who sign the clients' certificates"
            }
            (_, _, Some(_), ClientAuth::None) => {
                "client_ca has no effect with `client_auth: none`; write optional or required"
            }
            _ if self.crl.is_some() && self.client_auth == ClientAuth::None => {
                "crl has no effect with `client_auth: none`; write optional or required"
            }
            _ => return Ok(()),
        };
        Err(reason)
    }
}

impl Serialize for TlsVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for TlsVersion {
    /// Text or a number: YAML takes an unquoted 1.2 for the latter.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = TlsVersion;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("1.2 or 1.3")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<TlsVersion, E> {
                let mut known = TlsVersion::ALL.iter().copied();
                known.find(|version| version.name() == text).ok_or_else(|| {
                    E::custom(format!(
                        "`{text}` is not a version of TLS; write 1.2 or 1.3"
                    ))
                })
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<TlsVersion, E> {
                self.visit_str(&number.to_string())
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
