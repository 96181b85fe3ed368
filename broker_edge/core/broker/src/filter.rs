//! The topics that a Flight reader wants: those that match any of a list of MQTT filters, or a pattern; and which
//! classes may contain such topics.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use headwater_log::{Class, ClassConfig};
use headwater_mqtt::filter_matches;

use crate::auth::{Access, Rights};
use crate::filter_work::{FILTERS_A_LOOK, Work, WorkOver};
use crate::pattern::Pattern;

/// A list of filters, or a pattern. A topic is wanted when one of them matches. Built once per request.
#[derive(Clone, Debug, Default)]
pub struct Filters {
    /// `None` wants every topic. With a pattern, these filters cover it.
    filters: Option<Vec<String>>,
    pattern: Option<Arc<Pattern>>,
    /// The rights that restrict the wanted topics.
    rights: Option<(Arc<Rights>, Access)>,
    /// The limit of matching work; `None` for no limit.
    work: Option<Arc<Work>>,
}

/// A text that is not a filter (MQTT 4.7.1).
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a topic filter: `+` fills a whole level and `#` the last one", filter.escape_debug())]
pub struct BadFilter {
    pub filter: String,
}

impl Filters {
    /// # Errors
    /// The first invalid filter.
    pub fn new(filters: Option<Vec<String>>) -> Result<Filters, BadFilter> {
        match filters
            .iter()
            .flatten()
            .find(|filter| !crate::config::is_filter(filter))
        {
            Some(bad) => Err(BadFilter {
                filter: bad.clone(),
            }),
            None => Ok(Filters {
                filters,
                ..Filters::default()
            }),
        }
    }

    /// Wants the topics that the pattern matches.
    pub fn of_pattern(pattern: Pattern) -> Filters {
        Filters {
            filters: Some(pattern.reach().to_vec()),
            pattern: Some(Arc::new(pattern)),
            ..Filters::default()
        }
    }

    /// One of the given filters, for messages about all of them.
    pub fn first(&self) -> Option<&str> {
        let filters = self.filters.as_ref().filter(|_| self.pattern.is_none());
        filters?.first().map(String::as_str)
    }

    /// Limits the cost of matching, and stops it when `stop` is set.
    #[must_use]
    pub fn within_work(self, stop: &Arc<AtomicBool>) -> Filters {
        self.within_work_by(Instant::now, stop)
    }

    fn within_work_by(mut self, clock: fn() -> Instant, stop: &Arc<AtomicBool>) -> Filters {
        self.work = Some(Arc::new(Work::new(clock, stop)));
        self
    }

    /// Resets the counted cost, for the next part of a long call.
    pub fn work_anew(&self) {
        if let Some(work) = &self.work {
            work.begin_anew();
        }
    }

    /// # Errors
    /// Matching stopped early, so the results since then are incomplete.
    pub fn check_work(&self) -> Result<(), WorkOver> {
        let over = self.work.as_ref().and_then(|work| work.over());
        over.map_or(Ok(()), Err)
    }

    /// Whether every topic is wanted, including those that begin with `$`.
    pub fn want_all(&self) -> bool {
        self.filters.is_none() && self.rights.is_none()
    }

    /// Restricts the wanted topics to those that `rights` allow.
    #[must_use]
    pub fn under(mut self, rights: Option<&Arc<Rights>>, access: Access) -> Filters {
        self.rights = rights.map(|rights| (Arc::clone(rights), access));
        self
    }

    /// Whether a topic can exist that is wanted and allowed.
    pub fn may_want_some(&self) -> bool {
        let Some((rights, access)) = &self.rights else {
            return true;
        };
        match &self.filters {
            None => rights.may_some(*access),
            Some(filters) => filters
                .iter()
                .any(|filter| rights.may_filter(*access, filter, None)),
        }
    }

    pub fn wants(&self, topic: &str) -> bool {
        if self.want_all() {
            return true;
        }
        if self.check_work().is_err() {
            return false;
        }
        // The pattern comes last, because it costs the most.
        self.reaches(topic)
            && self
                .rights
                .as_ref()
                .is_none_or(|(rights, access)| rights.may(*access, topic, None))
            && self
                .pattern
                .as_ref()
                .is_none_or(|pattern| self.matches(pattern, topic))
    }

    /// Whether a filter matches. Returns false when that takes too long.
    fn reaches(&self, topic: &str) -> bool {
        let Some(filters) = &self.filters else {
            return true;
        };
        let reach = |some: &[String]| some.iter().any(|filter| filter_matches(filter, topic));
        let Some(work) = &self.work else {
            return reach(filters);
        };
        for some in filters.chunks(FILTERS_A_LOOK) {
            if work.count(|| reach(some)) {
                return true;
            }
            if work.over().is_some() {
                break;
            }
        }
        false
    }

    fn matches(&self, pattern: &Pattern, topic: &str) -> bool {
        let Some(work) = &self.work else {
            return pattern.matches(topic);
        };
        if pattern.is_too_much_for(topic) {
            work.note_too_long(topic.len());
            return false;
        }
        work.count(|| pattern.matches(topic))
    }

    /// Whether some topic of `class` may be wanted. `classes` are all classes in order of matching; the last takes
    /// every topic that no other does. Without filters the internal class is left out.
    pub fn can_reach(&self, class: Class, classes: &[ClassConfig]) -> bool {
        let Some(filters) = &self.filters else {
            return class != Class::Internal;
        };
        let Some((last, others)) = classes.split_last() else {
            return false;
        };
        if class == last.class {
            let is_taken = |filter: &String| {
                others
                    .iter()
                    .flat_map(|other| &other.filters)
                    .any(|by| covers(by, filter))
            };
            // Topics that begin with `$` exist only in a class that names them.
            return filters
                .iter()
                .any(|filter| !filter.starts_with('$') && !is_taken(filter));
        }
        let own = others
            .iter()
            .filter(|other| other.class == class)
            .flat_map(|other| &other.filters);
        own.clone()
            .any(|own| filters.iter().any(|filter| overlap(own, filter)))
    }
}

/// Whether `outer` matches every topic that `inner` matches.
fn covers(outer: &str, inner: &str) -> bool {
    if inner.starts_with('$') && outer.starts_with(['+', '#']) {
        return false;
    }
    let mut inner = inner.split('/');
    for outer in outer.split('/') {
        match (outer, inner.next()) {
            ("#", _) => return true,
            (_, None | Some("#")) => return false,
            ("+", Some(_)) => {}
            (outer, Some(inner)) if outer == inner => {}
            _ => return false,
        }
    }
    inner.next().is_none()
}

/// Whether some topic matches both.
fn overlap(left: &str, right: &str) -> bool {
    let is_hidden =
        |hidden: &str, wild: &str| hidden.starts_with('$') && wild.starts_with(['+', '#']);
    if is_hidden(left, right) || is_hidden(right, left) {
        return false;
    }
    let (mut left, mut right) = (left.split('/'), right.split('/'));
    loop {
        match (left.next(), right.next()) {
            (Some("#"), _) | (_, Some("#")) | (None, None) => return true,
            (None, Some(_)) | (Some(_), None) => return false,
            (Some("+"), Some(_)) | (Some(_), Some("+")) => {}
            (Some(left), Some(right)) if left == right => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, LazyLock};
    use std::time::{Duration, Instant};

    use super::{Filters, covers, filter_matches, overlap};
    use crate::filter_work::{FILTERS_A_LOOK, WorkOver};
    use crate::pattern::Pattern;
    use headwater_log::{Class, ClassConfig};

    /// Filters that take a second for each piece of them.
    fn slow(filters: &[&str], stop: &Arc<AtomicBool>) -> Filters {
        static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
        thread_local!(static LOOKS: Cell<u64> = const { Cell::new(0) });
        let filters = filters.iter().map(|filter| (*filter).to_owned()).collect();
        let clock = || {
            LOOKS.set(LOOKS.get() + 1);
            *BEGAN + Duration::from_secs(LOOKS.get())
        };
        Filters::new(Some(filters))
            .unwrap()
            .within_work_by(clock, stop)
    }

    #[test]
    fn matching_ends_when_it_costs_too_much_or_nobody_waits() {
        let stop = Arc::new(AtomicBool::new(false));
        let pattern = || Filters::of_pattern(Pattern::new("a/.*a.{800}c.*").unwrap());
        let filters = pattern().within_work(&stop);
        assert!(!filters.wants("a/b"));
        assert_eq!(filters.check_work(), Ok(()));
        let long = format!("a/{}", "a".repeat(60_000));
        assert!(!filters.wants(&format!("b/{long}")));
        assert_eq!(filters.check_work(), Ok(()), "it is not in reach");
        assert!(!filters.wants(&long));
        let bytes = long.len();
        assert_eq!(filters.check_work(), Err(WorkOver::TooLong { bytes }));

        let filters = slow(&["a/b"], &stop);
        let found = (0..100).take_while(|_| filters.wants("a/b")).count();
        assert_eq!(found, 6, "of a second each");
        assert_eq!(filters.check_work(), Err(WorkOver::Spent));
        filters.work_anew();
        assert!(filters.wants("a/b"));
        stop.store(true, Ordering::Relaxed);
        assert!(!filters.wants("a/b"));
        assert_eq!(filters.check_work(), Err(WorkOver::Stopped));
    }

    #[test]
    fn matching_of_one_topic_ends_between_its_filters() {
        let stop = Arc::new(AtomicBool::new(false));
        let filters = ["b"; FILTERS_A_LOOK * 100];
        let matches = |at: usize| {
            let mut filters = filters;
            filters[at] = "a";
            let filters = slow(&filters, &stop);
            (filters.wants("a"), filters.check_work())
        };
        assert_eq!(matches(FILTERS_A_LOOK * 4), (true, Ok(())));
        let after = FILTERS_A_LOOK * 6;
        assert_eq!(matches(after), (false, Err(WorkOver::Spent)));
        stop.store(true, Ordering::Relaxed);
        assert_eq!(matches(0), (false, Err(WorkOver::Stopped)));
    }

    #[test]
    fn filters_match_by_the_rules_of_mqtt() {
        let cases = [
            ("a/+/c", "a/b/c", true),
            ("a/+/c", "a/b/d", false),
            ("a/#", "a", true),
            ("a/#", "a/b/c", true),
            ("+", "a/b", false),
            ("+/+", "/a", true),
            ("#", "$gaps", false),
            ("+", "$gaps", false),
            ("$gaps", "$gaps", true),
            ("$state/#", "$state/group/a", true),
        ];
        for (filter, topic, expected) in cases {
            assert_eq!(
                filter_matches(filter, topic),
                expected,
                "{filter} on {topic}"
            );
        }
    }

    #[test]
    fn a_list_reaches_only_classes_that_may_hold_its_topics() {
        let classes: Vec<ClassConfig> = Class::ALL.into_iter().map(ClassConfig::new).collect();
        let reached = |filters: &[&str]| -> Vec<&str> {
            let filters = Filters::new(Some(
                filters.iter().map(|text| (*text).to_owned()).collect(),
            ))
            .unwrap();
            Class::ALL
                .into_iter()
                .filter(|class| filters.can_reach(*class, &classes))
                .map(Class::name)
                .collect()
        };
        assert_eq!(reached(&["devices/+/telemetry"]), ["telemetry"]);
        assert_eq!(reached(&["devices/7/actions"]), ["control"]);
        assert_eq!(reached(&["$receipts"]), ["control"]);
        assert_eq!(reached(&["$state/#"]), ["internal"]);
        assert_eq!(reached(&["artifacts/fw/#"]), ["artifacts"]);
        assert_eq!(reached(&["#"]), ["control", "artifacts", "telemetry"]);
        assert_eq!(reached(&["devices/7/#"]), ["control", "telemetry"]);
        assert!(
            !Filters::new(None)
                .unwrap()
                .can_reach(Class::Internal, &classes)
        );
    }

    #[test]
    fn a_pattern_reaches_the_classes_of_what_it_may_match() {
        let classes: Vec<ClassConfig> = Class::ALL.into_iter().map(ClassConfig::new).collect();
        let reached = |text: &str| -> Vec<&str> {
            let filters = Filters::of_pattern(Pattern::new(text).unwrap());
            Class::ALL
                .into_iter()
                .filter(|class| filters.can_reach(*class, &classes))
                .map(Class::name)
                .collect()
        };
        assert_eq!(reached("devices/.*/telemetry"), ["control", "telemetry"]);
        assert_eq!(reached(".*"), ["control", "artifacts", "telemetry"]);
        assert_eq!(reached(r"\$gaps"), ["internal", "control"]);
        assert!(!Filters::of_pattern(Pattern::new(".*").unwrap()).want_all());
    }

    #[test]
    fn what_covers_also_overlaps() {
        for (outer, inner) in [
            ("a/#", "a"),
            ("a/#", "a/+"),
            ("+/b", "a/b"),
            ("#", "a/#"),
            ("a/+", "a/+"),
        ] {
            assert!(
                covers(outer, inner) && overlap(outer, inner),
                "{outer} {inner}"
            );
        }
        for (outer, inner) in [("a/+", "a/#"), ("#", "$gaps"), ("a", "a/b"), ("+", "#")] {
            assert!(!covers(outer, inner), "{outer} {inner}");
        }
    }

    #[test]
    fn bad_filters_are_named() {
        let bad = Filters::new(Some(vec!["a/#".to_owned(), "a/#/b".to_owned()])).unwrap_err();
        assert_eq!(bad.filter, "a/#/b");
    }
}
