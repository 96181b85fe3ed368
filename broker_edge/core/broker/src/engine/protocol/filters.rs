//! Which filters are accepted, whatever the client may read.

use headwater_mqtt::ReasonCode;
use headwater_mqtt::topic::{self, parse_shared};

use crate::config::MqttSettings;
use crate::engine::env::Env;
use crate::engine::routing::position::Refusal;
use crate::engine::session::Session;
use crate::engine::shared_groups::Groups;

/// Why nobody may subscribe to this filter, if there is a reason; otherwise the filter behind the group's name of a
/// shared one.
pub fn check_filter<'a>(
    session: &Session,
    filter: &'a str,
    groups: &Groups,
    env: &Env,
) -> Result<Option<&'a str>, Refusal> {
    let invalid = |sentence| Refusal::new(ReasonCode::TopicFilterInvalid, sentence);
    let shared = parse_shared(filter).map_err(|error| invalid(error.to_string()))?;
    let shared = shared.map(|shared| shared.filter);
    if shared.is_some() {
        groups.check(session, filter, env)?;
    }
    let limits = &env.settings.mqtt;
    check_limits(limits, shared.unwrap_or(filter), filter)?;
    if session.subscription(filter).is_none() {
        check_room(limits, session, filter)?;
    }
    Ok(shared)
}

/// Whether the broker accepts a filter at all; `inner` is the filter without the name of a shared group.
fn check_limits(limits: &MqttSettings, inner: &str, filter: &str) -> Result<(), Refusal> {
    let invalid = |sentence| Err(Refusal::new(ReasonCode::TopicFilterInvalid, sentence));
    if topic::check_filter(inner.as_bytes()).is_err() {
        return invalid("there is no filter after the position".to_owned());
    }
    let (levels_max, bytes_max) = (limits.max_topic_levels, limits.max_topic_bytes);
    if 1 + inner.bytes().filter(|byte| *byte == b'/').count() > usize::from(levels_max) {
        return invalid(format!("a filter has at most {levels_max} levels"));
    }
    if filter.len() > bytes_max as usize {
        return invalid(format!("a filter has at most {bytes_max} bytes"));
    }
    if !limits.wildcard_available && filter.contains(['+', '#']) {
        let reason = ReasonCode::WildcardSubscriptionsNotSupported;
        return Err(Refusal::new(reason, "wildcards are not available"));
    }
    Ok(())
}

/// Whether a session may have one more filter.
fn check_room(limits: &MqttSettings, session: &Session, filter: &str) -> Result<(), Refusal> {
    let full = |sentence| Err(Refusal::new(ReasonCode::QuotaExceeded, sentence));
    let (count_max, bytes_max) = (limits.max_subscriptions, limits.max_filter_bytes.as_usize());
    if session.subscriptions.len() >= count_max as usize {
        return full(format!("a session has at most {count_max} subscriptions"));
    }
    let held = session.subscriptions.iter();
    let bytes: usize = held.map(|held| held.filter.len()).sum();
    if bytes + filter.len() > bytes_max {
        return full(format!(
            "the filters of a session have at most {bytes_max} bytes"
        ));
    }
    Ok(())
}
