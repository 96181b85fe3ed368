//! Checks text: well-formed UTF-8 without U+0000, control characters and non-characters.
//!
//! The standard forbids U+0000 and surrogates and lets a receiver refuse the others (1.5.4). All are refused in every
//! string, as in Mosquitto: they have no use in a topic or a client id, and they would reach logs and terminals.

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// Non-zero if some byte of `word` is zero. A byte above a zero byte may be marked too; callers only ask whether any is
/// marked.
#[inline]
const fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(LOW) & !word & HIGH
}

/// Non-zero if some byte of `word` is a control character, is not ASCII, or (with `WILDCARDS`) is `+` or `#`.
#[inline]
const fn special_bytes<const WILDCARDS: bool>(word: u64) -> u64 {
    let below_space = word.wrapping_sub(LOW * 0x20) & !word & HIGH;
    let delete = zero_bytes(word ^ (LOW * 0x7f));
    let plain = (word & HIGH) | below_space | delete;
    if WILDCARDS {
        plain | zero_bytes(word ^ (LOW * b'+' as u64)) | zero_bytes(word ^ (LOW * b'#' as u64))
    } else {
        plain
    }
}

/// Whether all bytes are printable ASCII and (with `WILDCARDS`) none is `+` or `#`. It works on eight bytes at a time,
/// because it checks the topic of every publish.
#[inline]
pub(crate) fn is_plain<const WILDCARDS: bool>(bytes: &[u8]) -> bool {
    let Some(last) = bytes.last_chunk::<8>() else {
        let mut word = [b'.'; 8];
        for (place, byte) in word.iter_mut().zip(bytes) {
            *place = *byte;
        }
        return special_bytes::<WILDCARDS>(u64::from_le_bytes(word)) == 0;
    };
    let mut found = special_bytes::<WILDCARDS>(u64::from_le_bytes(*last));
    for chunk in bytes.as_chunks::<8>().0 {
        found |= special_bytes::<WILDCARDS>(u64::from_le_bytes(*chunk));
    }
    found == 0
}

/// The bytes as text, if they are text.
#[must_use]
#[inline]
pub fn check(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    (is_plain::<false>(bytes) || text.chars().all(is_allowed)).then_some(text)
}

/// Whether a string may contain the character.
const fn is_allowed(c: char) -> bool {
    let code = c as u32;
    !matches!(code, 0..=0x1f | 0x7f..=0x9f | 0xfdd0..=0xfdef) && code & 0xfffe != 0xfffe
}
