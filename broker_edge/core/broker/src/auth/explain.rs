//! Why an access is allowed or not: the line of the ACL file that decides, and what keeps a line from applying.
//!
//! It asks the same rules that decide about clients. What a token or a certificate brings is not known here.

use std::sync::Arc;

use headwater_mqtt::topic::{TopicError, check_filter, check_name, parse_shared};
use serde::Serialize;

use super::acl::{AclLine, Target};
use super::authority::Authority;
use super::rights::{Advice, Rights};
use super::rules::Verdict;
use super::{Access, Identity};

/// A question about an access.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// `None` for a client without credentials.
    pub user: Option<&'a str>,
    /// `None` for a caller outside MQTT.
    pub client_id: Option<&'a str>,
    pub access: Access,
    /// For [`Access::Subscribe`] and [`Access::Replay`], a filter.
    pub topic: &'a str,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    pub allowed: bool,
    pub reason: String,
    pub line: Option<AclLine>,
    pub notes: Vec<String>,
}

impl Explanation {
    fn new(allowed: bool, reason: impl Into<String>) -> Self {
        Self {
            allowed,
            reason: reason.into(),
            line: None,
            notes: Vec::new(),
        }
    }
}

impl Authority {
    /// # Errors
    /// The topic is not a valid topic name, or not a valid filter where it may be one.
    pub fn explain(self: &Arc<Self>, asked: &Asked<'_>) -> Result<Explanation, TopicError> {
        let target = if matches!(asked.access, Access::Subscribe | Access::Replay) {
            check_filter(asked.topic.as_bytes())?;
            let shared = parse_shared(asked.topic)?;
            Target::Filter(shared.map_or(asked.topic, |shared| shared.filter))
        } else {
            check_name(asked.topic.as_bytes())?;
            Target::Topic(asked.topic)
        };
        if let Some(reason) = self.shut_out(asked.user) {
            return Ok(Explanation::new(false, reason));
        }
        if asked.access == Access::Publish && asked.topic.starts_with('$') {
            let reason = "clients may not publish to topics that begin with `$`";
            return Ok(Explanation::new(false, reason));
        }
        // Without a way to check credentials, nobody has a name.
        let asked = &Asked {
            user: asked.user.filter(|_| self.has_users()),
            ..*asked
        };
        let identity = Identity {
            user: asked.user.map(Arc::from),
            ..Identity::default()
        };
        let decided = self.rights(Arc::new(identity)).and_then(|rights| {
            let decided = rights.explain(asked.access, target, asked.client_id)?;
            let advice = rights.advice(asked.access, target, asked.client_id)?;
            Some((rights, decided, advice))
        });
        let Some((rights, (verdict, line), advice)) = decided else {
            let reason = "there is no ACL file (auth.acl_file), so everybody who is let in may do everything";
            return Ok(Explanation::new(true, reason));
        };
        let mut told = Explanation::new(
            verdict == Verdict::Allowed,
            reason_of(asked, verdict, line.as_ref(), &advice),
        );
        told.line = line;
        told.notes = self.notes(asked, &rights);
        if told.allowed && !advice.is_whole {
            let what = match asked.access {
                Access::Replay => "records of topics that they allow are read",
                _ => "messages on topics that they allow are delivered",
            };
            let note = format!("the rights do not cover the whole filter: only {what}");
            told.notes.push(note);
        }
        Ok(told)
    }

    /// What keeps lines from applying, and what is not looked at.
    fn notes(&self, asked: &Asked<'_>, rights: &Rights) -> Vec<String> {
        let mut notes = Vec::new();
        let unproved = asked
            .client_id
            .filter(|client_id| rights.misses_rules_by(client_id));
        if let Some(client_id) = unproved {
            notes.push(match asked.user {
                Some(user) => format!(
                    "lines with %c do not apply, because nothing proves that the client id `{client_id}` is that of \
                     `{user}`: write `client-id {client_id}` into the section of the user"
                ),
                None => format!(
                    "lines with %c do not apply, because the client id `{client_id}` belongs to somebody else"
                ),
            });
        }
        if !self.has_users() {
            notes.push(
                "no users are configured, so every client counts as one without credentials"
                    .to_owned(),
            );
        }
        if asked.user.is_some() && self.reads_tokens() {
            let note =
                "a token with the claim `acl` has rights of its own, which are not looked at here";
            notes.push(note.to_owned());
        }
        notes
    }

    /// Why a client is not let in at all, as far as the files say.
    fn shut_out(&self, user: Option<&str>) -> Option<String> {
        if self.may_admit(user) {
            return None;
        }
        Some(match user {
            Some(user) => format!(
                "there is no user `{user}` in auth.password_file, so such a client is not let in"
            ),
            None => "clients without credentials are not let in (auth.allow_anonymous)".to_owned(),
        })
    }
}

fn reason_of(
    asked: &Asked<'_>,
    verdict: Verdict,
    line: Option<&AclLine>,
    advice: &Advice,
) -> String {
    match (verdict, line) {
        (Verdict::Allowed, Some(line)) => format!("line {} allows it", line.number),
        (Verdict::Denied, Some(line)) => {
            format!("line {} denies it, whatever other lines allow", line.number)
        }
        _ => format!(
            "no line of the ACL file allows it: {}{}",
            whom_it_allows(advice),
            what_to_write(asked, advice)
        ),
    }
}

/// The nearest line, which allows it to others.
fn whom_it_allows(advice: &Advice) -> String {
    let line = advice.for_another.as_ref();
    line.map_or_else(String::new, |AclLine { number, rule }| {
        format!("line {number}, `{rule}`, allows only the client whose id is in the topic; ")
    })
}

/// The line that would allow it, and where.
fn what_to_write(asked: &Asked<'_>, advice: &Advice) -> String {
    let word = match asked.access {
        Access::Publish => "write",
        Access::Subscribe | Access::Receive => "read",
        Access::Replay => "replay",
    };
    let topic = match parse_shared(asked.topic) {
        Ok(Some(shared)) => shared.filter,
        _ => asked.topic,
    };
    let line = format!("topic {word} {topic}");
    match asked.user {
        Some(user) if !advice.has_section => format!(
            "add a section for the user `{user}` to allow it, the line `user {user}` and below it `{line}`"
        ),
        Some(user) => {
            format!("write `{line}` into the section of the user `{user}` to allow it")
        }
        None => format!("write `{line}` before the first line with `user` to allow it"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::users::generate;
    use super::*;
    use crate::config::AuthSettings;

    const FILE: &str = "topic read public/#
user ann
topic readwrite plants/1/#
topic deny plants/1/secret

user bob
client-id meter-1
pattern write devices/%c/telemetry
pattern read users/%u/#
pattern replay history/%u/#
";

    fn ask(
        user: Option<&str>,
        client_id: Option<&str>,
        access: Access,
        topic: &str,
    ) -> Explanation {
        let dir = tempfile::tempdir().unwrap();
        let (users, acl) = (dir.path().join("users"), dir.path().join("acl"));
        let lines = ["ann", "bob", "cy"].map(|name| generate(name).unwrap().1);
        std::fs::write(&users, lines.concat()).unwrap();
        std::fs::write(&acl, FILE).unwrap();
        let settings = AuthSettings {
            password_file: Some(users),
            acl_file: Some(acl),
            allow_anonymous: true,
            ..AuthSettings::default()
        };
        let authority = Arc::new(Authority::load(&settings, true).unwrap());
        let asked = Asked {
            user,
            client_id,
            access,
            topic,
        };
        authority.explain(&asked).unwrap()
    }

    fn line(told: &Explanation) -> (bool, u32, &str) {
        let line = told.line.as_ref().unwrap();
        (told.allowed, line.number, &line.rule)
    }

    #[test]
    fn the_line_that_decides_is_named_as_it_was_written() {
        let ann = |access, topic| ask(Some("ann"), Some("ann"), access, topic);
        assert_eq!(
            line(&ann(Access::Publish, "plants/1/x")),
            (true, 3, "topic readwrite plants/1/#")
        );
        assert_eq!(
            line(&ann(Access::Receive, "plants/1/secret")),
            (false, 4, "topic deny plants/1/secret")
        );
        assert_eq!(
            line(&ann(Access::Subscribe, "users/+/news")),
            (true, 9, "pattern read users/%u/#")
        );
        assert_eq!(
            line(&ann(Access::Subscribe, "$share/g/plants/1/+")),
            (true, 3, "topic readwrite plants/1/#")
        );
        let device = ask(
            Some("bob"),
            Some("meter-1"),
            Access::Publish,
            "devices/meter-1/telemetry",
        );
        assert_eq!(
            line(&device),
            (true, 8, "pattern write devices/%c/telemetry")
        );
        let bob = ask(Some("bob"), None, Access::Replay, "devices/#");
        assert!(!bob.allowed, "a replay may be of a filter: {bob:?}");
        assert_eq!(
            line(&ask(None, None, Access::Receive, "public/x")),
            (true, 1, "topic read public/#")
        );
    }

    #[test]
    fn what_no_line_allows_comes_with_the_line_that_would() {
        let told = ask(Some("ann"), Some("ann"), Access::Publish, "plants/2");
        assert!(!told.allowed && told.line.is_none());
        assert!(
            told.reason
                .contains("`topic write plants/2` into the section of the user `ann`"),
            "{told:?}"
        );
        assert!(told.notes.is_empty());
        let told = ask(Some("ann"), None, Access::Subscribe, "$share/g/plants/2");
        assert!(
            told.reason.contains("`topic read plants/2` into"),
            "{told:?}"
        );
        let told = ask(None, None, Access::Replay, "plants/2");
        assert!(
            told.reason.contains("before the first line with `user`"),
            "{told:?}"
        );
    }

    #[test]
    fn the_pattern_that_allows_it_to_another_client_is_named() {
        let topic = "devices/meter-2/telemetry";
        let told = ask(Some("bob"), Some("meter-1"), Access::Publish, topic);
        let nearest = "line 8, `pattern write devices/%c/telemetry`, allows only the client";
        assert!(told.reason.contains(nearest), "{told:?}");
        assert!(
            told.reason.contains("into the section of the user `bob`"),
            "{told:?}"
        );
        // It is no pattern for this.
        let told = ask(Some("bob"), Some("meter-1"), Access::Receive, topic);
        assert!(!told.reason.contains("line 8"), "{told:?}");
    }

    #[test]
    fn a_user_without_a_section_is_told_to_get_one() {
        let told = ask(Some("cy"), Some("cy"), Access::Publish, "plants/2");
        let section = "add a section for the user `cy` to allow it, the line `user cy` and below it `topic write plants/2`";
        assert!(told.reason.contains(section), "{told:?}");
    }

    #[test]
    fn a_filter_that_the_rights_do_not_cover_is_told_to_be_delivered_in_part() {
        let ann = |access, filter| ask(Some("ann"), Some("ann"), access, filter);
        for (access, filter, is_whole) in [
            (Access::Subscribe, "plants/#", false),
            (Access::Subscribe, "$share/g/plants/#", false),
            // A denial takes a part of it.
            (Access::Subscribe, "plants/1/#", false),
            (Access::Subscribe, "plants/1/x/#", true),
            (Access::Subscribe, "users/ann/+", true),
            (Access::Receive, "plants/1/x", true),
        ] {
            let told = ann(access, filter);
            assert!(told.allowed, "{told:?}");
            let has_note = told.notes.iter().any(|note| note.contains("whole filter"));
            assert_eq!(has_note, !is_whole, "{filter}: {told:?}");
        }
        let told = ask(Some("cy"), None, Access::Replay, "history/#");
        assert!(told.notes[0].contains("are read"), "{told:?}");
    }

    #[test]
    fn a_client_id_that_is_not_proved_is_told() {
        let told = ask(
            Some("ann"),
            Some("meter-9"),
            Access::Publish,
            "devices/meter-9/telemetry",
        );
        assert!(!told.allowed);
        assert!(told.notes[0].contains("`client-id meter-9`"), "{told:?}");
    }

    #[test]
    fn what_is_refused_before_the_rules_is_told() {
        let told = ask(Some("eve"), None, Access::Publish, "plants/1/x");
        assert!(
            !told.allowed && told.reason.contains("no user `eve`"),
            "{told:?}"
        );
        let told = ask(Some("ann"), None, Access::Publish, "$receipts");
        assert!(!told.allowed && told.reason.contains('$'), "{told:?}");
        let asked = Asked {
            user: None,
            client_id: None,
            access: Access::Publish,
            topic: "a/#",
        };
        assert!(Authority::open().explain(&asked).is_err());
        let told = Authority::open()
            .explain(&Asked {
                topic: "a",
                ..asked
            })
            .unwrap();
        assert!(
            told.allowed && told.reason.contains("auth.acl_file"),
            "{told:?}"
        );
    }
}
