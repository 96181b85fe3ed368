//! The numbers and names that identify things in a log. Plain values: nothing here touches a file.

use std::fmt;
use std::str::FromStr;

/// Global number of a partition, given at creation and never changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PartitionId(pub u32);

/// Place of a record in its partition: 0, 1, 2, …
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Offset(pub u64);

/// Term of a partition's writer. Grows at each start, so that an offset reused after a torn tail was cut is told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

impl Offset {
    /// No log gets this far: a file that claims an offset above it is damaged. What is added to one below does not
    /// overflow.
    pub(crate) const BELIEVABLE_MAX: Self = Self(1 << 59);

    /// The offset `records` further on.
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

/// Names one log for ever. It is part of every checksum, so that a batch of another log never passes for one of this.
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
        let dashes_fit = text.len() == 36
            && text
                .bytes()
                .enumerate()
                .all(|(i, b)| (b == b'-') == matches!(i, 8 | 13 | 18 | 23));
        if !dashes_fit {
            return Err(wrong());
        }
        let digits: Vec<u8> = text.bytes().filter(|b| *b != b'-').collect();
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let nibble = |digit: u8| char::from(digit).to_digit(16).ok_or_else(wrong);
            *byte = u8::try_from(nibble(pair[0])? << 4 | nibble(pair[1])?).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
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
