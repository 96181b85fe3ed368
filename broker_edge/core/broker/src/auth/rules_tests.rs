//! Tests of rules on topics: names never act as wildcards, topics with `$`, and agreement with MQTT matching.

use super::*;
use proptest::prelude::*;

const NAMES: Names<'_> = Names {
    user: Some("ann"),
    client_id: ClientId::Proved("pump-7"),
};

fn rules(allowed: &[&str], denied: &[&str]) -> Rules {
    let mut rules = Rules::default();
    for text in allowed {
        rules.allow(RuleFilter::pattern(text).unwrap(), Allowed::READ_WRITE);
    }
    for text in denied {
        rules.deny(RuleFilter::pattern(text).unwrap());
    }
    rules
}

#[test]
fn names_stand_for_text_within_a_level() {
    let rules = rules(&["devices/%c/#", "of-%u-%c/x", "100%/%"], &[]);
    let on = |topic| rules.on_topic(Access::Publish, topic, &NAMES);
    assert_eq!(on("devices/pump-7/telemetry"), Verdict::Allowed);
    assert_eq!(on("devices/pump-7"), Verdict::Allowed);
    assert_eq!(on("devices/pump-8/telemetry"), Verdict::Silent);
    assert_eq!(on("devices/pump-77"), Verdict::Silent);
    assert_eq!(on("of-ann-pump-7/x"), Verdict::Allowed);
    assert_eq!(on("of-ann-pump-7x/x"), Verdict::Silent);
    assert_eq!(on("100%/%"), Verdict::Allowed);
}

#[test]
fn a_name_with_slashes_or_wildcards_matches_nothing_and_evades_no_denial() {
    let allowed = rules(&["devices/%c/#", "public/#"], &[]);
    let denied = rules(&["public/#"], &["public/%c"]);
    for client_id in ["+", "#", "a/b", "pump-7/#", ""] {
        let names = Names {
            client_id: ClientId::Proved(client_id),
            ..NAMES
        };
        for topic in [
            "devices/a/b",
            "devices/+/x",
            "devices/pump-7/x",
            "devices//x",
        ] {
            assert_eq!(
                allowed.on_topic(Access::Receive, topic, &names),
                Verdict::Silent,
                "{client_id} {topic}"
            );
        }
        assert_eq!(
            allowed.on_filter(Access::Subscribe, "devices/#", &names),
            Verdict::Silent
        );
        assert_eq!(
            allowed.on_topic(Access::Receive, "public/x", &names),
            Verdict::Allowed
        );
        assert_eq!(
            denied.on_topic(Access::Receive, "public/x", &names),
            Verdict::Denied
        );
    }
    let nobody = Names {
        user: None,
        client_id: ClientId::Proved("c"),
    };
    let of_user = rules(&["users/%u/#"], &[]);
    assert_eq!(
        of_user.on_topic(Access::Receive, "users//x", &nobody),
        Verdict::Silent
    );
}

#[test]
fn a_client_id_that_is_missing_or_not_proved_opens_nothing_and_evades_no_denial() {
    for client_id in [ClientId::Unproved, ClientId::Absent] {
        opens_nothing_and_evades_no_denial(client_id);
    }
}

fn opens_nothing_and_evades_no_denial(client_id: ClientId<'_>) {
    let names = Names { client_id, ..NAMES };
    let rules = rules(&["devices/%c/#", "users/%u/#"], &["users/+/of-%c"]);
    let on = |topic| rules.on_topic(Access::Receive, topic, &names);
    assert_eq!(on("devices/pump-7/x"), Verdict::Silent);
    assert_eq!(on("users/ann/x"), Verdict::Allowed);
    for denied in ["users/ann/of-pump-7", "users/ann/of-any"] {
        assert_eq!(on(denied), Verdict::Denied, "{denied}");
    }
    let on = |filter| rules.on_filter(Access::Subscribe, filter, &names);
    assert_eq!(on("devices/#"), Verdict::Silent);
    assert_eq!(on("users/ann/#"), Verdict::Allowed);
}

#[test]
fn only_rules_that_begin_with_a_dollar_reach_topics_that_do() {
    let rules = rules(&["#", "%c/#", "+/gaps"], &[]);
    let names = Names {
        client_id: ClientId::Proved("$SYS"),
        ..NAMES
    };
    for topic in ["$SYS/broker/uptime", "$SYS", "$gaps"] {
        assert_eq!(
            rules.on_topic(Access::Receive, topic, &names),
            Verdict::Silent,
            "{topic}"
        );
    }
    let system = self::rules(&["$SYS/#"], &[]);
    assert_eq!(
        system.on_topic(Access::Receive, "$SYS/broker/uptime", &names),
        Verdict::Allowed
    );
    assert_eq!(
        system.on_filter(Access::Subscribe, "#", &names),
        Verdict::Silent
    );
}

#[test]
fn a_filter_is_allowed_when_it_may_match_something_and_denied_when_all_of_it_is() {
    let rules = rules(&["a/#", "b/+/c"], &["a/secret/#"]);
    let on = |filter| rules.on_filter(Access::Subscribe, filter, &NAMES);
    for filter in ["#", "a/+", "+/+/c", "b/x/c", "a", "b/#", "a/secret"] {
        let expected = if filter == "a/secret" {
            Verdict::Denied
        } else {
            Verdict::Allowed
        };
        assert_eq!(on(filter), expected, "{filter}");
    }
    for filter in ["c/#", "b/x/d", "b", "$SYS/#"] {
        assert_eq!(on(filter), Verdict::Silent, "{filter}");
    }
    assert_eq!(on("a/secret/#"), Verdict::Denied);
}

#[test]
fn what_is_allowed_is_read_write_or_replay_each_for_itself() {
    let mut rules = Rules::default();
    rules.allow(RuleFilter::plain("r").unwrap(), Allowed::READ);
    rules.allow(RuleFilter::plain("w").unwrap(), Allowed::WRITE);
    rules.allow(RuleFilter::plain("h").unwrap(), Allowed::REPLAY);
    let may = |access, topic| rules.on_topic(access, topic, &NAMES) == Verdict::Allowed;
    assert!(may(Access::Receive, "r") && !may(Access::Publish, "r"));
    assert!(!may(Access::Replay, "r") && may(Access::Publish, "w"));
    assert!(!may(Access::Receive, "w") && may(Access::Replay, "h"));
    assert!(may(Access::Receive, "h") && !may(Access::Publish, "h"));
}

fn level() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "", "$c", "pump-7"])
}

fn filter() -> impl Strategy<Value = String> {
    let part = prop_oneof![3 => level(), 1 => Just("+")];
    (prop::collection::vec(part, 1..4), any::<bool>()).prop_map(|(mut levels, all)| {
        if all {
            levels.push("#");
        }
        levels.join("/")
    })
}

proptest! {
    #[test]
    fn rules_agree_with_matching(
        rule in filter(),
        asked in filter(),
        topic in prop::collection::vec(level(), 1..5).prop_map(|levels| levels.join("/")),
    ) {
        prop_assume!(!rule.is_empty() && !asked.is_empty() && !topic.is_empty());
        let compiled = RuleFilter::plain(&rule).unwrap();
        // Stricter than MQTT matching only for a leading wildcard and a topic that begins with `$`.
        let matches = headwater_mqtt::filter_matches(&rule, &topic);
        prop_assert_eq!(compiled.matches(&topic, &NAMES), matches, "{} {}", rule, topic);
        if matches && headwater_mqtt::filter_matches(&asked, &topic) {
            prop_assert!(compiled.overlaps(&asked, &NAMES), "{} {}", rule, asked);
        }
        if compiled.covers(&asked, &NAMES) && headwater_mqtt::filter_matches(&asked, &topic) {
            prop_assert!(matches, "{} {} {}", rule, asked, topic);
        }
    }
}
