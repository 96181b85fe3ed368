use std::time::Duration;

use super::table::{EXAMPLES_MAX, KindCount, LINES_PER_S_MAX, Row, Table, USERS_MAX};
use super::*;
use crate::kept_text::{NAME_CHARS_MAX, TOPIC_BYTES_MAX};

fn refused<'a>(user: Option<&'a str>, reason: &'static str) -> Refused<'a> {
    Refused {
        door: Interface::Mqtt,
        act: "publish",
        reason,
        topic: Some("a/b"),
        user,
        address: None,
        client_id: Some("pump-7"),
    }
}

#[test]
fn refusals_are_counted_by_verified_user_and_kind() {
    let audit = Audit::default();
    for (user, reason) in [
        (Some("ann"), "acl"),
        (Some("ann"), "acl"),
        (Some("ann"), "quota_sessions"),
        (None, "bad_credentials"),
    ] {
        audit.refuse(&refused(user, reason));
    }
    let shown = audit.refusals();
    let of = |user: Option<&str>| {
        let row = shown.users.iter().find(|row| row.user.as_deref() == user);
        row.unwrap()
            .refused
            .iter()
            .map(|kind| (kind.reason, kind.count))
            .collect::<Vec<_>>()
    };
    assert_eq!(of(Some("ann")), [("acl", 2), ("quota_sessions", 1)]);
    assert_eq!(of(None), [("bad_credentials", 1)]);
}

#[test]
fn the_table_is_bounded_and_what_goes_is_still_counted() {
    let audit = Audit::default();
    for number in 0..USERS_MAX + 10 {
        audit.refuse(&refused(Some(&format!("user-{number}")), "acl"));
    }
    let shown = audit.refusals();
    assert_eq!((shown.users.len(), shown.forgotten), (USERS_MAX, 10));
    let long = "é".repeat(1000);
    audit.refuse(&Refused {
        client_id: Some(&long),
        ..refused(None, "acl")
    });
    let shown = audit.refusals();
    let row = shown.users.iter().find(|row| row.user.is_none()).unwrap();
    let kept = row.client_id.as_deref().unwrap();
    assert_eq!(kept.chars().count(), NAME_CHARS_MAX);
}

fn kinds_of(audit: &Audit, user: &str) -> Vec<KindCount> {
    let users = audit.refusals().users;
    let row = users
        .into_iter()
        .find(|row| row.user.as_deref() == Some(user));
    row.unwrap().refused
}

#[test]
fn each_kind_has_its_newest_topic_with_the_client_that_it_was_refused_to() {
    let audit = Audit::default();
    let long = "é".repeat(30_000);
    for (act, client_id, topic) in [
        ("publish", Some("pump-1"), Some("a/1")),
        ("publish", Some("pump-2"), Some("a/2")),
        ("subscribe", None, Some(&*long)),
        ("publish", Some("pump-3"), None),
        ("connect", Some("pump-4"), None),
    ] {
        audit.refuse(&Refused {
            act,
            topic,
            client_id,
            ..refused(Some("ann"), "acl")
        });
    }
    let kinds = kinds_of(&audit, "ann");
    let example = |at: usize| {
        let kind = &kinds[at];
        (kind.act, kind.topic.as_deref(), kind.client_id.as_deref())
    };
    assert_eq!(example(0), ("publish", Some("a/2"), Some("pump-2")));
    let cut = &long[..TOPIC_BYTES_MAX];
    assert_eq!(example(1), ("subscribe", Some(cut), None));
    assert_eq!(example(2), ("connect", None, None));
    let cuts = kinds.iter().map(|kind| kind.is_topic_cut);
    assert_eq!(cuts.collect::<Vec<_>>(), [false, true, false]);
    assert!(kinds.iter().all(|kind| !kind.is_client_id_cut));
}

#[test]
fn only_the_kinds_with_the_newest_refusals_of_a_user_have_a_topic() {
    let acts: [&'static str; EXAMPLES_MAX + 2] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let mut row = Row::default();
    let long = "x".repeat(60_000);
    for round in 0..3 {
        for (number, act) in acts.into_iter().enumerate() {
            let refused = Refused {
                act,
                topic: Some(&long),
                client_id: Some(&long),
                ..refused(None, "acl")
            };
            row.count(&refused, (round * acts.len() + number) as i64);
        }
    }
    let with_topic = row.kinds.iter().filter(|kind| kind.example.is_some());
    let with_topic: Vec<_> = with_topic.map(|kind| kind.act).collect();
    assert_eq!(with_topic, acts[2..]);
    let examples = row.kinds.iter().filter_map(|kind| kind.example.as_ref());
    let bytes: usize = examples
        .map(|example| example.topic.bytes() + example.client_id.bytes())
        .sum();
    assert_eq!(bytes, EXAMPLES_MAX * (TOPIC_BYTES_MAX + NAME_CHARS_MAX));
}

#[test]
fn a_flood_of_refusals_uses_the_buffer_of_the_first() {
    let mut row = Row::default();
    let topics = ["x".repeat(TOPIC_BYTES_MAX), "y".repeat(9)];
    let mut places = Vec::new();
    for number in 0..100 {
        let refused = Refused {
            topic: Some(&topics[number % 2]),
            ..refused(None, "acl")
        };
        row.count(&refused, number as i64);
        let example = row.kinds[0].example.as_deref().unwrap();
        places.push((example.topic.text().as_ptr(), std::ptr::from_ref(example)));
    }
    places.dedup();
    assert_eq!(places.len(), 1);
}

#[test]
fn a_user_has_a_line_a_second_and_all_together_have_a_few() {
    let mut table = Table::default();
    let begin = Instant::now();
    let mut tell = |user: &str, after_ms| {
        table.count(&refused(Some(user), "acl"));
        table.line(Some(user), begin + Duration::from_millis(after_ms))
    };
    assert_eq!(tell("ann", 0), Some(1));
    assert_eq!(tell("ann", 10), None);
    assert_eq!(tell("ann", 999), None);
    assert_eq!(tell("ann", 1000), Some(3), "a line stands for those before");
    let names: Vec<String> = (0..LINES_PER_S_MAX).map(|n| format!("u{n}")).collect();
    let told = names.iter().filter(|name| tell(name, 1001).is_some());
    assert_eq!(told.count() as u32, LINES_PER_S_MAX - 1);
}
