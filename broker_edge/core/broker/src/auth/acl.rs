//! The ACL file: Mosquitto's syntax with extensions, and which rule applies to whom.
//!
//! `user NAME` begins a section. `topic [ACCESS] FILTER` applies to the section's user, or before all sections to
//! clients without credentials. `pattern [ACCESS] FILTER` applies to everybody and may contain `%c` and `%u`.
//! Extensions of Mosquitto's syntax are the access word `replay` and, in the section of a user, the lines `client-id`,
//! `group`, `tenant`, `operator` and `viewer`. Everything that no line allows is denied.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::Access;
use super::file::{FileError, lines, load, split_word};
use super::rules::{Allowed, ClientId, Deciding, Names, RuleFilter, Rules, Verdict};
use super::section::{NamePattern, Section};

#[derive(Debug, Default)]
pub struct Acl {
    anonymous: Arc<Section>,
    users: HashMap<Box<str>, Arc<Section>>,
    patterns: Rules,
    /// Lines with a rule that contains `%c`.
    client_id_lines: Vec<usize>,
    /// Client ids and client id prefixes that belong to a user by a `client-id` line.
    owned: HashSet<Box<str>>,
    owned_prefixes: Vec<NamePattern>,
}

impl Acl {
    /// # Errors
    /// The file cannot be read, or has an invalid line (the first one is reported).
    pub fn load(file: &Path) -> Result<Self, FileError> {
        load(file, Self::parse)
    }

    pub(crate) fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut acl = Parsed::default();
        for (number, line) in lines(text) {
            acl.take_line(number, line)
                .map_err(|reason| (number, reason))?;
        }
        let patterns = || acl.users.values().flat_map(|section| &section.client_ids);
        let owned = patterns().filter_map(NamePattern::exact);
        // `*` alone says that a user may use any client id, not that all client ids belong to the user.
        let is_prefix = |pattern: &&NamePattern| pattern.exact().is_none() && !pattern.is_all();
        Ok(Self {
            owned: owned.map(Into::into).collect(),
            owned_prefixes: patterns().filter(is_prefix).cloned().collect(),
            anonymous: Arc::new(acl.anonymous),
            users: acl
                .users
                .into_iter()
                .map(|(name, section)| (name, Arc::new(section)))
                .collect(),
            patterns: acl.patterns,
            client_id_lines: acl.client_id_lines,
        })
    }

    /// The lines of the file with a rule that contains `%c`.
    pub fn client_id_rules(&self) -> impl Iterator<Item = usize> + '_ {
        self.client_id_lines.iter().copied()
    }

    /// Whether a client id is the name of a user with a section, or belongs to a user by a `client-id` line.
    pub fn has_owner(&self, client_id: &str) -> bool {
        self.users.contains_key(client_id)
            || self.owned.contains(client_id)
            || self.owned_prefixes.iter().any(|own| own.matches(client_id))
    }

    /// Whether a `group` line of some user names this consumer group.
    pub fn names_group(&self, group: &str) -> bool {
        self.users
            .values()
            .any(|section| section.names_group(group))
    }

    /// The section of a user; an empty one if the user has none.
    pub fn section(&self, user: Option<&str>) -> Arc<Section> {
        match user {
            None => Arc::clone(&self.anonymous),
            Some(name) => self.users.get(name).map(Arc::clone).unwrap_or_default(),
        }
    }

    /// Whether an access is allowed: the section decides, and if it is silent, the patterns do.
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

    /// The verdict as in [`Acl::allows`], with the line on which it rests.
    pub fn explain(
        &self,
        section: &Section,
        access: Access,
        target: Target<'_>,
        names: &Names<'_>,
    ) -> (Verdict, Option<AclLine>) {
        match target.explain(&section.rules, access, names) {
            (Verdict::Silent, _) => {
                let (verdict, rule) = target.explain(&self.patterns, access, names);
                (verdict, rule.map(|rule| AclLine::of("pattern", rule)))
            }
            (verdict, rule) => (verdict, rule.map(|rule| AclLine::of("topic", rule))),
        }
    }

    /// The pattern that allows the access to clients with another id.
    pub fn for_another(
        &self,
        access: Access,
        target: Target<'_>,
        names: &Names<'_>,
    ) -> Option<AclLine> {
        let any = Names {
            client_id: ClientId::Any,
            ..*names
        };
        let (verdict, rule) = target.explain(&self.patterns, access, &any);
        let rule = rule.filter(|_| verdict == Verdict::Allowed);
        rule.map(|rule| AclLine::of("pattern", rule))
    }

    /// Whether an access is allowed to every topic that the filter matches.
    pub fn allows_all(
        &self,
        section: &Section,
        access: Access,
        filter: &str,
        names: &Names<'_>,
    ) -> bool {
        let patterns = &self.patterns;
        !section.rules.deny_some(filter, names)
            && (section.rules.allow_all(access, filter, names)
                || (patterns.allow_all(access, filter, names)
                    && !patterns.deny_some(filter, names)))
    }

    pub fn has_section(&self, user: &str) -> bool {
        self.users.contains_key(user)
    }

    /// Whether an access to a topic could be allowed with some client id, ignoring denials.
    pub fn might_allow(
        &self,
        section: &Section,
        access: Access,
        topic: &str,
        names: &Names<'_>,
    ) -> bool {
        section.rules.may_allow(access, topic, names)
            || self.patterns.may_allow(access, topic, names)
    }

    /// Whether a user has this access to any topic at all.
    pub fn allows_some(&self, section: &Section, access: Access) -> bool {
        section.rules.allow_some(access) || self.patterns.allow_some(access)
    }
}

/// The result of the lines parsed so far.
#[derive(Default)]
struct Parsed<'a> {
    anonymous: Section,
    users: HashMap<Box<str>, Section>,
    patterns: Rules,
    client_id_lines: Vec<usize>,
    /// The user of the current section.
    user: Option<&'a str>,
}

impl<'a> Parsed<'a> {
    fn take_line(&mut self, number: usize, line: &'a str) -> Result<(), String> {
        let (word, rest) = split_word(line);
        match word {
            "user" if rest.is_empty() => Err("write the user's name after `user`".to_owned()),
            "user" => {
                self.user = Some(rest);
                self.users.entry(rest.into()).or_default();
                Ok(())
            }
            "topic" => add(&mut self.section().rules, rest, |text| {
                Ok(RuleFilter::plain(text)?.at_line(number))
            }),
            "pattern" => {
                let mut names_client_id = false;
                add(&mut self.patterns, rest, |text| {
                    let rule = RuleFilter::pattern(text)?.at_line(number);
                    names_client_id = rule.names_client_id();
                    Ok(rule)
                })?;
                if names_client_id {
                    self.client_id_lines.push(number);
                }
                Ok(())
            }
            "operator" | "viewer" | "client-id" | "group" | "tenant" => self.take_grant(word, rest),
            // The line is not quoted: if the file is a password file by mistake, the line contains a password hash.
            other => {
                let guess = if other.contains(':') {
                    " (is this a password file? that is `auth.password_file`)"
                } else {
                    ""
                };
                Err(format!(
                    "a line must begin with user, topic, pattern, client-id, group, tenant, operator or viewer{guess}"
                ))
            }
        }
    }

    /// Parses a line about the user rather than about topics.
    fn take_grant(&mut self, word: &str, rest: &str) -> Result<(), String> {
        if self.user.is_none() {
            return Err(format!("write `{word}` in the section of a user"));
        }
        let section = self.section();
        let result = match word {
            "client-id" => section.add_client_id(rest),
            "group" => section.add_group(rest),
            "tenant" => section.set_tenant(rest),
            _ if !rest.is_empty() => Err("must stand alone on its line"),
            "operator" => {
                section.is_operator = true;
                Ok(())
            }
            _ => {
                section.is_viewer = true;
                Ok(())
            }
        };
        result.map_err(|reason| format!("the line `{word}` {reason}"))
    }

    fn section(&mut self) -> &mut Section {
        match self.user {
            Some(name) => self.users.entry(name.into()).or_default(),
            None => &mut self.anonymous,
        }
    }
}

/// A line of the file, without its comment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AclLine {
    pub number: u32,
    pub rule: String,
}

impl AclLine {
    fn of(kind: &str, rule: Deciding<'_>) -> Self {
        Self {
            number: rule.line,
            rule: format!("{kind} {} {}", rule.word, rule.filter),
        }
    }
}

/// The target of a query.
#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    Topic(&'a str),
    Filter(&'a str),
}

impl Target<'_> {
    fn explain<'r>(
        self,
        rules: &'r Rules,
        access: Access,
        names: &Names<'_>,
    ) -> (Verdict, Option<Deciding<'r>>) {
        match self {
            Self::Topic(topic) => rules.deciding_on_topic(access, topic, names),
            Self::Filter(filter) => rules.deciding_on_filter(access, filter, names),
        }
    }

    pub fn ask(self, rules: &Rules, access: Access, names: &Names<'_>) -> Verdict {
        match self {
            Self::Topic(topic) => rules.on_topic(access, topic, names),
            Self::Filter(filter) => rules.on_filter(access, filter, names),
        }
    }
}

/// Adds the rule after `topic` or `pattern`. A filter without an access word allows reading and writing.
fn add(
    rules: &mut Rules,
    text: &str,
    compile: impl FnOnce(&str) -> Result<RuleFilter, headwater_mqtt::topic::TopicError>,
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
                "`{other}` is not an access word; write read, write, readwrite, replay or deny before a filter with spaces"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::rules::ClientId;
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
            client_id: ClientId::Proved("pump-7"),
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
        assert!(acl.section(ann).is_operator && !acl.section(bob).is_operator);
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
            ("user a\nviewer no", 2, "alone"),
            ("client-id pump-7", 1, "section"),
            ("user a\nclient-id", 2, "no name"),
            ("user a\ngroup a*b", 2, "last character"),
            ("user a\ntenant north\ntenant south", 3, "second tenant"),
        ] {
            let (at, reason) = Acl::parse(text).unwrap_err();
            assert!(
                at == line && reason.contains(word),
                "{text:?}: {at} {reason}"
            );
        }
    }

    #[test]
    fn what_is_a_users_own_is_read_from_the_section() {
        let text = "user ann\nclient-id pump-7\nclient-id valve-*\ngroup north bronze\ntenant north\nviewer\nuser bob";
        let acl = Acl::parse(text).unwrap();
        let ann = acl.section(Some("ann"));
        assert!(ann.owns_client_id("pump-7") && ann.owns_client_id("valve-12"));
        assert!(!ann.owns_client_id("pump-8") && ann.has_group("north bronze"));
        assert!(ann.is_viewer && !ann.is_operator);
        assert_eq!(ann.tenant().map(|name| &**name), Some("north"));
        for other in [Some("bob"), Some("eve"), None] {
            let section = acl.section(other);
            assert!(!section.owns_client_id("pump-7") && !section.has_group("north bronze"));
            assert!(!section.is_viewer && section.tenant().is_none());
        }
    }

    #[test]
    fn lines_in_which_the_client_id_stands_are_known() {
        let text = "user ann\ntopic read devices/%c\npattern read devices/%c/actions\n\npattern write users/%u\npattern deny x/of-%c";
        let acl = Acl::parse(text).unwrap();
        assert_eq!(acl.client_id_rules().collect::<Vec<_>>(), [3, 6]);
    }

    #[test]
    fn a_name_in_a_plain_rule_is_only_text() {
        let acl = Acl::parse("user ann\ntopic read devices/%c").unwrap();
        assert!(!may(&acl, Some("ann"), Access::Receive, "devices/pump-7"));
        assert!(may(&acl, Some("ann"), Access::Receive, "devices/%c"));
    }
}
