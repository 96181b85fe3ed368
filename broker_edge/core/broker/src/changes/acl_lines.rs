//! The lines of an ACL file that a change of meaning may affect. The file is valid: [`Acl::load`] has read it.
//!
//! [`Acl::load`]: crate::auth::acl::Acl::load

use crate::auth::file::{lines, split_word};

/// One rule with its line number and section.
#[derive(Debug, PartialEq, Eq)]
pub struct RuleLine<'a> {
    pub number: usize,
    /// The user of its section; `None` before all sections, and for patterns, which apply to everybody.
    pub user: Option<&'a str>,
    /// The text of the line.
    pub text: &'a str,
    /// The access word; `None` for a filter alone, which allows reading and writing.
    access: Option<&'a str>,
}

impl RuleLine<'_> {
    pub fn is_denial(&self) -> bool {
        self.access == Some("deny")
    }

    pub fn is_replay(&self) -> bool {
        self.access == Some("replay")
    }
}

/// The users with an `operator` line.
pub fn operators(text: &str) -> Vec<&str> {
    let mut user = None;
    let mut operators = Vec::new();
    for (_, text) in lines(text) {
        match split_word(text) {
            ("user", name) => user = Some(name),
            ("operator", "") => operators.extend(user),
            _ => {}
        }
    }
    operators
}

/// The rules of a file, in file order.
pub fn rules(text: &str) -> Vec<RuleLine<'_>> {
    let mut user = None;
    let mut rules = Vec::new();
    for (number, text) in lines(text) {
        let (word, rest) = split_word(text);
        match word {
            "user" => user = Some(rest),
            "topic" | "pattern" => {
                let is_pattern = word == "pattern";
                let (first, filter) = split_word(rest);
                rules.push(RuleLine {
                    number,
                    user: user.filter(|_| !is_pattern),
                    text,
                    access: (!filter.is_empty()).then_some(first),
                });
            }
            _ => {}
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::{operators, rules};

    #[test]
    fn a_rule_is_told_with_its_line_and_its_section() {
        let text = "# all\ntopic read a\n\nuser ann b\ntopic replay %c/#\noperator\npattern deny x/%c\npattern y/%u";
        let found = rules(text);
        assert_eq!(operators(text), ["ann b"]);
        let lines: Vec<_> = found.iter().map(|rule| (rule.number, rule.user)).collect();
        assert_eq!(lines, [(2, None), (5, Some("ann b")), (7, None), (8, None)]);
        let facts = |at: usize| {
            let rule = &found[at];
            (rule.is_denial(), rule.is_replay())
        };
        assert_eq!(facts(0), (false, false));
        assert_eq!(facts(1), (false, true));
        assert_eq!(facts(2), (true, false));
        assert_eq!(facts(3), (false, false));
    }
}
