//! Offsets that are gone.

use std::ops::Range;

use crate::ids::Offset;

/// Why offsets are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapKind {
    /// The disk lost or changed them.
    Damage,
    /// Someone asked for their removal.
    Purge,
}

impl GapKind {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Damage => "damage",
            Self::Purge => "purge",
        }
    }
}

/// Offsets from the log start on, below the high watermark, that are gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    pub range: Range<Offset>,
    pub kind: GapKind,
    pub reason: String,
}

impl Gap {
    pub(crate) fn damage(range: Range<Offset>, reason: &str) -> Self {
        Self {
            range,
            kind: GapKind::Damage,
            reason: reason.to_owned(),
        }
    }
}
