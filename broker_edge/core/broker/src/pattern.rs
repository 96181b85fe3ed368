//! Regular expressions on topics, for Flight readers. Matching takes time proportional to the topic's length, whatever
//! the expression: look-around and backreferences are not supported, and the size of the compiled expression is
//! limited.

use regex_automata::meta::{Config, Regex};
use regex_automata::nfa::thompson;
use regex_automata::util::syntax;

const TEXT_BYTES_MAX: usize = 4_096;
const PROGRAM_BYTES_MAX: usize = 1 << 20;
const CACHE_BYTES: usize = 256 << 10;
/// The most work of one match, in states times bytes of the topic: about a tenth of a second.
const STEPS_MAX: usize = 16_000_000;

/// An expression that a whole topic must match. Built once per request.
#[derive(Debug)]
pub struct Pattern {
    regex: Regex,
    /// Only patterns that begin with `$` match topics that begin with `$`, as with filters.
    is_of_dollar: bool,
    /// Filters that together match at least all topics that this matches.
    reach: Vec<String>,
    /// States of the compiled expression; each byte of a topic may cost a step in each state.
    states: usize,
}

/// A text that is not a valid expression, or is too large.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a pattern of topics: {}", text.escape_debug(), reason.escape_debug())]
pub struct BadPattern {
    text: String,
    reason: String,
}

impl Pattern {
    /// # Errors
    /// What is wrong with the text.
    pub fn new(text: &str) -> Result<Pattern, BadPattern> {
        let bad = |reason: String| BadPattern {
            text: text.chars().take(200).collect(),
            reason,
        };
        if text.is_empty() || text.len() > TEXT_BYTES_MAX {
            return Err(bad(format!("it must have 1 to {TEXT_BYTES_MAX} bytes")));
        }
        let build = |expression: &str| {
            let config = Config::new()
                .nfa_size_limit(Some(PROGRAM_BYTES_MAX))
                .hybrid_cache_capacity(CACHE_BYTES);
            let syntax = syntax::Config::new().dot_matches_new_line(true);
            let built = Regex::builder()
                .configure(config)
                .syntax(syntax)
                .build(expression);
            built.map_err(|error| {
                let cause = std::error::Error::source(&error);
                let why = cause.map_or(error.to_string(), ToString::to_string);
                let last = why.lines().last().unwrap_or_default();
                bad(last.trim_start_matches("error: ").to_owned())
            })
        };
        // Compiled alone first, so that an unbalanced bracket cannot close the bracket of the anchors.
        build(text)?;
        let regex = build(&format!("^(?:{text})$"))?;
        let syntax = syntax::Config::new().dot_matches_new_line(true);
        let program = thompson::Compiler::new()
            .configure(thompson::Config::new().nfa_size_limit(Some(PROGRAM_BYTES_MAX)))
            .syntax(syntax)
            .build(text)
            .map_err(|error| bad(error.to_string()))?;
        Ok(Pattern {
            regex,
            is_of_dollar: text.starts_with(r"\$") || text.starts_with(r"^\$"),
            reach: reach(text),
            states: program.states().len(),
        })
    }

    pub fn matches(&self, topic: &str) -> bool {
        (self.is_of_dollar || !topic.starts_with('$')) && self.regex.is_match(topic)
    }

    /// Whether matching a topic of this length would take too long, whatever its text.
    pub fn is_too_much_for(&self, topic: &str) -> bool {
        topic.len().saturating_mul(self.states) > STEPS_MAX
    }

    /// Filters that together match at least all topics that this matches.
    pub fn reach(&self) -> &[String] {
        &self.reach
    }
}

/// Derived from the literal levels at the start of the text. An alternative may begin differently, and a quantifier may
/// make the slash before it optional.
fn reach(text: &str) -> Vec<String> {
    let text = text.strip_prefix('^').unwrap_or(text);
    let dollar = if text.starts_with(r"\$") { "$" } else { "" };
    let text = text.strip_prefix(r"\$").unwrap_or(text);
    let literal = text
        .find(|c: char| r"\.+*?()[]{}|^$".contains(c))
        .unwrap_or(text.len());
    let is_slash_sure =
        |slash: usize| slash + 1 < literal || !text[literal..].starts_with(['*', '?', '{']);
    match text[..literal].rfind('/') {
        Some(slash) if !text.contains('|') && is_slash_sure(slash) => {
            vec![format!("{dollar}{}/#", &text[..slash])]
        }
        _ if dollar.is_empty() => vec!["#".to_owned()],
        _ => {
            // An alternative, or a dollar that a quantifier makes optional, also matches topics without one.
            let is_dollar_sure = !text.contains('|') && !text.starts_with(['*', '?', '{']);
            let others = (!is_dollar_sure).then_some("#");
            ["$state/#", "$gaps", "$receipts"]
                .into_iter()
                .chain(others)
                .map(ToOwned::to_owned)
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Pattern, reach};

    #[test]
    fn a_pattern_matches_whole_topics() {
        let pattern = Pattern::new(r"devices/(a|b)\d+/.*").unwrap();
        assert!(pattern.matches("devices/a1/telemetry"));
        assert!(!pattern.matches("x/devices/a1/telemetry"));
        assert!(!pattern.matches("devices/c1/telemetry"));
        // The anchors enclose all alternatives.
        let either = Pattern::new("a|b/c").unwrap();
        assert!(either.matches("a") && either.matches("b/c") && !either.matches("a/c"));
    }

    #[test]
    fn topics_with_a_dollar_are_matched_by_who_names_it() {
        assert!(!Pattern::new(".*").unwrap().matches("$gaps"));
        assert!(Pattern::new(r"\$g.*").unwrap().matches("$gaps"));
    }

    #[test]
    fn what_is_no_expression_or_too_large_is_refused() {
        for text in [
            "",
            "(",
            "a)(b",
            r"(a)\1",
            "(?=a)b",
            "((a{1000}){1000}){1000}",
        ] {
            assert!(Pattern::new(text).is_err(), "{text}");
        }
        assert!(Pattern::new(&"a".repeat(5_000)).is_err());
        let odd = Pattern::new("a\n(").unwrap_err().to_string();
        assert!(
            odd.starts_with(r"`a\n(` is not") && !odd.contains('\n'),
            "{odd}"
        );
    }

    #[test]
    fn a_topic_that_is_too_long_for_the_expression_is_told_before_it_is_matched() {
        let wide = Pattern::new("a/.*a.{800}c.*").unwrap();
        assert!(wide.is_too_much_for(&"a".repeat(60_000)));
        assert!(!wide.is_too_much_for("a/b/c"));
        let plain = Pattern::new("devices/.*/telemetry").unwrap();
        assert!(!plain.is_too_much_for(&"a".repeat(65_535)));
    }

    #[test]
    fn what_it_reaches_covers_what_it_matches() {
        let cases = [
            ("devices/.*/telemetry", "devices/#"),
            ("^devices/(a|b)", "#"),
            ("devices/a?", "devices/#"),
            ("devices/?a", "#"),
            ("a/b|c", "#"),
            (".*", "#"),
            (r"\$state/group/.*", "$state/group/#"),
        ];
        for (text, filter) in cases {
            assert_eq!(reach(text), [filter], "{text}");
        }
        assert_eq!(reach(r"\$g.*").len(), 3);
    }

    #[test]
    fn a_dollar_that_a_topic_need_not_begin_with_hides_no_other_topics() {
        for text in [
            r"^\$SYS/.*|devices/\d+/telemetry",
            r"\$?devices/7/telemetry",
        ] {
            let pattern = Pattern::new(text).unwrap();
            let filters = crate::filter::Filters::of_pattern(pattern);
            assert!(filters.wants("devices/7/telemetry"), "{text}");
        }
    }
}
