use super::list::{BYTES_MAX, ENTRIES_MAX, EQUAL_WITHIN_US};
use super::*;
use crate::kept_text::TOPIC_BYTES_MAX;

fn connected<'a>(client_id: &'a str, user: Option<&'a str>) -> ClientEvent<'a> {
    ClientEvent {
        client_id,
        what: What::Connected,
        act: None,
        reason: "new session",
        topic: None,
        user,
        address: Some("192.0.2.7:4711".parse().unwrap()),
        version: Some("5"),
    }
}

fn refused(client_id: &str) -> ClientEvent<'_> {
    ClientEvent {
        what: What::Refused,
        act: Some("connect"),
        reason: "bad_credentials",
        ..connected(client_id, None)
    }
}

fn ids(page: &EventPage) -> Vec<&str> {
    page.events.iter().map(|row| &*row.client_id).collect()
}

#[test]
fn events_come_back_newest_first_page_by_page_and_by_client() {
    let events = ClientEvents::default();
    for id in ["a", "b", "a", "c"] {
        events.note(&ClientEvent {
            reason: if id == "a" { "resumed" } else { "new session" },
            ..connected(id, None)
        });
    }
    let gone = ClientEvent {
        what: What::Disconnected,
        ..connected("a", None)
    };
    events.note(&gone);
    let all = events.page(None, None, 10);
    assert_eq!(ids(&all), ["a", "c", "a", "b"]);
    assert_eq!((all.events[2].count, all.next), (2, None));
    let first = events.page(None, None, 3);
    assert_eq!(ids(&first), ["a", "c", "a"]);
    let rest = events.page(None, first.next, 3);
    assert_eq!((ids(&rest), rest.next), (vec!["b"], None));
    assert_eq!(ids(&events.page(Some("a"), None, 9)), ["a", "a"]);
    assert_eq!(ids(&events.page(Some(""), None, 9)), [""; 0]);
}

#[test]
fn equal_events_are_counted_while_they_follow_each_other() {
    let events = ClientEvents::default();
    let port = |port: u16| Some(SocketAddr::from(([192, 0, 2, 7], port)));
    for second in 0..1_000 {
        let event = ClientEvent {
            address: port(second),
            ..connected("loop", None)
        };
        events.note_at(&event, i64::from(second) * 1_000_000);
    }
    let page = events.page(Some("loop"), None, 10);
    let row = &page.events[0];
    assert_eq!((page.events.len(), row.count), (1, 1_000));
    assert_eq!((row.first_us, row.last_us), (0, 999_000_000));
    assert_eq!(row.address, port(999));
    events.note_at(&connected("loop", None), 999_000_000 + EQUAL_WITHIN_US);
    let counts = events.page(Some("loop"), None, 10).events;
    let counts: Vec<u64> = counts.iter().map(|row| row.count).collect();
    assert_eq!(counts, [1, 1_000], "much later it is another entry");
}

#[test]
fn the_list_is_bounded_and_says_from_when_on_it_is_complete() {
    let events = ClientEvents::default();
    let begin = events.page(None, None, 1).since_us;
    for number in 0..2 * ENTRIES_MAX {
        let id = format!("client-{number}");
        events.note_at(&connected(&id, None), begin + number as i64);
    }
    let list = events.list.lock();
    let (kept, _) = list.check();
    assert!(kept > ENTRIES_MAX / 2, "{kept}");
    assert_eq!(list.forgotten() as usize, 2 * ENTRIES_MAX - kept);
    assert_eq!(list.since_us(), begin + list.forgotten() as i64 - 1);
}

/// The promise to others; without it the client before the flood would be gone.
#[test]
fn a_flood_of_one_owner_pushes_out_its_own_events() {
    let floods: [fn(&str) -> ClientEvent<'_>; 2] = [refused, |id| connected(id, Some("mallory"))];
    for flood in floods {
        let events = ClientEvents::default();
        for number in 0..100 {
            events.note(&connected(&format!("pump-{number}"), Some("ann")));
            events.note(&connected(&format!("open-{number}"), None));
        }
        for number in 0..3 * ENTRIES_MAX {
            events.note(&flood(&format!("x{number}")));
        }
        for number in 0..100 {
            for id in [format!("pump-{number}"), format!("open-{number}")] {
                assert_eq!(events.page(Some(&id), None, 1).events.len(), 1, "{id}");
            }
        }
    }
}

#[test]
fn long_names_are_cut_and_still_told_apart() {
    let events = ClientEvents::default();
    let (one, other) = ("é".repeat(30_000), format!("{}x", "é".repeat(29_999)));
    events.note(&connected(&one, Some(&one)));
    events.note(&connected(&other, None));
    let page = events.page(Some(&one), None, 10);
    assert_eq!(page.events.len(), 1);
    let row = &page.events[0];
    assert_eq!((row.client_id.chars().count(), row.is_cut), (64, true));
    assert!(events.list.lock().check().1 < 2_000);
}

fn denied<'a>(client_id: &'a str, topic: Option<&'a str>) -> ClientEvent<'a> {
    ClientEvent {
        what: What::Refused,
        act: Some("publish"),
        reason: "acl",
        topic,
        ..connected(client_id, Some("ann"))
    }
}

#[test]
fn equal_refusals_are_one_entry_with_the_topic_of_the_newest() {
    let events = ClientEvents::default();
    let long = "é".repeat(30_000);
    for topic in [Some("a/b"), Some(&*long), Some("a/c"), None] {
        events.note(&denied("pump", topic));
    }
    let page = events.page(Some("pump"), None, 10);
    let row = &page.events[0];
    assert_eq!((page.events.len(), row.count), (1, 4));
    assert_eq!(
        (row.topic.as_deref(), row.is_topic_cut),
        (Some("a/c"), false),
        "an event without a topic leaves the one before"
    );
    events.note(&denied("pump", Some(&long)));
    let row = events.page(Some("pump"), None, 1).events.remove(0);
    assert_eq!(row.topic.as_deref(), Some(&long[..TOPIC_BYTES_MAX]));
    assert!(row.is_topic_cut);
    events.list.lock().check();
}

/// A topic that grows in an entry takes room, too.
#[test]
fn topics_of_refusals_are_within_the_budget_and_in_the_share_of_their_user() {
    let events = ClientEvents::default();
    let ids: Vec<String> = (0..2_000).map(|number| format!("pump-{number}")).collect();
    for id in &ids {
        events.note(&ClientEvent {
            user: Some("bob"),
            ..denied(id, Some("short"))
        });
    }
    let full = "x".repeat(60_000);
    let others: Vec<String> = (0..ENTRIES_MAX)
        .map(|number| format!("x{number}"))
        .collect();
    for topic in ["", &*full, &*full] {
        for id in &others {
            events.note(&denied(id, Some(topic)));
        }
        events.list.lock().check();
    }
    let (_, bytes) = events.list.lock().check();
    assert!(bytes > BYTES_MAX / 2, "{bytes}");
    for id in &ids {
        assert_eq!(events.page(Some(id), None, 1).events.len(), 1, "{id}");
    }
}
