//! The listeners: where each binds and what is spoken on it.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::units::{Bind, Binds};
use super::{ConfigError, or_default};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Listeners {
    #[serde(deserialize_with = "or_default")]
    pub mqtt: PlainListener,
    #[serde(deserialize_with = "or_default")]
    pub mqtts: SecureListener,
    #[serde(deserialize_with = "or_default")]
    pub ws: WebListener,
    #[serde(deserialize_with = "or_default")]
    pub wss: SecureWebListener,
    #[serde(deserialize_with = "or_default")]
    pub flight: ServiceListener,
    #[serde(deserialize_with = "or_default")]
    pub admin: ServiceListener,
}

/// MQTT.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlainListener {
    /// Port 0 picks a free one. Without an address there is no such listener.
    pub bind: Binds,
    /// Every connection begins with a header of PROXY protocol v2.
    pub proxy_protocol: bool,
}

/// The same over TLS.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SecureListener {
    pub bind: Binds,
    pub proxy_protocol: bool,
    #[serde(deserialize_with = "or_default")]
    pub tls: TlsSettings,
}

/// MQTT in WebSocket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebListener {
    pub bind: Binds,
    pub proxy_protocol: bool,
    /// Pages of other hosts that count as pages of this one, such as `https://app.example.com`.
    pub origins: Vec<String>,
}

/// The same over TLS.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SecureWebListener {
    pub bind: Binds,
    pub proxy_protocol: bool,
    pub origins: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub tls: TlsSettings,
}

/// Flight or admin HTTP, over TLS when there is a certificate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServiceListener {
    pub bind: Bind,
    #[serde(deserialize_with = "or_default")]
    pub tls: TlsSettings,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsSettings {
    /// PEM: the certificate, and those between it and the root.
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// PEM: who may sign the certificates of clients.
    pub client_ca: Option<PathBuf>,
    pub client_auth: ClientAuth,
    pub min_version: TlsVersion,
}

/// Whether clients show a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    #[default]
    None,
    Optional,
    Required,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsVersion {
    #[default]
    V12,
    V13,
}

impl Default for Listeners {
    fn default() -> Self {
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let service = |port| ServiceListener {
            bind: Bind(loopback(port)),
            tls: TlsSettings::default(),
        };
        Listeners {
            mqtt: PlainListener {
                bind: Binds(vec![loopback(1883)]),
                proxy_protocol: false,
            },
            mqtts: SecureListener::default(),
            ws: WebListener::default(),
            wss: SecureWebListener::default(),
            flight: service(8815),
            admin: service(8080),
        }
    }
}

impl Default for ServiceListener {
    fn default() -> Self {
        ServiceListener {
            bind: Bind(SocketAddr::from(([127, 0, 0, 1], 0))),
            tls: TlsSettings::default(),
        }
    }
}

impl Listeners {
    /// Every address that the broker will listen on, with the key that says so.
    /// Whether a proxy stands in front of a listener, so that its address does not say who reaches it.
    pub fn are_proxied(&self) -> bool {
        self.mqtt.proxy_protocol
            || self.mqtts.proxy_protocol
            || self.ws.proxy_protocol
            || self.wss.proxy_protocol
    }

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
            return Err(ConfigError::Joined {
                key: "listeners.mqtt.bind",
                reason: "an address is needed, for example 127.0.0.1:1883".to_owned(),
            });
        }
        for (key, tls, is_needed) in [
            (
                "listeners.mqtts.tls",
                &self.mqtts.tls,
                !self.mqtts.bind.0.is_empty(),
            ),
            (
                "listeners.wss.tls",
                &self.wss.tls,
                !self.wss.bind.0.is_empty(),
            ),
            ("listeners.flight.tls", &self.flight.tls, false),
            ("listeners.admin.tls", &self.admin.tls, false),
        ] {
            tls.check(is_needed)
                .map_err(|reason| ConfigError::Joined { key, reason })?;
        }
        Ok(())
    }
}

impl TlsSettings {
    /// Whether there is a certificate to show.
    pub fn is_on(&self) -> bool {
        self.cert.is_some()
    }

    fn check(&self, is_needed: bool) -> Result<(), String> {
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
            _ => return Ok(()),
        };
        Err(reason.to_owned())
    }
}

impl TlsVersion {
    pub fn name(self) -> &'static str {
        match self {
            TlsVersion::V12 => "1.2",
            TlsVersion::V13 => "1.3",
        }
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
                match text {
                    "1.2" => Ok(TlsVersion::V12),
                    "1.3" => Ok(TlsVersion::V13),
                    other => Err(E::custom(format!(
                        "`{other}` is not a version of TLS; write 1.2 or 1.3"
                    ))),
                }
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<TlsVersion, E> {
                self.visit_str(&number.to_string())
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
