//! Topic names and topic filters: whether they are well formed, and which filter matches which name.
//!
//! Permissions and subscriptions are not known here.

use crate::text;

/// The most levels that a name or a filter may have. This bounds the work of matching; Mosquitto has the same limit.
pub const LEVELS_MAX: usize = 200;

/// The longest string that MQTT can carry, in bytes.
pub const LEN_MAX: usize = u16::MAX as usize;

/// Why a topic name or filter is not well formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    #[error("a topic has at least one character")]
    Empty,
    #[error("a topic has at most {LEN_MAX} bytes")]
    TooLong,
    #[error("a topic has at most {LEVELS_MAX} levels")]
    TooManyLevels,
    #[error("a topic is UTF-8 text without control characters")]
    NotText,
    #[error(
        "a topic name has no wildcard; in a filter '+' is a whole level and '#' is the whole last level"
    )]
    Wildcard,
    #[error("a shared subscription is $share/<group>/<filter>, and <group> has no wildcard")]
    Share,
}

/// A well-formed topic name, borrowed from a packet. It stays bytes, because the broker looks up known topics by their
/// bytes and does not need the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TopicName<'a> {
    /// Valid UTF-8: checked when the value was built.
    bytes: &'a [u8],
}

impl<'a> TopicName<'a> {
    /// The topic of a publish that has only a topic alias.
    pub const EMPTY: Self = Self { bytes: &[] };

    /// # Errors
    /// The bytes are not a topic name.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, TopicError> {
        check_name(bytes)?;
        Ok(Self { bytes })
    }

    #[must_use]
    #[inline]
    pub const fn as_bytes(self) -> &'a [u8] {
        self.bytes
    }

    #[must_use]
    pub fn as_str(self) -> &'a str {
        std::str::from_utf8(self.bytes)
            .expect("a topic name is checked to be UTF-8 when it is built")
    }

    #[must_use]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.bytes.is_empty()
    }
}

/// Checks that the bytes are a topic name.
///
/// # Errors
/// The first rule that they break.
#[inline]
pub fn check_name(bytes: &[u8]) -> Result<(), TopicError> {
    if bytes.is_empty() {
        return Err(TopicError::Empty);
    }
    // Nearly every topic is short and plain. Under LEVELS_MAX bytes there cannot be too many levels.
    if bytes.len() < LEVELS_MAX && text::is_plain::<true>(bytes) {
        return Ok(());
    }
    check_text(bytes)?;
    if bytes.iter().any(|byte| matches!(byte, b'+' | b'#')) {
        Err(TopicError::Wildcard)
    } else {
        Ok(())
    }
}

/// Checks that the bytes are a topic filter. For a shared subscription this checks the whole string as one filter; see
/// [`parse_shared`] for its other rules.
///
/// # Errors
/// The first rule that they break.
pub fn check_filter(bytes: &[u8]) -> Result<(), TopicError> {
    check_text(bytes)?;
    let mut levels = bytes.split(|byte| *byte == b'/').peekable();
    while let Some(level) = levels.next() {
        let last = levels.peek().is_none();
        let whole = match level {
            b"+" => true,
            b"#" => last,
            _ => !level.iter().any(|byte| matches!(byte, b'+' | b'#')),
        };
        if !whole {
            return Err(TopicError::Wildcard);
        }
    }
    Ok(())
}

fn check_text(bytes: &[u8]) -> Result<(), TopicError> {
    if bytes.is_empty() {
        return Err(TopicError::Empty);
    }
    if bytes.len() > LEN_MAX {
        return Err(TopicError::TooLong);
    }
    text::check(bytes).ok_or(TopicError::NotText)?;
    if bytes.iter().filter(|byte| **byte == b'/').count() >= LEVELS_MAX {
        return Err(TopicError::TooManyLevels);
    }
    Ok(())
}

/// A filter that the members of a group share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedFilter<'a> {
    pub group: &'a str,
    pub filter: &'a str,
}

/// The parts of `$share/<group>/<filter>`; `None` for a filter that is not shared.
///
/// # Errors
/// A shared subscription without a group or a filter, or with a wildcard in its group.
pub fn parse_shared(filter: &str) -> Result<Option<SharedFilter<'_>>, TopicError> {
    let Some(rest) = filter.strip_prefix("$share/") else {
        return Ok(None);
    };
    match rest.split_once('/') {
        Some((group, filter))
            if !group.is_empty() && !group.contains(['+', '#']) && !filter.is_empty() =>
        {
            Ok(Some(SharedFilter { group, filter }))
        }
        _ => Err(TopicError::Share),
    }
}

/// Whether a well-formed filter matches a well-formed topic name (4.7). A filter that begins with a wildcard does not
/// match names that begin with `$`.
#[must_use]
pub fn filter_matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let (mut filter, mut topic) = (Some(filter), Some(topic));
    while let Some(text) = filter {
        let (wanted, next) = match text.split_once('/') {
            Some((wanted, next)) => (wanted, Some(next)),
            None => (text, None),
        };
        if wanted == "#" {
            return true;
        }
        let Some(levels) = topic else { return false };
        // A level may be long: only `+` has to find its end.
        topic = if wanted == "+" {
            levels.split_once('/').map(|(_, rest)| rest)
        } else {
            match levels.strip_prefix(wanted) {
                Some("") => None,
                Some(rest) if rest.starts_with('/') => Some(&rest[1..]),
                _ => return false,
            }
        };
        filter = next;
    }
    topic.is_none()
}
