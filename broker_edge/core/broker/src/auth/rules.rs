//! Rules on topics: filters compiled to levels, and the verdict of a list of rules on a topic or a filter.
//!
//! A pattern rule contains `%c` (client id) and `%u` (user name). They stand for text within one level and are only
//! compared, never inserted into a filter. So no client id or user name can act as a wildcard or add a level.

use std::fmt;

use headwater_mqtt::topic::{TopicError, check_filter};

use super::Access;

/// The set of accesses that a rule allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Allowed(u8);

impl Allowed {
    pub const READ: Self = Self(1);
    pub const WRITE: Self = Self(2);
    pub const READ_WRITE: Self = Self(1 | 2);
    /// Replay from any offset, and all other reading.
    pub const REPLAY: Self = Self(1 | 4);

    /// The word for it in the ACL file.
    const fn word(self) -> &'static str {
        match self {
            Self::READ => "read",
            Self::WRITE => "write",
            Self::REPLAY => "replay",
            _ => "readwrite",
        }
    }

    const fn has(self, access: Access) -> bool {
        let needed = match access {
            Access::Publish => 2,
            Access::Subscribe | Access::Receive => 1,
            Access::Replay => 4,
        };
        self.0 & needed != 0
    }
}

/// The client id for `%c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientId<'a> {
    /// Callers outside MQTT have no client id.
    Absent,
    /// The client chose the id, without proof that it owns it. Rules with `%c` then apply as without a client id: none
    /// allows anything, and a denial with `%c` applies to every id.
    Unproved,
    Proved(&'a str),
    /// Matches every client id: how denials treat an unproved one.
    Any,
}

/// The names that a pattern may refer to.
#[derive(Debug, Clone, Copy)]
pub struct Names<'a> {
    pub user: Option<&'a str>,
    pub client_id: ClientId<'a>,
}

impl Names<'_> {
    /// The names for denials: a client must not evade a denial by an unproved id, or by having none.
    fn for_denials(self) -> Self {
        match self.client_id {
            ClientId::Unproved | ClientId::Absent => Self {
                client_id: ClientId::Any,
                ..self
            },
            _ => self,
        }
    }

    fn stand_for_all(&self, parts: &[Part]) -> bool {
        self.client_id == ClientId::Any && parts.contains(&Part::ClientId)
    }

    /// Whether a level begins and ends with the parts around `%c`.
    fn may_be(&self, level: &str, parts: &[Part]) -> bool {
        let mut rest = level;
        let is_text = |part: &&Part| **part != Part::ClientId;
        for part in parts.iter().take_while(is_text) {
            match self.text(part).and_then(|text| rest.strip_prefix(text)) {
                Some(left) => rest = left,
                None => return false,
            }
        }
        for part in parts.iter().rev().take_while(is_text) {
            match self.text(part).and_then(|text| rest.strip_suffix(text)) {
                Some(left) => rest = left,
                None => return false,
            }
        }
        true
    }

    /// The text of a part of a level; `None` for a name that cannot be part of a level.
    fn text<'a>(&'a self, part: &'a Part) -> Option<&'a str> {
        let name = match part {
            Part::Text(text) => return Some(text),
            Part::ClientId => match self.client_id {
                ClientId::Proved(client_id) => Some(client_id),
                ClientId::Absent | ClientId::Unproved | ClientId::Any => None,
            },
            Part::User => self.user,
        };
        name.filter(|name| !name.is_empty() && !name.contains(['/', '+', '#']))
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Text(Box<str>),
    ClientId,
    User,
}

#[derive(Debug, PartialEq, Eq)]
enum Level {
    Text(Box<str>),
    /// `+`
    Any,
    /// `#`
    Rest,
    /// Text with names in it.
    Named(Box<[Part]>),
}

/// How one level of a rule compares with a level of a topic.
#[derive(Debug, PartialEq, Eq)]
enum Compared {
    Same,
    Other,
    /// The rule needs a name that is missing, or that cannot be part of a level.
    NoName,
}

impl Level {
    fn compare(&self, level: &str, names: &Names<'_>) -> Compared {
        let is_same = match self {
            Self::Text(text) => **text == *level,
            Self::Any | Self::Rest => true,
            Self::Named(parts) if names.stand_for_all(parts) => names.may_be(level, parts),
            Self::Named(parts) => {
                let mut rest = level;
                for part in parts {
                    let Some(text) = names.text(part) else {
                        return Compared::NoName;
                    };
                    match rest.strip_prefix(text) {
                        Some(left) => rest = left,
                        None => return Compared::Other,
                    }
                }
                rest.is_empty()
            }
        };
        if is_same {
            Compared::Same
        } else {
            Compared::Other
        }
    }
}

/// A rule's filter, which is compared with topics and filters.
#[derive(Debug)]
pub struct RuleFilter {
    levels: Box<[Level]>,
    /// The filter begins with `$`; only such rules match topics that begin with `$`.
    reaches_dollar: bool,
    /// The line of the ACL file; 0 for a rule of a token.
    line: u32,
}

/// As it was written.
impl fmt::Display for RuleFilter {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, level) in self.levels.iter().enumerate() {
            if place > 0 {
                to.write_str("/")?;
            }
            match level {
                Level::Text(text) => to.write_str(text)?,
                Level::Any => to.write_str("+")?,
                Level::Rest => to.write_str("#")?,
                Level::Named(parts) => {
                    for part in parts {
                        to.write_str(match part {
                            Part::Text(text) => text,
                            Part::ClientId => "%c",
                            Part::User => "%u",
                        })?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl RuleFilter {
    /// A literal filter.
    ///
    /// # Errors
    /// The text is not a filter.
    pub fn plain(text: &str) -> Result<Self, TopicError> {
        Self::compile(text, |level| Level::Text(level.into()))
    }

    /// A filter in which `%c` and `%u` stand for names.
    ///
    /// # Errors
    /// The text is not a filter.
    pub fn pattern(text: &str) -> Result<Self, TopicError> {
        Self::compile(text, named_level)
    }

    fn compile(text: &str, level_of: impl Fn(&str) -> Level) -> Result<Self, TopicError> {
        check_filter(text.as_bytes())?;
        let levels = text.split('/').map(|level| match level {
            "+" => Level::Any,
            "#" => Level::Rest,
            _ => level_of(level),
        });
        Ok(Self {
            levels: levels.collect(),
            reaches_dollar: text.starts_with('$'),
            line: 0,
        })
    }

    const fn deciding(&self, word: &'static str) -> Deciding<'_> {
        Deciding {
            line: self.line,
            word,
            filter: self,
        }
    }

    pub fn at_line(mut self, number: usize) -> Self {
        self.line = u32::try_from(number).unwrap_or(u32::MAX);
        self
    }

    /// The parts of the levels with names.
    fn parts(&self) -> impl Iterator<Item = &Part> {
        self.levels.iter().flat_map(|level| match level {
            Level::Named(parts) => &parts[..],
            _ => &[],
        })
    }

    fn needs_missing_name(&self, names: &Names<'_>) -> bool {
        self.parts().any(|part| names.text(part).is_none())
    }

    /// Whether this matches the topic.
    fn matches(&self, topic: &str, names: &Names<'_>) -> bool {
        if topic.starts_with('$') != self.reaches_dollar {
            return false;
        }
        let mut levels = topic.split('/');
        for own in &self.levels {
            if *own == Level::Rest {
                return true;
            }
            match levels.next() {
                Some(level) if own.compare(level, names) == Compared::Same => {}
                _ => return false,
            }
        }
        levels.next().is_none()
    }

    /// Whether some topic matches both this and `filter`.
    fn overlaps(&self, filter: &str, names: &Names<'_>) -> bool {
        if filter.starts_with('$') != self.reaches_dollar {
            return false;
        }
        let mut levels = filter.split('/');
        for own in &self.levels {
            let level = levels.next();
            if *own == Level::Rest || level == Some("#") {
                return !self.needs_missing_name(names);
            }
            match level {
                Some("+") => {}
                Some(level) if own.compare(level, names) == Compared::Same => {}
                _ => return false,
            }
        }
        matches!(levels.next(), None | Some("#")) && !self.needs_missing_name(names)
    }

    /// Whether this matches every topic that `filter` matches.
    fn covers(&self, filter: &str, names: &Names<'_>) -> bool {
        if filter.starts_with('$') != self.reaches_dollar {
            return false;
        }
        let mut levels = filter.split('/');
        for own in &self.levels {
            match (own, levels.next()) {
                (Level::Rest, _) => return true,
                (_, None | Some("#")) => return false,
                (Level::Any, Some(_)) => {}
                (_, Some("+")) => return false,
                (own, Some(level)) if own.compare(level, names) == Compared::Same => {}
                _ => return false,
            }
        }
        levels.next().is_none()
    }
}

/// A level of a pattern, cut at its names.
fn named_level(level: &str) -> Level {
    let mut parts = Vec::new();
    let mut rest = level;
    let mut text_len = 0;
    while text_len < rest.len() {
        let part = match rest.get(text_len..text_len + 2) {
            Some("%c") => Part::ClientId,
            Some("%u") => Part::User,
            _ => {
                text_len += rest[text_len..].chars().next().map_or(1, char::len_utf8);
                continue;
            }
        };
        if text_len > 0 {
            parts.push(Part::Text(rest[..text_len].into()));
        }
        parts.push(part);
        rest = &rest[text_len + 2..];
        text_len = 0;
    }
    if parts.is_empty() {
        return Level::Text(level.into());
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest.into()));
    }
    Level::Named(parts.into())
}

/// A list of rules. Denials take precedence, wherever they stand.
#[derive(Debug, Default)]
pub struct Rules {
    denied: Vec<RuleFilter>,
    allowed: Vec<(RuleFilter, Allowed)>,
}

/// The rule on which a verdict rests: its line, its access word and its filter.
#[derive(Debug, Clone, Copy)]
pub struct Deciding<'a> {
    pub line: u32,
    pub word: &'static str,
    pub filter: &'a RuleFilter,
}

/// The verdict of the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Allowed,
    Denied,
    /// No rule applies.
    Silent,
}

impl Rules {
    pub fn allow(&mut self, filter: RuleFilter, allowed: Allowed) {
        self.allowed.push((filter, allowed));
    }

    pub fn deny(&mut self, filter: RuleFilter) {
        self.denied.push(filter);
    }

    /// Whether one of the rules contains the client id.
    pub fn name_client_id(&self) -> bool {
        let allowed = self.allowed.iter().map(|(rule, _)| rule);
        allowed.chain(&self.denied).any(RuleFilter::names_client_id)
    }

    /// Whether this access to the topic is allowed under some name, ignoring denials.
    pub fn may_allow(&self, access: Access, topic: &str, names: &Names<'_>) -> bool {
        let mut allowed = self.allowed.iter();
        allowed.any(|(rule, allowed)| allowed.has(access) && rule.matches(topic, names))
    }

    /// Whether this access is allowed for any topic.
    pub fn allow_some(&self, access: Access) -> bool {
        self.allowed.iter().any(|(_, allowed)| allowed.has(access))
    }

    /// The verdict on a topic.
    pub fn on_topic(&self, access: Access, topic: &str, names: &Names<'_>) -> Verdict {
        self.deciding_on_topic(access, topic, names).0
    }

    /// The verdict on a filter: allowed if a topic that it matches may be, denied if a denial covers all of it.
    pub fn on_filter(&self, access: Access, filter: &str, names: &Names<'_>) -> Verdict {
        self.deciding_on_filter(access, filter, names).0
    }

    /// Whether one rule allows this access to every topic that the filter matches, ignoring denials.
    pub fn allow_all(&self, access: Access, filter: &str, names: &Names<'_>) -> bool {
        let mut allowed = self.allowed.iter();
        allowed.any(|(rule, allowed)| allowed.has(access) && rule.covers(filter, names))
    }

    /// Whether a denial concerns some topic that the filter matches.
    pub fn deny_some(&self, filter: &str, names: &Names<'_>) -> bool {
        let names = names.for_denials();
        let is_denial = |rule: &RuleFilter| rule.overlaps(filter, &names);
        self.denied.iter().any(is_denial)
    }

    /// The verdict on a topic, with the rule on which it rests.
    #[inline]
    pub fn deciding_on_topic(
        &self,
        access: Access,
        topic: &str,
        names: &Names<'_>,
    ) -> (Verdict, Option<Deciding<'_>>) {
        // A denial that cannot be evaluated because a name is unusable applies, so that no name evades it.
        let of_denials = names.for_denials();
        let is_denied =
            |rule: &RuleFilter| rule.matches(topic, &of_denials) || rule.has_unusable(&of_denials);
        self.decide(access, is_denied, |rule| rule.matches(topic, names))
    }

    /// The verdict on a filter, with the rule on which it rests.
    #[inline]
    pub fn deciding_on_filter(
        &self,
        access: Access,
        filter: &str,
        names: &Names<'_>,
    ) -> (Verdict, Option<Deciding<'_>>) {
        let of_denials = names.for_denials();
        let is_denied =
            |rule: &RuleFilter| rule.covers(filter, &of_denials) || rule.has_unusable(&of_denials);
        self.decide(access, is_denied, |rule| rule.overlaps(filter, names))
    }

    #[inline]
    fn decide(
        &self,
        access: Access,
        is_denied: impl Fn(&RuleFilter) -> bool,
        is_allowed: impl Fn(&RuleFilter) -> bool,
    ) -> (Verdict, Option<Deciding<'_>>) {
        if let Some(rule) = self.denied.iter().find(|rule| is_denied(rule)) {
            return (Verdict::Denied, Some(rule.deciding("deny")));
        }
        let mut allowed = self.allowed.iter();
        match allowed.find(|(rule, allowed)| allowed.has(access) && is_allowed(rule)) {
            Some((rule, allowed)) => (Verdict::Allowed, Some(rule.deciding(allowed.word()))),
            None => (Verdict::Silent, None),
        }
    }
}

impl RuleFilter {
    /// Whether the filter contains the client id.
    pub fn names_client_id(&self) -> bool {
        self.parts().any(|part| *part == Part::ClientId)
    }

    /// Whether it refers to an existing name that cannot be part of a level.
    fn has_unusable(&self, names: &Names<'_>) -> bool {
        self.parts().any(|part| {
            let is_there = match part {
                Part::Text(_) => false,
                Part::ClientId => matches!(names.client_id, ClientId::Proved(_)),
                Part::User => names.user.is_some(),
            };
            is_there && names.text(part).is_none()
        })
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
