//! The host names that this broker answers to, and the web pages that count as its own.
//!
//! A browser sends the requests of any page, and the name of a foreign page may be made to resolve to this broker (DNS
//! rebinding). For the browser the page and the broker then have the same origin, and only the name in `Host` gives the
//! attack away. So only names are trusted that nobody else can point at this machine: addresses, `localhost`, the
//! machine's own name, and names in the settings.

use std::net::{Ipv4Addr, Ipv6Addr};

use tonic::codegen::http::HeaderMap;
use tonic::codegen::http::header::HOST;

/// The longest DNS name.
const NAME_BYTES_MAX: usize = 253;

/// The trusted names.
#[derive(Debug, Clone, Default)]
pub struct Hosts {
    /// In lower case. A name that begins with `*.` matches all names below it.
    names: Vec<String>,
}

impl Hosts {
    /// The machine's own name, and `listed`.
    pub fn new(listed: &[String]) -> Hosts {
        let own = machine_name();
        let short = own.as_deref().and_then(|name| name.split('.').next());
        let own = own.iter().map(String::as_str).chain(short);
        let listed = listed.iter().map(String::as_str);
        Hosts {
            names: own.chain(listed).map(normal).collect(),
        }
    }

    /// Whether a host name or address, as returned by [`split`], is trusted.
    pub fn knows(&self, host: &str) -> bool {
        if is_address(host) {
            return true;
        }
        let host = normal(host);
        host == "localhost"
            || host.ends_with(".localhost")
            || self.names.iter().any(|name| match name.strip_prefix('*') {
                Some(below) => host.len() > below.len() && host.ends_with(below),
                None => *name == host,
            })
    }
}

/// Splits `host[:port]`; `None` if the host is neither a name nor an address.
pub fn split(authority: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match authority.rfind(':') {
        Some(at) if !authority[at..].contains(']') => {
            let port = &authority[at + 1..];
            let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
            if !digits {
                return None;
            }
            (&authority[..at], Some(port.parse().ok()?))
        }
        _ => (authority, None),
    };
    (is_address(host) || is_name(host)).then_some((host, port))
}

/// The host and the port that the caller of a request has called, as [`split`] tells them.
pub fn called(headers: &HeaderMap) -> Option<(&str, Option<u16>)> {
    split(headers.get(HOST)?.to_str().ok()?)
}

/// The origin of a web page, as a browser sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    scheme: String,
    host: String,
    port: Option<u16>,
}

impl Origin {
    /// `None` for `null` and other values without a host.
    pub fn parse(text: &str) -> Option<Origin> {
        let (scheme, authority) = text.split_once("://")?;
        let (host, port) = split(authority)?;
        let scheme = scheme.to_ascii_lowercase();
        let usual = usual_port(&scheme);
        Some(Origin {
            host: normal(host),
            port: port.or(usual),
            scheme,
        })
    }

    pub fn is_of_host(&self, host: &str) -> bool {
        self.host == normal(host)
    }

    /// Whether it is the origin of pages at `scheme://host[:port]`.
    pub fn is_of(&self, scheme: &str, host: &str, port: Option<u16>) -> bool {
        self.scheme == scheme && self.is_at(host, port)
    }

    /// The same for any scheme: behind a proxy that terminates TLS, the broker's scheme differs from the page's.
    pub fn is_at(&self, host: &str, port: Option<u16>) -> bool {
        self.is_of_host(host) && self.port == port.or(usual_port(&self.scheme))
    }
}

fn usual_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" | "ws" => Some(80),
        "https" | "wss" => Some(443),
        _ => None,
    }
}

/// The pages that may use a WebSocket without showing a secret.
#[derive(Debug, Clone, Default)]
pub struct Origins {
    listed: Vec<Origin>,
    hosts: Hosts,
}

impl Origins {
    pub fn new(listed: &[String], hosts: &Hosts) -> Origins {
        Origins {
            listed: listed
                .iter()
                .filter_map(|text| Origin::parse(text))
                .collect(),
            hosts: hosts.clone(),
        }
    }

    /// Whether a page at `origin` that used the name `host` for this broker is foreign.
    pub fn is_foreign(&self, origin: &str, host: Option<&str>) -> bool {
        let Some(origin) = Origin::parse(origin) else {
            return true;
        };
        if self.listed.contains(&origin) {
            return false;
        }
        let own = host.and_then(split);
        !own.is_some_and(|(host, _)| origin.is_of_host(host) && self.hosts.knows(host))
    }
}

/// Checks a name for `admin.hosts`.
///
/// # Errors
/// What to write instead.
pub fn check_name(name: &str) -> Result<(), String> {
    let plain = name.strip_prefix("*.").unwrap_or(name);
    if is_name(plain) {
        return Ok(());
    }
    Err(format!(
        "`{}` is not a host name; write one without scheme and port, for example broker.example.com or \
         *.example.com",
        name.escape_debug()
    ))
}

/// Checks an origin for `listeners.ws.origins`.
///
/// # Errors
/// What to write instead.
pub fn check_origin(origin: &str) -> Result<(), String> {
    match Origin::parse(origin) {
        Some(Origin { scheme, .. }) if matches!(&*scheme, "http" | "https") => Ok(()),
        _ => Err(format!(
            "`{}` is not the origin of a web page; write scheme and host, for example https://app.example.com",
            origin.escape_debug()
        )),
    }
}

/// In lower case, and without the final dot of a fully qualified name.
fn normal(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

fn is_address(host: &str) -> bool {
    let v6 = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    match v6 {
        Some(v6) => v6.parse::<Ipv6Addr>().is_ok(),
        None => host.parse::<Ipv4Addr>().is_ok(),
    }
}

fn is_name(host: &str) -> bool {
    let name = host.strip_suffix('.').unwrap_or(host);
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.bytes().all(fits)
        && !name.split('.').any(str::is_empty)
}

fn machine_name() -> Option<String> {
    let files = ["/proc/sys/kernel/hostname", "/etc/hostname"];
    let text = files
        .iter()
        .find_map(|file| std::fs::read_to_string(file).ok())?;
    let name = text.trim();
    is_name(name).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> Hosts {
        Hosts {
            names: ["broker.example.com", "*.plant.example", "m1"]
                .map(str::to_owned)
                .to_vec(),
        }
    }

    #[test]
    fn addresses_localhost_and_listed_names_are_known_and_no_other() {
        let hosts = hosts();
        for known in [
            "127.0.0.1",
            "192.0.2.7",
            "[::1]",
            "localhost",
            "LOCALHOST.",
            "a.localhost",
            "Broker.Example.com",
            "broker.example.com.",
            "a.plant.example",
            "a.b.plant.example",
            "m1",
        ] {
            assert!(hosts.knows(known), "{known}");
        }
        for foreign in [
            "evil.example",
            "notlocalhost",
            "localhost.evil.example",
            "broker.example.com.evil.example",
            "evilbroker.example.com",
            "plant.example",
            "evilplant.example",
            "127.0.0.1.evil.example",
            "2130706433",
            "::1",
            "m1.evil.example",
        ] {
            assert!(!hosts.knows(foreign), "{foreign}");
        }
    }

    #[test]
    fn an_authority_that_is_none_has_no_host() {
        assert_eq!(split("h:80"), Some(("h", Some(80))));
        assert_eq!(split("[::1]:80"), Some(("[::1]", Some(80))));
        assert_eq!(split("[::1]"), Some(("[::1]", None)));
        for bad in [
            "", ":80", "h:", "h:x", "h:99999", "a@h", "a b", "h/x", "::1", "h,i", "a..b", "[::1",
            ".", "h\u{e9}",
        ] {
            assert_eq!(split(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_page_is_foreign_unless_it_is_of_the_host_it_calls_or_listed() {
        let origins = Origins::new(&["https://app.example".to_owned()], &hosts());
        let is_foreign = |origin: &str, host: &str| origins.is_foreign(origin, Some(host));
        assert!(!is_foreign("http://127.0.0.1:3000", "127.0.0.1:8083"));
        assert!(!is_foreign(
            "https://broker.example.com",
            "broker.example.com:8084"
        ));
        assert!(!is_foreign("https://app.example", "203.0.113.9:8084"));
        assert!(!is_foreign("https://app.example:443", "203.0.113.9:8084"));
        assert!(
            is_foreign("http://app.example", "203.0.113.9:8084"),
            "another scheme"
        );
        assert!(
            is_foreign("https://app.example:8443", "203.0.113.9:8084"),
            "another port"
        );
        assert!(is_foreign("https://evil.example", "127.0.0.1:8083"));
        assert!(is_foreign("null", "127.0.0.1:8083"));
        assert!(is_foreign("", "127.0.0.1:8083"));
        assert!(
            is_foreign("http://evil.example", "evil.example:8083"),
            "rebinding"
        );
        assert!(origins.is_foreign("http://127.0.0.1", None));
    }

    #[test]
    fn settings_name_hosts_and_origins_and_nothing_else() {
        for good in ["broker.example.com", "*.example.com", "m1"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "*", "http://h", "h:80", "a b", "*.", "*.*.example"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        assert!(check_origin("https://app.example").is_ok());
        for bad in ["app.example", "*", "null", "ftp://h", "https://h/path"] {
            assert!(check_origin(bad).is_err(), "{bad}");
        }
    }
}
