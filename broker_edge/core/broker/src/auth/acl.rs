//! The ACL file: Mosquitto's syntax, and who is meant by which rule.
//!
//! `user NAME` begins a section; `topic [ACCESS] FILTER` in it is for that user, in front of all sections for clients
//! without credentials; `pattern [ACCESS] FILTER` is for everybody, with `%c` and `%u`. Beyond Mosquitto there are the
//! access word `replay` and the line `operator`. What no line allows is denied.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::Access;
use super::file::{FileError, lines, read};
use super::rules::{Allowed, Names, RuleFilter, Rules, Verdict};

/// The section of one user, or that of clients without credentials.
#[derive(Debug, Default)]
pub struct Section {
    rules: Rules,
    is_operator: bool,
}

#[derive(Debug, Default)]
pub struct Acl {
    anonymous: Arc<Section>,
    users: HashMap<Box<str>, Arc<Section>>,
    patterns: Rules,
}

impl Section {
    pub fn is_operator(&self) -> bool {
        self.is_operator
    }
}

impl Acl {
    /// # Errors
    /// A file that cannot be read, or the first line that says nothing sensible.
    pub fn load(file: &Path) -> Result<Self, FileError> {
        Self::parse(&read(file)?).map_err(|(line, reason)| FileError::Line {
            file: file.to_owned(),
            line,
            reason,
        })
    }

    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut anonymous = Section::default();
        let mut users: HashMap<Box<str>, Section> = HashMap::new();
        let mut patterns = Rules::default();
        let mut user: Option<&str> = None;
        for (number, line) in lines(text) {
            let at = |reason: String| (number, reason);
            let (word, rest) = split_word(line);
            let section = match user {
                Some(name) => users.entry(name.into()).or_default(),
                None => &mut anonymous,
            };
            match word {
                "user" if rest.is_empty() => {
                    return Err(at("write the user's name behind `user`".into()));
                }
                "user" => user = Some(rest),
                "topic" => add(&mut section.rules, rest, RuleFilter::plain).map_err(at)?,
                "pattern" => add(&mut patterns, rest, RuleFilter::pattern).map_err(at)?,
                "operator" if rest.is_empty() && user.is_some() => section.is_operator = true,
                "operator" => {
                    return Err(at("write `operator` alone in the section of a user".into()));
                }
                // Not quoted: where a password file is named by mistake, the line holds somebody's hash.
                other => {
                    let guess = if other.contains(':') {
                        " (is this a password file? that is `auth.password_file`)"
                    } else {
                        ""
                    };
                    return Err(at(format!(
                        "a line begins with user, topic, pattern or operator{guess}"
                    )));
                }
            }
            if let Some(name) = user {
                users.entry(name.into()).or_default();
            }
        }
        Ok(Self {
            anonymous: Arc::new(anonymous),
            users: users
                .into_iter()
                .map(|(name, section)| (name, Arc::new(section)))
                .collect(),
            patterns,
        })
    }

    /// The section that is about a user; the empty one for a user that has none.
    pub fn section(&self, user: Option<&str>) -> Arc<Section> {
        match user {
            None => Arc::clone(&self.anonymous),
            Some(name) => self.users.get(name).map(Arc::clone).unwrap_or_default(),
        }
    }

    /// Whether something may be done: the section decides, and where it is silent the patterns do.
    pub fn allows(
        &self,
        section: &Section,
        access: Access,
        target: Target<'_>,
        names: &Names<'_>,
    ) -> bool {
        let verdict = match target.ask(&section.rules, access, names) {
            Verdict::Silent => target.ask(&self.patterns, access, names),
            verdict => verdict,
        };
        verdict == Verdict::Allowed
    }

    /// Whether a user may do something so with any topic at all.
    pub fn allows_some(&self, section: &Section, access: Access) -> bool {
        section.rules.allow_some(access) || self.patterns.allow_some(access)
    }
}

/// What is asked about.
#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    Topic(&'a str),
    Filter(&'a str),
}

impl Target<'_> {
    pub fn ask(self, rules: &Rules, access: Access, names: &Names<'_>) -> Verdict {
        match self {
            Self::Topic(topic) => rules.on_topic(access, topic, names),
            Self::Filter(filter) => rules.on_filter(access, filter, names),
        }
    }
}

fn split_word(line: &str) -> (&str, &str) {
    match line.split_once(|c: char| c.is_ascii_whitespace()) {
        Some((word, rest)) => (word, rest.trim_start()),
        None => (line, ""),
    }
}

/// Adds the rule behind `topic` or `pattern`: a filter alone is for reading and writing.
fn add(
    rules: &mut Rules,
    text: &str,
    compile: impl Fn(&str) -> Result<RuleFilter, headwater_mqtt::topic::TopicError>,
) -> Result<(), String> {
    let (word, rest) = split_word(text);
    let (word, filter) = if rest.is_empty() {
        ("readwrite", word)
    } else {
        (word, rest)
    };
    if filter.is_empty() {
        return Err("write an access word and a filter".to_owned());
    }
    let rule = compile(filter).map_err(|error| format!("`{filter}` is not a filter: {error}"))?;
    match word {
        "read" => rules.allow(rule, Allowed::READ),
        "write" => rules.allow(rule, Allowed::WRITE),
        "readwrite" => rules.allow(rule, Allowed::READ_WRITE),
        "replay" => rules.allow(rule, Allowed::REPLAY),
        "deny" => rules.deny(rule),
        other => {
            return Err(format!(
                "`{other}` is no access; write read, write, readwrite, replay or deny in front of a filter with spaces"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
# clients without credentials
topic read public/#

user ann
topic readwrite plants/1/#
topic deny plants/1/secret
topic replay history/#
operator

user bob smith
topic write inbox/two words
topic  plants/2

pattern write devices/%c/telemetry
pattern readwrite users/%u/#
pattern deny users/+/locked
";

    fn may(acl: &Acl, user: Option<&str>, access: Access, topic: &str) -> bool {
        let names = Names {
            user,
            client_id: Some("pump-7"),
        };
        acl.allows(&acl.section(user), access, Target::Topic(topic), &names)
    }

    #[test]
    fn what_no_line_allows_is_denied() {
        let acl = Acl::parse(FILE).unwrap();
        let ann = Some("ann");
        assert!(may(&acl, ann, Access::Publish, "plants/1/x"));
        assert!(!may(&acl, ann, Access::Publish, "plants/1/secret"));
        assert!(!may(&acl, ann, Access::Publish, "plants/2"));
        assert!(!may(&acl, ann, Access::Receive, "public/news"));
        assert!(may(&acl, ann, Access::Replay, "history/x"));
        assert!(!may(&acl, ann, Access::Replay, "plants/1/x"));
        assert!(may(&acl, None, Access::Receive, "public/news"));
        assert!(!may(&acl, None, Access::Publish, "public/news"));
        let bob = Some("bob smith");
        assert!(may(&acl, bob, Access::Publish, "inbox/two words"));
        assert!(!may(&acl, bob, Access::Receive, "inbox/two words"));
        assert!(may(&acl, bob, Access::Receive, "plants/2"));
        let unknown = Some("eve");
        assert!(!may(&acl, unknown, Access::Receive, "public/news"));
        assert!(may(
            &acl,
            unknown,
            Access::Publish,
            "devices/pump-7/telemetry"
        ));
        assert!(may(&acl, unknown, Access::Publish, "users/eve/x"));
        assert!(!may(&acl, unknown, Access::Publish, "users/eve/locked"));
        assert!(!may(&acl, None, Access::Publish, "users//x"));
        assert!(acl.section(ann).is_operator() && !acl.section(bob).is_operator());
    }

    #[test]
    fn a_password_file_by_mistake_is_told_without_its_hashes() {
        let (line, reason) = Acl::parse("ann:$7$101$c2FsdA==$aGFzaA==").unwrap_err();
        assert!(
            line == 1 && reason.contains("auth.password_file"),
            "{reason}"
        );
        assert!(!reason.contains("aGFzaA"), "{reason}");
    }

    #[test]
    fn an_empty_file_denies_everything() {
        let acl = Acl::parse("").unwrap();
        for access in [Access::Publish, Access::Receive, Access::Replay] {
            assert!(!may(&acl, Some("ann"), access, "a") && !may(&acl, None, access, "a"));
        }
    }

    #[test]
    fn a_bad_line_is_named_with_what_to_write() {
        for (text, line, word) in [
            ("user ann\ntopic raed a/#", 2, "readwrite"),
            ("user", 1, "name"),
            ("\n\ntopic read a/#/b", 3, "not a filter"),
            ("topic", 1, "filter"),
            ("tpoic read a", 1, "pattern"),
            ("operator", 1, "section"),
            ("user a\noperator yes", 2, "alone"),
        ] {
            let (at, reason) = Acl::parse(text).unwrap_err();
            assert!(
                at == line && reason.contains(word),
                "{text:?}: {at} {reason}"
            );
        }
    }

    #[test]
    fn a_name_in_a_plain_rule_is_only_text() {
        let acl = Acl::parse("user ann\ntopic read devices/%c").unwrap();
        assert!(!may(&acl, Some("ann"), Access::Receive, "devices/pump-7"));
        assert!(may(&acl, Some("ann"), Access::Receive, "devices/%c"));
    }
}
