//! Where the broker is: `mqtt://`, `mqtts://`, `ws://` and `wss://` addresses; without a scheme it is `mqtt://`. It opens no
//! connection.

use std::net::{SocketAddr, ToSocketAddrs};

/// The layers that an address asks for, by its scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    Mqtt,
    Mqtts,
    Ws,
    Wss,
}

impl Scheme {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "mqtt" => Some(Self::Mqtt),
            "mqtts" => Some(Self::Mqtts),
            "ws" => Some(Self::Ws),
            "wss" => Some(Self::Wss),
            _ => None,
        }
    }

    pub fn is_tls(self) -> bool {
        matches!(self, Self::Mqtts | Self::Wss)
    }

    pub fn is_websocket(self) -> bool {
        matches!(self, Self::Ws | Self::Wss)
    }

    /// The usual port, as `headwater pub` has it.
    fn port(self) -> u16 {
        match self {
            Self::Mqtt => 1883,
            Self::Mqtts => 8883,
            Self::Ws => 8083,
            Self::Wss => 8084,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub scheme: Scheme,
    /// A name or an IP address, without brackets.
    pub host: String,
    pub port: u16,
    /// The path of the WebSocket request.
    pub path: String,
    /// As it was given.
    text: String,
}

/// The path that MQTT over WebSocket usually has.
const WEBSOCKET_PATH: &str = "/mqtt";

impl Address {
    pub fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = match text.split_once("://") {
            None => (Scheme::Mqtt, text),
            Some((name, rest)) => {
                let scheme = Scheme::parse(name).ok_or(format!(
                    "--mqtt: the scheme of `{text}` must be mqtt, mqtts, ws or wss"
                ))?;
                (scheme, rest)
            }
        };
        let (place, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        if place.contains('@') {
            // Not repeated, because it may contain a password.
            return Err(
                "--mqtt takes no credentials: use --user and --password-from, or --token-from"
                    .to_owned(),
            );
        }
        if !scheme.is_websocket() && !matches!(path, "" | "/") {
            return Err(format!(
                "--mqtt: only ws:// and wss:// addresses have a path, unlike `{text}`"
            ));
        }
        let wrong = || format!("--mqtt needs HOST[:PORT], with or without a scheme, not `{text}`");
        let (host, port) = match place.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or_else(wrong)?,
            None => place.split_at(place.rfind(':').unwrap_or(place.len())),
        };
        let port = match port.strip_prefix(':') {
            Some(port) => port.parse().map_err(|_| wrong())?,
            None if port.is_empty() => scheme.port(),
            None => return Err(wrong()),
        };
        if host.is_empty() || (host.contains(':') && !place.starts_with('[')) {
            return Err(wrong());
        }
        Ok(Self {
            scheme,
            host: host.to_owned(),
            port,
            path: if matches!(path, "" | "/") {
                WEBSOCKET_PATH.to_owned()
            } else {
                path.to_owned()
            },
            text: text.to_owned(),
        })
    }

    /// The first address of the host.
    pub fn resolve(&self) -> Result<SocketAddr, String> {
        let mut found = (self.host.as_str(), self.port)
            .to_socket_addrs()
            .map_err(|error| format!("--mqtt: the host of `{}` is unknown: {error}", self.text))?;
        found.next().ok_or(format!(
            "--mqtt: the host of `{}` has no address",
            self.text
        ))
    }

    /// The URI of the WebSocket request.
    pub fn uri(&self) -> String {
        let scheme = if self.scheme.is_tls() { "wss" } else { "ws" };
        let host = if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        format!("{scheme}://{host}:{}{}", self.port, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_scheme_a_host_a_port_and_a_path() {
        for (text, scheme, host, port, uri) in [
            ("h:7", Scheme::Mqtt, "h", 7, "ws://h:7/mqtt"),
            ("mqtt://h", Scheme::Mqtt, "h", 1883, "ws://h:1883/mqtt"),
            ("mqtts://h/", Scheme::Mqtts, "h", 8883, "wss://h:8883/mqtt"),
            ("h", Scheme::Mqtt, "h", 1883, "ws://h:1883/mqtt"),
            ("ws://h", Scheme::Ws, "h", 8083, "ws://h:8083/mqtt"),
            ("wss://h/a?b", Scheme::Wss, "h", 8084, "wss://h:8084/a?b"),
            ("ws://[::1]:9/", Scheme::Ws, "::1", 9, "ws://[::1]:9/mqtt"),
            ("[::1]:9", Scheme::Mqtt, "::1", 9, "ws://[::1]:9/mqtt"),
        ] {
            let address = Address::parse(text).expect(text);
            let found = (address.scheme, address.host.as_str(), address.port);
            assert_eq!(found, (scheme, host, port), "{text}");
            assert_eq!(address.uri(), uri, "{text}");
        }
        let local = Address::parse("mqtts://[::1]").expect("it has no port");
        assert_eq!(local.resolve(), Ok("[::1]:8883".parse().expect("fine")));
    }

    #[test]
    fn what_is_wrong_with_an_address_is_said() {
        for (text, named) in [
            ("http://h:80", "mqtt, mqtts, ws or wss"),
            ("MQTT://h", "mqtt, mqtts, ws or wss"),
            ("h:", "HOST[:PORT]"),
            ("h:70000", "HOST[:PORT]"),
            ("::1", "HOST[:PORT]"),
            ("[::1", "HOST[:PORT]"),
            ("[::1]x", "HOST[:PORT]"),
            ("mqtt://", "HOST[:PORT]"),
            ("mqtt://:7", "HOST[:PORT]"),
            ("mqtt://h/topic", "path"),
        ] {
            let reason = Address::parse(text).expect_err(text);
            assert!(
                reason.contains(named) && reason.contains(text),
                "{text}: {reason}"
            );
        }
        let reason = Address::parse("mqtt://ann:s3cret@h").expect_err("it has a password");
        assert!(
            reason.contains("--password-from") && !reason.contains("s3cret"),
            "{reason}"
        );
    }
}
