//! Topic names and filters, and which of them match.

use headwater_mqtt::topic::{
    LEN_MAX, LEVELS_MAX, TopicError, check_filter, check_name, parse_shared,
};
use headwater_mqtt::{TopicName, filter_matches, text};
use proptest::prelude::*;

use crate::codec::strategies;

#[test]
fn filters_match_level_by_level() {
    for (filter, topic, wanted) in [
        ("a/b", "a/b", true),
        ("a/b", "a/bc", false),
        ("a/b", "a/b/", false),
        ("a/b", "A/b", false),
        ("a/+", "a/b", true),
        ("a/+", "a", false),
        ("a/+", "a/", true),
        ("a/+", "a/b/c", false),
        ("a/+/c", "a//c", true),
        ("+", "a", true),
        ("+", "/a", false),
        ("+/+", "/a", true),
        ("/+", "/a", true),
        ("#", "a/b/c", true),
        ("#", "/", true),
        ("a/#", "a", true),
        ("a/#", "a/b/c", true),
        ("a/#", "ab", false),
        ("a/+/#", "a", false),
        ("a/+/#", "a/b", true),
        ("+/#", "a", true),
        ("/", "/", true),
        ("ä/+", "ä/水", true),
    ] {
        assert_eq!(filter_matches(filter, topic), wanted, "{filter} on {topic}");
    }
}

#[test]
fn topics_with_a_dollar_are_hidden_from_leading_wildcards() {
    assert!(!filter_matches("#", "$SYS/uptime"));
    assert!(!filter_matches("+/uptime", "$SYS/uptime"));
    assert!(filter_matches("$SYS/#", "$SYS/uptime"));
    assert!(filter_matches("$SYS/+", "$SYS/uptime"));
    assert!(filter_matches("a/+", "a/$b"), "only the first level hides");
}

#[test]
fn names_have_no_wildcards_and_no_strange_characters() {
    for name in [
        "a",
        "/",
        "a/b c/ä水🦀",
        "$SYS/x",
        "devices/0123456789abcdef/telemetry",
    ] {
        assert_eq!(check_name(name.as_bytes()), Ok(()), "{name}");
        assert_eq!(
            TopicName::parse(name.as_bytes()).map(TopicName::as_str),
            Ok(name)
        );
    }
    assert_eq!(check_name(b""), Err(TopicError::Empty));
    for name in ["+", "a/#", "a/b+c", "devices/0123456789abcdef/#"] {
        assert_eq!(
            check_name(name.as_bytes()),
            Err(TopicError::Wildcard),
            "{name}"
        );
    }
    for name in [
        &b"a\0"[..],
        b"\x1f",
        b"a\x7f",
        "a\u{9f}".as_bytes(),
        "\u{ffff}".as_bytes(),
        b"\xed\xa0\x80",
        b"\xff",
    ] {
        assert_eq!(check_name(name), Err(TopicError::NotText), "{name:02x?}");
        assert_eq!(check_filter(name), Err(TopicError::NotText), "{name:02x?}");
    }
}

#[test]
fn wildcards_take_whole_levels() {
    for filter in ["#", "+", "a/+/b", "+/+", "a/#", "/#", "$share/g/#"] {
        assert_eq!(check_filter(filter.as_bytes()), Ok(()), "{filter}");
    }
    for filter in ["a#", "#/a", "a/#/b", "a+", "+a", "a/b+/c", "##", "++"] {
        assert_eq!(
            check_filter(filter.as_bytes()),
            Err(TopicError::Wildcard),
            "{filter}"
        );
    }
    assert_eq!(check_filter(b""), Err(TopicError::Empty));
}

#[test]
fn depth_and_length_are_bounded() {
    let deep = vec!["a"; LEVELS_MAX].join("/");
    assert_eq!(check_name(deep.as_bytes()), Ok(()));
    assert_eq!(check_filter(deep.as_bytes()), Ok(()));
    let deeper = format!("{deep}/a");
    assert_eq!(
        check_name(deeper.as_bytes()),
        Err(TopicError::TooManyLevels)
    );
    assert_eq!(
        check_filter(deeper.as_bytes()),
        Err(TopicError::TooManyLevels)
    );
    assert_eq!(
        check_name("/".repeat(LEVELS_MAX).as_bytes()),
        Err(TopicError::TooManyLevels)
    );
    assert_eq!(check_name("a".repeat(LEN_MAX).as_bytes()), Ok(()));
    assert_eq!(
        check_name("a".repeat(LEN_MAX + 1).as_bytes()),
        Err(TopicError::TooLong)
    );
}

#[test]
fn a_shared_filter_has_a_group_and_a_filter() {
    let parts = |filter| {
        parse_shared(filter).map(|shared| shared.map(|shared| (shared.group, shared.filter)))
    };
    assert_eq!(parts("a/b"), Ok(None));
    assert_eq!(parts("$share"), Ok(None));
    assert_eq!(parts("$shared/a"), Ok(None));
    assert_eq!(parts("$share/g/a/#"), Ok(Some(("g", "a/#"))));
    assert_eq!(parts("$share/g//a"), Ok(Some(("g", "/a"))));
    for filter in [
        "$share/",
        "$share/g",
        "$share/g/",
        "$share//a",
        "$share/+/a",
        "$share/a#/b",
    ] {
        assert_eq!(parts(filter), Err(TopicError::Share), "{filter}");
    }
}

/// Matching as the standard defines it, level by level, not optimized.
fn matches_by_the_book(filter: &[&str], topic: &[&str]) -> bool {
    match (filter, topic) {
        (["#"], _) | ([], []) => true,
        (["+", filter @ ..], [_, topic @ ..]) => matches_by_the_book(filter, topic),
        ([wanted, filter @ ..], [level, topic @ ..]) => {
            wanted == level && matches_by_the_book(filter, topic)
        }
        _ => false,
    }
}

/// The rule for text, one character at a time.
fn is_text_by_the_book(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| {
        text.chars().all(|c| {
            !c.is_control()
                && !('\u{fdd0}'..='\u{fdef}').contains(&c)
                && c as u32 & 0xfffe != 0xfffe
        })
    })
}

proptest! {
    #[test]
    fn matching_agrees_with_the_standard(filter in strategies::filter(), topic in "[a-c/]{1,12}") {
        let filter = filter.strip_prefix("$share/group/").unwrap_or(&filter);
        prop_assume!(!filter.is_empty());
        let wanted = matches_by_the_book(&filter.split('/').collect::<Vec<_>>(), &topic.split('/').collect::<Vec<_>>());
        prop_assert_eq!(filter_matches(filter, &topic), wanted);
    }

    #[test]
    fn text_is_recognised_at_every_length_and_place(prefix in "[ -~]{0,30}", odd in prop_oneof![any::<char>(), prop::char::range('\0', '\u{a0}')], suffix in "[ -~]{0,30}") {
        let whole = format!("{prefix}{odd}{suffix}");
        prop_assert_eq!(text::check(whole.as_bytes()).is_some(), is_text_by_the_book(whole.as_bytes()));
        let wanted = is_text_by_the_book(whole.as_bytes()) && !whole.contains(['+', '#']);
        let few_levels = whole.matches('/').count() < LEVELS_MAX;
        prop_assert_eq!(check_name(whole.as_bytes()).is_ok(), wanted && few_levels);
    }

    #[test]
    fn bytes_that_are_not_text_are_never_a_topic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        prop_assert_eq!(text::check(&bytes).is_some(), is_text_by_the_book(&bytes));
        if check_name(&bytes).is_ok() || check_filter(&bytes).is_ok() {
            prop_assert!(is_text_by_the_book(&bytes));
        }
    }
}
