//! Settings of a node of a cluster. Without `cluster.name` the broker is alone, and none of them may be set.
//!
//! `cluster_files.rs` reads the files that are named here.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use headwater_cluster::marks::Node;
use headwater_etcd::Endpoint;

use super::declare::settings;
use super::units::Bind;
use super::{Ack, Config, ConfigError, Sync};
use crate::hosts;

settings! {
    pub struct ClusterSettings {
        /// Name of the cluster that this broker is a node of: 1 to 63 letters, digits, `-`, `_` or `.`. Its keys in etcd
        /// begin with `/headwater/NAME/`. Without a name the broker is alone, and no other setting of `cluster` may be
        /// set.
        name: Option<String> = None;
        /// Name of this node, different for each node. It is also the DNS name in the certificate `cluster.tls.cert`.
        node: Option<String> = None;
        /// Address for the other nodes; port 0 picks a free port.
        listen: Option<Bind> = None;
        /// Whether the connections to other nodes and to etcd may go to other machines without TLS. Records, and the
        /// password for etcd, can then be read and changed on the way.
        plaintext: bool = false;
        /// File with the secret of the log, as `headwater cluster init` writes it; the same on all nodes.
        secret_file: Option<PathBuf> = None;
    }
    sections {
        /// Certificates of the connections between the nodes. Each node shows one and checks those of the others.
        tls: MeshTlsSettings;
        /// The etcd that says who leads.
        etcd: EtcdSettings;
        /// The addresses, as HOST:PORT, that others are told for this node. Each one that has no value is that of the
        /// listener.
        advertise: AdvertiseSettings;
    }
}

settings! {
    /// Certificates of the connections between the nodes.
    pub struct MeshTlsSettings {
        /// PEM file with the certificate of this node, followed by its intermediate certificates.
        cert: Option<PathBuf> = None;
        /// PEM file with the private key of the certificate.
        key: Option<PathBuf> = None;
        /// PEM file with the authorities that sign the certificates of the nodes. It should sign nothing else.
        ca: Option<PathBuf> = None;
    }
}

settings! {
    /// The etcd that says who leads.
    pub struct EtcdSettings {
        /// Its members, as http://HOST:PORT or https://HOST:PORT, at most 9.
        endpoints: Vec<String> = Vec::new();
        /// PEM file with the authorities that sign the certificates of etcd. Needed with https.
        ca: Option<PathBuf> = None;
        /// PEM file with the certificate that is shown to etcd, if it asks for one.
        cert: Option<PathBuf> = None;
        /// PEM file with the private key of that certificate.
        key: Option<PathBuf> = None;
        /// User of etcd, if it has users.
        user: Option<String> = None;
        /// File with the password of that user in its first line.
        password_file: Option<PathBuf> = None;
    }
}

settings! {
    /// The addresses that others are told for this node.
    pub struct AdvertiseSettings {
        /// For the other nodes.
        mesh: Option<String> = None;
        /// For MQTT clients that ask another node while this one leads.
        mqtt: Option<String> = None;
        /// For Flight clients that ask another node while this one leads.
        flight: Option<String> = None;
        /// For `headwater cluster status`. Without a value, and if other machines cannot reach the listener, none.
        admin: Option<String> = None;
    }
}

/// The addresses of a node, as others use them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advertised {
    /// `host:port`
    pub mesh: String,
    /// `host:port`
    pub mqtt: String,
    /// `grpc://host:port` or `grpc+tls://host:port`
    pub flight: String,
    /// `http://host:port` or `https://host:port`
    pub admin: Option<String>,
}

/// The addresses that the listeners of a node have got.
#[derive(Debug, Clone, Copy)]
pub struct Listening {
    pub mesh: SocketAddr,
    pub mqtt: SocketAddr,
    pub flight: SocketAddr,
    pub admin: SocketAddr,
}

impl ClusterSettings {
    /// Whether this broker is a node of a cluster.
    pub fn is_on(&self) -> bool {
        self.name.is_some()
    }

    /// The rules that join these keys with each other and with those of other sections.
    pub(super) fn check(&self, config: &Config) -> Result<(), ConfigError> {
        let Some(name) = &self.name else {
            if *self == Self::default() {
                return Ok(());
            }
            return wrong(
                "name",
                "is needed with other settings of `cluster`: the name of the cluster, or remove them",
            );
        };
        self.check_names(name)?;
        if self.secret_file.is_none() {
            return wrong(
                "secret_file",
                "a file is needed: the one that `headwater cluster init` wrote",
            );
        }
        self.check_mesh()?;
        self.etcd.check(self.plaintext)?;
        check_log(config)?;
        self.check_advertised(config)
    }

    fn check_names(&self, name: &str) -> Result<(), ConfigError> {
        if Node::new(name).is_err() {
            return wrong(
                "name",
                format!("`{name}` is not a name: use 1 to 63 letters, digits, '-', '_' or '.'"),
            );
        }
        match &self.node {
            None => wrong(
                "node",
                "a name is needed, different for each node, for example n1",
            ),
            Some(node) => match Node::new(node) {
                Err(error) => wrong("node", error.to_string()),
                Ok(_) => Ok(()),
            },
        }
    }

    fn check_mesh(&self) -> Result<(), ConfigError> {
        let Some(Bind(listen)) = self.listen else {
            return wrong("listen", "an address is needed, for example 10.0.0.1:7400");
        };
        let tls = &self.tls;
        let given = [&tls.cert, &tls.key, &tls.ca].map(Option::is_some);
        if given.iter().any(|is_given| *is_given) != given.iter().all(|is_given| *is_given) {
            return wrong(
                "tls",
                "cert, key and ca are needed together: the PEM files of this node's certificate, of its key, and of who signs the nodes' certificates",
            );
        }
        let (is_secure, is_local) = (tls.cert.is_some(), listen.ip().is_loopback());
        if !is_secure && !is_local && !self.plaintext {
            return wrong(
                "listen",
                format!(
                    "{listen} can be reached from other hosts and the connection has no TLS; set cluster.tls, or write `cluster.plaintext: true` for a network that nobody else uses"
                ),
            );
        }
        Ok(())
    }

    fn check_advertised(&self, config: &Config) -> Result<(), ConfigError> {
        let (listeners, told) = (&config.listeners, &self.advertise);
        let mesh = self.listen.map(|listen| ("cluster.listen", listen.0));
        let mqtt = listeners.mqtt.bind.0.first();
        let mqtt = mqtt.map(|bind| ("listeners.mqtt.bind", *bind));
        let flight = Some(("listeners.flight.bind", listeners.flight.bind.0));
        let is_local = mesh.is_some_and(|(_, bind)| bind.ip().is_loopback()) && told.mesh.is_none();
        for (key, given, listener) in [
            ("advertise.mesh", &told.mesh, mesh),
            ("advertise.mqtt", &told.mqtt, mqtt),
            ("advertise.flight", &told.flight, flight),
            ("advertise.admin", &told.admin, None),
        ] {
            if let Some(text) = given {
                if !is_address(text) {
                    return wrong(
                        key,
                        format!(
                            "`{text}` is not an address; write HOST:PORT, for example box1.example:1883"
                        ),
                    );
                }
            } else if let Some((listens, bind)) = listener
                && !can_dial(bind, is_local)
            {
                return wrong(
                    key,
                    format!(
                        "an address is needed, because others cannot connect to {bind} of {listens}; write HOST:PORT"
                    ),
                );
            }
        }
        Ok(())
    }

    /// What others are told, where these listeners have got these addresses.
    pub fn advertised(&self, config: &Config, at: Listening) -> Advertised {
        let told = &self.advertise;
        let or = |given: &Option<String>, bound: SocketAddr| {
            given.clone().unwrap_or_else(|| bound.to_string())
        };
        let is_local = at.mesh.ip().is_loopback() && told.mesh.is_none();
        let has_admin = told.admin.is_some() || can_dial(at.admin, is_local);
        let is_on = |name: &str, tls: bool| {
            if tls {
                format!("{name}s")
            } else {
                name.to_owned()
            }
        };
        let http = is_on("http", config.listeners.admin.tls.is_on());
        Advertised {
            mesh: or(&told.mesh, at.mesh),
            mqtt: or(&told.mqtt, at.mqtt),
            flight: config.flight_url(&or(&told.flight, at.flight)),
            admin: has_admin.then(|| format!("{http}://{}", or(&told.admin, at.admin))),
        }
    }
}

impl EtcdSettings {
    fn check(&self, plaintext: bool) -> Result<(), ConfigError> {
        if self.endpoints.is_empty() {
            return wrong(
                "etcd.endpoints",
                "at least one is needed, for example https://etcd1.example:2379",
            );
        }
        let mut seen = BTreeSet::new();
        for text in &self.endpoints {
            let endpoint: Endpoint = match text.parse() {
                Ok(endpoint) => endpoint,
                Err(error) => return wrong("etcd.endpoints", format!("{error}")),
            };
            if !seen.insert(endpoint.to_string()) {
                return wrong("etcd.endpoints", format!("{endpoint} is given twice"));
            }
            if !endpoint.is_tls() && !plaintext && !endpoint.is_loopback() {
                return wrong(
                    "etcd.endpoints",
                    format!(
                        "{endpoint} is another machine and the connection has no TLS; write https, or `cluster.plaintext: true` for a network that nobody else uses"
                    ),
                );
            }
        }
        let secure = |text: &&String| text.starts_with("https:");
        let is_tls = self.endpoints.iter().any(|text| secure(&text));
        if is_tls && !self.endpoints.iter().all(|text| secure(&text)) {
            return wrong(
                "etcd.endpoints",
                "some are http and some https; write https for all",
            );
        }
        let reason = match (&self.ca, &self.cert, &self.key) {
            (None, ..) if is_tls => (
                "etcd.ca",
                "is needed with https: the PEM file of who signs etcd's certificates",
            ),
            (Some(_), ..) if !is_tls => (
                "etcd.ca",
                "has no effect with http; write https in cluster.etcd.endpoints or remove it",
            ),
            (_, Some(_), None) => (
                "etcd.key",
                "is needed: the PEM file of the certificate's key",
            ),
            (_, None, Some(_)) => (
                "etcd.cert",
                "is needed: the PEM file of the key's certificate",
            ),
            (None, Some(_), Some(_)) => (
                "etcd.cert",
                "has no effect with http; write https in cluster.etcd.endpoints or remove it",
            ),
            _ => match (&self.user, &self.password_file) {
                (Some(_), None) => ("etcd.password_file", "is needed with cluster.etcd.user"),
                (None, Some(_)) => ("etcd.user", "is needed with cluster.etcd.password_file"),
                _ => return Ok(()),
            },
        };
        wrong(reason.0, reason.1)
    }
}

/// What a node answers for is on its disk.
fn check_log(config: &Config) -> Result<(), ConfigError> {
    let log = &config.log;
    if log.sync == Sync::Never {
        let reason = "a node of a cluster has to sync; write always or interval";
        return Err(ConfigError::bad_value("log.sync", reason));
    }
    if log.ack == Ack::Written {
        let reason =
            "a node of a cluster acknowledges what is synced on several nodes; write synced";
        return Err(ConfigError::bad_value("log.ack", reason));
    }
    Ok(())
}

fn wrong(key: &str, reason: impl Into<String>) -> Result<(), ConfigError> {
    Err(ConfigError::bad_value(&format!("cluster.{key}"), reason))
}

/// Whether others can connect to an address that a listener has. On one machine loopback is enough.
fn can_dial(bind: SocketAddr, is_local: bool) -> bool {
    !bind.ip().is_unspecified() && (is_local || !bind.ip().is_loopback())
}

/// `HOST:PORT` that can be connected to.
fn is_address(text: &str) -> bool {
    matches!(hosts::split(text), Some((_, Some(port))) if port > 0)
}
