//! The partition of a topic. A pure function: callers cache the result per topic.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use crate::config::ClassConfig;
use crate::ids::PartitionId;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    pub partition: PartitionId,
    /// Position of the routing level in the topic: the record's key.
    pub key: Range<u16>,
}

#[derive(Debug)]
pub(crate) struct Router {
    /// With the number of its first partition.
    classes: Vec<(u32, ClassConfig)>,
}

impl Router {
    /// Partition numbers are given in the order of the classes; the last class takes topics that no filter matches.
    pub fn new(classes: &[ClassConfig]) -> Self {
        let mut next = 0;
        let first = |class: &ClassConfig| {
            let first = next;
            next += class.partitions;
            (first, class.clone())
        };
        let classes = classes.iter().map(first).collect();
        Self { classes }
    }

    pub fn route(&self, topic: &str) -> Route {
        let is_in = |class: &ClassConfig| class.filters.iter().any(|of| matches(of, topic));
        let found = self.classes.iter().find(|(_, class)| is_in(class));
        let (first, class) = found
            .or(self.classes.last())
            .expect("a log has at least one class");
        let named = class.template.as_deref().and_then(|of| level(of, topic));
        let key = named.unwrap_or(0..topic.len());
        let hash = xxh3_64(&topic.as_bytes()[key.clone()]);
        let within = (hash % u64::from(class.partitions)) as u32;
        // No topic is longer than MQTT allows; the key of a longer one would be cut.
        let clamp = |at: usize| u16::try_from(at).unwrap_or(u16::MAX);
        Route {
            partition: PartitionId(first + within),
            key: clamp(key.start)..clamp(key.end),
        }
    }
}

/// MQTT's matching of a topic against a filter. Wildcards at the first level do not match a topic that begins with `$`.
fn matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut levels = topic.split('/');
    for wanted in filter.split('/') {
        if wanted == "#" {
            return true;
        }
        match levels.next() {
            Some(level) if wanted == "+" || wanted == level => {}
            _ => return false,
        }
    }
    levels.next().is_none()
}

/// Position in `topic` of the level that `template` names in braces, when the other levels match.
pub(crate) fn level(template: &str, topic: &str) -> Option<Range<usize>> {
    let mut named = None;
    let mut start = 0;
    let mut levels = topic.split('/');
    for wanted in template.split('/') {
        if wanted == "#" {
            return named;
        }
        let level = levels.next()?;
        if wanted.starts_with('{') && wanted.ends_with('}') {
            named = Some(start..start + level.len());
        } else if wanted != "+" && wanted != level {
            return None;
        }
        start += level.len() + 1;
    }
    if levels.next().is_none() { named } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Class;

    fn router() -> Router {
        let mut classes: Vec<_> = Class::ALL.into_iter().map(ClassConfig::new).collect();
        classes[3].partitions = 4;
        Router::new(&classes)
    }

    #[test]
    fn topics_go_to_the_class_whose_filter_matches() {
        let partition = |topic: &str| router().route(topic).partition.0;
        assert_eq!(partition("$state/session/a"), 0);
        assert_eq!(partition("devices/7/actions"), 1);
        assert_eq!(partition("$receipts"), 1);
        assert_eq!(partition("artifacts/fw/1"), 2);
        assert!(partition("devices/7/telemetry") >= 3);
        assert!(partition("anything") >= 3);
        assert!(partition("$other") >= 3);
    }

    #[test]
    fn one_device_has_one_partition_and_its_id_is_the_key() {
        let router = router();
        let partition = router.route("devices/ab/telemetry").partition;
        for level in ["/telemetry", "/status", "/x/y", ""] {
            let route = router.route(&format!("devices/ab{level}"));
            assert_eq!((route.partition, route.key), (partition, 8..10), "{level}");
        }
    }

    #[test]
    fn topics_outside_the_template_route_by_the_whole_topic() {
        assert_eq!(router().route("plant/line/1").key, 0..12);
        assert_eq!(router().route("devices").key, 0..7);
    }

    #[test]
    fn the_partition_of_a_topic_never_changes() {
        // Fixed at creation: another hash would break the order of a device's records in every existing log.
        let router = router();
        for (device, partition) in [6, 5, 6, 3, 5, 4, 5, 4].into_iter().enumerate() {
            let route = router.route(&format!("devices/d{device}/telemetry"));
            assert_eq!(route.partition, PartitionId(partition), "{device}");
        }
    }
}
