//! The `Range` header (RFC 9110, section 14): which bytes a request asks for.

use std::ops::Range;

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum RequestedRange {
    Whole,
    Part(Range<u64>),
    /// The range begins after the end.
    Nothing,
}

/// Supports a single range of bytes. Several ranges, other units and invalid ranges mean the whole, which a server may
/// always send instead.
pub fn wanted(header: Option<&str>, size: u64) -> RequestedRange {
    let range = header.and_then(|text| text.trim().strip_prefix("bytes="));
    let Some((first, last)) = range.and_then(|range| range.trim().split_once('-')) else {
        return RequestedRange::Whole;
    };
    // This also refuses a comma, a second dash or a sign.
    match (number(first), number(last)) {
        (Some(first), _) if !last.is_empty() && number(last).is_none_or(|last| last < first) => {
            RequestedRange::Whole
        }
        (Some(first), _) if first >= size => RequestedRange::Nothing,
        (Some(first), None) => RequestedRange::Part(first..size),
        (Some(first), Some(last)) => RequestedRange::Part(first..last.saturating_add(1).min(size)),
        // Nothing has no last bytes.
        (None, Some(count)) if first.is_empty() && (count == 0 || size == 0) => {
            RequestedRange::Nothing
        }
        (None, Some(count)) if first.is_empty() => {
            RequestedRange::Part(size.saturating_sub(count)..size)
        }
        _ => RequestedRange::Whole,
    }
}

fn number(text: &str) -> Option<u64> {
    let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // A number too large for `u64` is larger than any size.
    is_digits.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::{RequestedRange, wanted};

    fn of(text: &str) -> RequestedRange {
        wanted(Some(text), 1_000)
    }

    #[test]
    fn one_range_is_a_part() {
        assert_eq!(of("bytes=0-0"), RequestedRange::Part(0..1));
        assert_eq!(of("bytes=10-19"), RequestedRange::Part(10..20));
        assert_eq!(of("bytes=990-5000"), RequestedRange::Part(990..1_000));
        assert_eq!(of("bytes=990-"), RequestedRange::Part(990..1_000));
        assert_eq!(of("bytes=-10"), RequestedRange::Part(990..1_000));
        assert_eq!(of("bytes=-5000"), RequestedRange::Part(0..1_000));
        let huge = "9".repeat(40);
        assert_eq!(
            of(&format!("bytes=5-{huge}")),
            RequestedRange::Part(5..1_000)
        );
    }

    #[test]
    fn a_range_behind_the_end_is_nothing() {
        assert_eq!(of("bytes=1000-"), RequestedRange::Nothing);
        assert_eq!(of("bytes=1000-2000"), RequestedRange::Nothing);
        assert_eq!(of("bytes=-0"), RequestedRange::Nothing);
        assert_eq!(wanted(Some("bytes=-5"), 0), RequestedRange::Nothing);
        assert_eq!(
            of(&format!("bytes={}-", "9".repeat(40))),
            RequestedRange::Nothing
        );
    }

    #[test]
    fn several_ranges_and_what_is_none_mean_the_whole() {
        assert_eq!(wanted(None, 1_000), RequestedRange::Whole);
        for text in [
            "bytes=0-1,5-6",
            "bytes=0-1,",
            "bytes=9-1",
            "bytes=a-b",
            "bytes=+1-2",
            "bytes=-",
            "bytes=--5",
            "bytes=1",
            "bytes=",
            "items=0-1",
            "0-1",
            "",
        ] {
            assert_eq!(of(text), RequestedRange::Whole, "{text}");
        }
    }
}
