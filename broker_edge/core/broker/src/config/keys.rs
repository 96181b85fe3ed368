//! The one table of keys: what each means, what it may hold. Limits, the JSON schema and the check that
//! `conf/broker.yaml` is complete all come from it.

mod check;
mod table;

use serde_json::Value;

use super::units::{Age, ByteSize};

pub(super) use check::check_limits;
pub(crate) use check::is_filter;
pub use table::KEYS;

/// What a key may hold.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Folder,
    File,
    Text,
    Address,
    /// One or several, or none.
    Addresses,
    Bool,
    Whole {
        min: u64,
        max: u64,
    },
    Bytes {
        min: ByteSize,
        max: ByteSize,
    },
    Age {
        min: Age,
        max: Age,
    },
    Choice(&'static [&'static str]),
    LogId,
    Filters,
    /// A list of texts.
    Names,
    Template,
    /// Names of hosts, without a port.
    Hosts,
    /// Origins of web pages: scheme, host, and the port if it is not the usual one.
    Origins,
}

/// One key. `*` in the path stands for each configurable class, `<mqtt>`, `<ws>` and `<tls>` for each of those
/// listeners, `<who>` for tenant and user.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub path: &'static str,
    pub kind: Kind,
    /// Whether it may be left without a value.
    pub optional: bool,
    pub meaning: &'static str,
}

/// What stands in a path for several words.
const PLACES: [(&str, &[&str]); 5] = [
    ("*", &["control", "artifacts", "telemetry"]),
    ("<mqtt>", &["mqtt", "mqtts", "ws", "wss"]),
    ("<ws>", &["ws", "wss"]),
    ("<tls>", &["mqtts", "wss", "flight", "admin"]),
    ("<who>", &["tenant", "user"]),
];

/// Every dotted path, classes written out.
pub fn paths() -> impl Iterator<Item = String> {
    each().map(|(path, _)| path)
}

/// Every key with its path written out.
pub fn each() -> impl Iterator<Item = (String, &'static Key)> {
    KEYS.iter().flat_map(|key| {
        let place = PLACES
            .iter()
            .find(|(place, _)| key.path.contains(place))
            .copied();
        let (place, words) = place.unwrap_or(("*", &[""]));
        words
            .iter()
            .map(move |word| (key.path.replace(place, word), key))
    })
}

pub fn exists(path: &str) -> bool {
    paths().any(|known| known == path)
}

/// The value at a dotted path.
pub(super) fn at<'a>(settings: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(settings, |value, name| &value[name])
}
