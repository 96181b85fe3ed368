//! Start positions of subscriptions: their syntax, and the offsets they resolve to.
//!
//! `earliest`, `latest`, a time in Unix microseconds, or `<partition>:<offset>[,…]`; over MQTT 5 as a user property,
//! over MQTT 3.1.1 as the first levels of the filter (`$at/<position>/<filter>`).

use headwater_log::Offset;
use headwater_mqtt::{Properties, ReasonCode};

use crate::engine::env::Env;
use crate::engine::ids::PartitionOffset;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Position {
    Earliest,
    Latest,
    /// The first record at or after this time, in Unix microseconds.
    Time(i64),
    /// Partition names and the offset to begin at; other partitions begin at the latest offset.
    Offsets(Vec<(String, u64)>),
}

/// What to do when an offset is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ResetPolicy {
    #[default]
    None,
    Earliest,
    Latest,
}

/// A filter and the position in front of it.
#[derive(Debug, PartialEq, Eq)]
pub struct PositionedFilter<'a> {
    pub filter: &'a str,
    pub position: Option<&'a str>,
    /// Deliveries carry their offset in the topic.
    pub offset_topics: bool,
}

/// Where a subscription begins.
#[derive(Debug, Default)]
pub struct StartOffsets {
    pub cursors: Vec<PartitionOffset>,
    /// `<partition name>:<start>-<end>` of offsets that the subscription will not get.
    pub gaps: Vec<String>,
}

/// Why a subscription cannot begin there: the reason code for its SUBACK, and a sentence.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: ReasonCode,
    pub sentence: String,
}

/// Removes `$at/<position>/`, `$at+/<position>/` or `$at-offset/<position>/` from a filter.
pub fn split_filter(filter: &str) -> PositionedFilter<'_> {
    let plain = PositionedFilter {
        filter,
        position: None,
        offset_topics: false,
    };
    let plain_at = filter.strip_prefix("$at/");
    // Client libraries that check filters refuse a `+` within a level, so there are two spellings.
    let each = filter
        .strip_prefix("$at+/")
        .or_else(|| filter.strip_prefix("$at-offset/"));
    let (rest, offset_topics) = match (plain_at, each) {
        (Some(rest), _) => (rest, false),
        (None, Some(rest)) => (rest, true),
        (None, None) => return plain,
    };
    match rest.split_once('/') {
        Some((position, filter)) => PositionedFilter {
            filter,
            position: Some(position),
            offset_topics,
        },
        None => PositionedFilter {
            filter: "",
            position: Some(rest),
            offset_topics,
        },
    }
}

impl Refusal {
    pub fn new(reason: ReasonCode, sentence: impl Into<String>) -> Self {
        let sentence = sentence.into();
        Self { reason, sentence }
    }
}

fn bad(sentence: String) -> Refusal {
    Refusal::new(ReasonCode::ImplementationSpecificError, sentence)
}

impl Position {
    /// # Errors
    /// Text in none of these forms.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        match text {
            "earliest" => return Ok(Self::Earliest),
            "latest" => return Ok(Self::Latest),
            _ => {}
        }
        let wrong = || {
            bad(format!(
                "stream-offset {text:?} is not earliest, latest, a time in microseconds or <partition>:<offset>"
            ))
        };
        if let Ok(time_us) = text.parse() {
            return Ok(Self::Time(time_us));
        }
        let place = |part: &str| {
            let (name, offset) = part.rsplit_once(':')?;
            Some((name.to_owned(), offset.parse().ok()?))
        };
        text.split(',')
            .map(|part| place(part).ok_or_else(wrong))
            .collect::<Result<_, _>>()
            .map(Self::Offsets)
    }

    /// The start offsets of a new subscription in every partition that it can reach.
    pub fn start_of(
        &self,
        filter: &str,
        policy: ResetPolicy,
        live: &[Offset],
        env: &Env,
    ) -> Result<StartOffsets, Refusal> {
        if let Self::Offsets(offsets) = self {
            for (name, _) in offsets {
                if env
                    .log
                    .by_name(name)
                    .is_none_or(|partition| partition.class() == headwater_log::Class::Internal)
                {
                    return Err(bad(format!(
                        "stream-offset names partition {name:?}, which this log does not have"
                    )));
                }
            }
        }
        let mut start = StartOffsets::default();
        for partition in env.partitions_of(filter) {
            let log = &env.partitions[partition.index()];
            let live_at = live[partition.index()];
            let log_start = log.log_start();
            let wanted = match self {
                Self::Earliest => log_start,
                Self::Latest => live_at,
                Self::Time(time_us) => log
                    .offset_for_time(*time_us)
                    .map_err(|error| bad(format!("the log cannot be read: {error}")))?
                    .min(live_at),
                Self::Offsets(offsets) => {
                    let named = offsets.iter().find(|(name, _)| name == log.name());
                    named.map_or(live_at, |(_, offset)| Offset(*offset))
                }
            };
            let from = if wanted < log_start || wanted > live_at {
                match policy {
                    ResetPolicy::None => {
                        let sentence = format!(
                            "offset {wanted} of {} is gone: the log starts at {log_start} and ends at {live_at}",
                            log.name()
                        );
                        return Err(Refusal::new(ReasonCode::TopicFilterInvalid, sentence));
                    }
                    ResetPolicy::Earliest => log_start,
                    ResetPolicy::Latest => live_at,
                }
            } else {
                wanted
            };
            if wanted < from {
                start.gaps.push(format!("{}:{wanted}-{from}", log.name()));
            }
            let known = log
                .gaps()
                .into_iter()
                .filter(|gap| gap.range.end > from && gap.range.start < live_at);
            start.gaps.extend(
                known.map(|gap| format!("{}:{}-{}", log.name(), gap.range.start, gap.range.end)),
            );
            start.cursors.push((partition, from));
        }
        Ok(start)
    }
}

impl ResetPolicy {
    /// # Errors
    /// Text that is no known policy.
    pub fn of(properties: &Properties<'_>) -> Result<Self, Refusal> {
        match properties.user_property("stream-offset-policy") {
            None | Some("none") => Ok(Self::None),
            Some("earliest") => Ok(Self::Earliest),
            Some("latest") => Ok(Self::Latest),
            Some(other) => Err(bad(format!(
                "stream-offset-policy {other:?} is not none, earliest or latest"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_position_is_read_and_nothing_else() {
        assert_eq!(Position::parse("earliest"), Ok(Position::Earliest));
        assert_eq!(Position::parse("latest"), Ok(Position::Latest));
        assert_eq!(
            Position::parse("1700000000000000"),
            Ok(Position::Time(1_700_000_000_000_000))
        );
        let offsets = vec![("telemetry-0".to_owned(), 7), ("control-0".to_owned(), 0)];
        assert_eq!(
            Position::parse("telemetry-0:7,control-0:0"),
            Ok(Position::Offsets(offsets))
        );
        for wrong in [
            "",
            "first",
            "telemetry-0",
            "telemetry-0:",
            "telemetry-0:x",
            "telemetry-0:1,",
            "a:-1",
        ] {
            let refusal = Position::parse(wrong).expect_err(wrong);
            assert_eq!(refusal.reason, ReasonCode::ImplementationSpecificError);
            assert!(refusal.sentence.contains(wrong));
        }
    }

    #[test]
    fn a_filter_gives_its_position_away() {
        let located = |filter, position, offset_topics| PositionedFilter {
            filter,
            position,
            offset_topics,
        };
        assert_eq!(split_filter("a/#"), located("a/#", None, false));
        assert_eq!(
            split_filter("$at/earliest/a/#"),
            located("a/#", Some("earliest"), false)
        );
        assert_eq!(
            split_filter("$at+/telemetry-0:5/a"),
            located("a", Some("telemetry-0:5"), true)
        );
        assert_eq!(
            split_filter("$at-offset/latest/a"),
            located("a", Some("latest"), true)
        );
        assert_eq!(
            split_filter("$at/earliest"),
            located("", Some("earliest"), false)
        );
        assert_eq!(split_filter("$attic/a"), located("$attic/a", None, false));
    }
}
