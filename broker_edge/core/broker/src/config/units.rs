//! Values that people write with units: sizes (`64MiB`), ages (`1d`), addresses (`127.0.0.1:1883`).

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number of bytes. Written as an integer or with a unit: `B`, `KB`, `MB`, `GB`, `KiB`, `MiB`, `GiB`, `TiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// A span of time. Written with a unit: `ms`, `s`, `m`, `h`, `d`; a bare integer is seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Age(pub Duration);

/// An address to listen on: `IP:PORT`, or `localhost:PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind(pub SocketAddr);

/// Addresses to listen on: one, or several in a list or with commas between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binds(pub Vec<SocketAddr>);

const BYTE_UNITS: [(&str, u64); 8] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];
const AGE_UNITS_MS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

impl ByteSize {
    pub const fn kib(count: u64) -> Self {
        ByteSize(count << 10)
    }
    /// As a length in memory. Limits keep every configured size inside `usize`.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl Age {
    pub const fn from_secs(seconds: u64) -> Self {
        Age(Duration::from_secs(seconds))
    }
    /// In milliseconds. Limits keep every configured time far inside `u64`.
    pub fn as_ms(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Splits `12.5MiB` into the digits and the unit.
fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

fn with_unit(text: &str, units: &[(&str, u64)], bare: u64) -> Option<u64> {
    let (digits, unit) = split_unit(text);
    let count: u64 = digits.parse().ok()?;
    let factor = if unit.is_empty() {
        bare
    } else {
        units
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit))?
            .1
    };
    count.checked_mul(factor)
}

impl FromStr for ByteSize {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        with_unit(text, &BYTE_UNITS, 1)
            .map(ByteSize)
            .ok_or_else(|| {
                format!("`{text}` is not a size; write whole bytes or a unit, for example 64MiB")
            })
    }
}

impl FromStr for Age {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        with_unit(text, &AGE_UNITS_MS, 1_000)
            .map(|ms| Age(Duration::from_millis(ms)))
            .ok_or_else(|| format!("`{text}` is not a span of time; write a whole number and a unit, for example 1d"))
    }
}

impl FromStr for Bind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let numeric = text
            .strip_prefix("localhost:")
            .map(|port| format!("127.0.0.1:{port}"));
        numeric
            .as_deref()
            .unwrap_or(text)
            .parse()
            .map(Bind)
            .map_err(|_| {
                format!("`{text}` is not an address; write IP:PORT, for example 127.0.0.1:1883")
            })
    }
}

impl FromStr for Binds {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let binds = text.split(',').map(str::trim);
        binds
            .filter(|bind| !bind.is_empty())
            .map(|bind| bind.parse::<Bind>().map(|bind| bind.0))
            .collect::<Result<_, _>>()
            .map(Binds)
    }
}

impl Serialize for Binds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0[..] {
            [] => serializer.serialize_none(),
            [one] => serializer.collect_str(one),
            several => serializer.collect_seq(several.iter().map(SocketAddr::to_string)),
        }
    }
}

impl<'de> Deserialize<'de> for Binds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Binds;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address such as 127.0.0.1:1883, or a list of them")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Binds, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Binds, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_unit<E: de::Error>(self) -> Result<Binds, E> {
                Ok(Binds::default())
            }
            fn visit_none<E: de::Error>(self) -> Result<Binds, E> {
                Ok(Binds::default())
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Binds, A::Error> {
                let mut binds = Binds::default();
                while let Some(bind) = seq.next_element::<Bind>()? {
                    binds.0.push(bind.0);
                }
                Ok(binds)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match BYTE_UNITS[..4]
            .iter()
            .find(|(_, factor)| self.0 != 0 && self.0.is_multiple_of(*factor))
        {
            Some((unit, factor)) => write!(f, "{}{unit}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.as_ms();
        match AGE_UNITS_MS
            .iter()
            .find(|(_, factor)| ms != 0 && ms.is_multiple_of(*factor))
        {
            Some((unit, factor)) => write!(f, "{}{unit}", ms / factor),
            None => write!(f, "{ms}ms"),
        }
    }
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Reads a value written as text or as a bare whole number.
struct TextOrNumber<T>(std::marker::PhantomData<T>, &'static str);

impl<T: FromStr<Err = String>> de::Visitor<'_> for TextOrNumber<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.1)
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        number.to_string().parse().map_err(E::custom)
    }
    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        number.to_string().parse().map_err(E::custom)
    }
}

macro_rules! as_text_or_number {
    ($name:ty, $expects:literal) => {
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(TextOrNumber(std::marker::PhantomData, $expects))
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}
as_text_or_number!(ByteSize, "a size such as 64MiB");
as_text_or_number!(Age, "a span of time such as 1d");
as_text_or_number!(Bind, "an address such as 127.0.0.1:1883");
