//! The numbers and names that identify things in a log. Plain values: nothing here touches a file.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Global number of a partition, given at creation and never changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PartitionId(pub u32);

/// Position of a record in its partition: 0, 1, 2, …
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Offset(pub u64);

/// Term of a partition's writer. Grows at each start: records that got the same offset before and after a torn tail was
/// cut differ in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

impl Offset {
    /// No log gets this far: a file that names a higher offset is damaged. Additions to offsets below it do not
    /// overflow.
    pub(crate) const BELIEVABLE_MAX: Self = Self(1 << 59);

    /// The offset after this many records.
    #[must_use]
    pub fn plus(self, records: u64) -> Self {
        Self(self.0 + records)
    }
}

macro_rules! display_number {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    )*};
}
display_number!(PartitionId, Offset, Epoch);

/// Names a log for ever. It is part of every checksum, so that a batch of another log is never accepted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId([u8; 16]);

impl LogId {
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// A version 4 UUID made of 16 random bytes.
    #[must_use]
    pub const fn from_random(mut bytes: [u8; 16]) -> Self {
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Self(bytes)
    }
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a log id: expected a UUID such as 0b0e3f7c-5a51-4c0a-9f5e-2d1f6f0c7a11")]
pub struct ParseLogIdError {
    pub text: String,
}

impl FromStr for LogId {
    type Err = ParseLogIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseLogIdError {
            text: text.to_owned(),
        };
        let fits = |(at, byte): (usize, u8)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        };
        if text.len() != 36 || !text.bytes().enumerate().all(fits) {
            return Err(wrong());
        }
        let number = u128::from_str_radix(&text.replace('-', ""), 16).map_err(|_| wrong())?;
        Ok(Self(number.to_be_bytes()))
    }
}

/// Names the data folder of a member of a cluster: made with the folder, random, and kept in `log.meta`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskId(pub u64);

impl fmt::Display for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for DiskId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DiskId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom("the disk id is not 16 hexadecimal digits");
        of_hex(&text).map(Self).ok_or_else(wrong)
    }
}

/// A number of exactly 16 hexadecimal digits.
fn of_hex(text: &str) -> Option<u64> {
    let is_hex = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    u64::from_str_radix(text, 16).ok().filter(|_| is_hex)
}

/// Part of every checksum, and known only inside the data folder. The log id is public, so without the secret a payload
/// could hold bytes that look like a batch. It is never shown, not even by `Debug`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; 8]);

impl Secret {
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

/// 16 hexadecimal digits, for `log.meta` alone.
impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:016x}", u64::from_be_bytes(self.0)))
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The error does not contain the text: it may be almost the secret.
        let wrong = || serde::de::Error::custom("the secret is not 16 hexadecimal digits");
        let text = String::deserialize(deserializer)?;
        Ok(Self(of_hex(&text).ok_or_else(wrong)?.to_be_bytes()))
    }
}

/// A set of partitions with its own retention. The number is what segment headers carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    Internal = 0,
    Control = 1,
    Artifacts = 2,
    Telemetry = 3,
}

impl Class {
    pub const ALL: [Self; 4] = [
        Self::Internal,
        Self::Control,
        Self::Artifacts,
        Self::Telemetry,
    ];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Internal => "internal",
            Self::Control => "control",
            Self::Artifacts => "artifacts",
            Self::Telemetry => "telemetry",
        }
    }

    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }

    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|class| *class as u8 == number)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_id_reads_back_its_own_text() {
        let id = LogId::from_random([7; 16]);
        assert_eq!(id.to_string().parse::<LogId>(), Ok(id));
        assert_eq!(id.to_string().len(), 36);
    }

    #[test]
    fn a_secret_reads_back_from_log_meta_and_is_not_shown() {
        let secret = Secret::from_bytes([0, 1, 2, 3, 0xfc, 0xfd, 0xfe, 0xff]);
        let text = serde_json::to_string(&secret).expect("text");
        assert_eq!(text, "\"00010203fcfdfeff\"");
        assert_eq!(serde_json::from_str::<Secret>(&text).ok(), Some(secret));
        assert!(!format!("{secret:?}").contains("fc"));
        for wrong in ["\"\"", "\"+0010203fcfdfeff\"", "\"00010203fcfdfef\"", "7"] {
            let error = serde_json::from_str::<Secret>(wrong).expect_err("refused");
            assert!(!error.to_string().contains("0203"), "{error}");
        }
    }

    #[test]
    fn wrong_log_ids_are_refused() {
        for text in [
            "",
            "x",
            "0b0e3f7c-5a51-4c0a-9f5e-2d1f6f0c7a1g",
            "0b0e3f7c55a51-4c0a-9f5e-2d1f6f0c7a11",
            "0b0e3f7c-5a51-4c0a-9f5e-2d1f6f0c7a1é",
        ] {
            assert!(text.parse::<LogId>().is_err(), "{text}");
        }
    }
}
