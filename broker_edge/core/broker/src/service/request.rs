//! The JSON of requests: descriptors, tickets and action bodies. Unknown fields are refused by name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Shared;
use super::caller::Caller;
use super::error::Refusal;
use crate::auth::Access;
use crate::filter::{Filters, WorkOver};
use crate::pattern::Pattern;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Empty {}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Topics {
    pub filters: Option<Vec<String>>,
    pub pattern: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Offsets {
    pub partitions: Option<Vec<u32>>,
    pub filters: Option<Vec<String>>,
    pub pattern: Option<String>,
    pub time_us: Option<i64>,
    pub epoch_before: Option<BTreeMap<String, u64>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plan {
    pub from: BTreeMap<String, u64>,
    pub filters: Option<Vec<String>>,
    pub pattern: Option<String>,
    pub max_records: Option<u64>,
    pub max_bytes: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Commit {
    pub group: String,
    pub reader_epoch: u64,
    pub initial: Option<BTreeMap<String, u64>>,
    pub offsets: Option<BTreeMap<String, Committed>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Committed {
    pub committed: u64,
    pub scanned: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CommittedOf {
    pub group: String,
    pub reader_epoch: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Groups {
    /// The last name of the previous page.
    pub after: Option<String>,
    pub limit: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GroupOf {
    pub group: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Gap {
    pub group: Option<String>,
    /// The id of another log, whose broker is gone; `None` for this log.
    pub log_id: Option<String>,
    pub partition: u32,
    pub start: u64,
    /// May be unknown for another log.
    pub end: Option<u64>,
    pub reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Backup {
    pub name: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ticket {
    pub partition: u32,
    pub filters: Option<Vec<String>>,
    pub pattern: Option<String>,
    pub start: u64,
    pub end: Option<u64>,
    #[serde(default)]
    pub follow: bool,
    pub batch_rows: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Put {
    pub op: String,
}

/// The most filters of one request.
const FILTERS_MAX: usize = 4_096;
/// Kept small because decoding a body takes several times its size.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Parses the body of `what`; an empty body is the empty object.
pub(super) fn read<T: DeserializeOwned>(what: &str, body: &[u8]) -> Result<T, Refusal> {
    if body.len() > BODY_BYTES_MAX {
        let message = format!(
            "{what} has {} bytes of JSON; the limit is {BODY_BYTES_MAX}",
            body.len()
        );
        return Err(Refusal::invalid("", message));
    }
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|error| {
        let reason = error.to_string();
        // Serde quotes the name of an unknown, missing or duplicate field.
        let is_about_a_field = ["unknown field", "missing field", "duplicate field"]
            .iter()
            .any(|it| reason.starts_with(it));
        let field = reason
            .split('`')
            .nth(1)
            .filter(|_| is_about_a_field)
            .unwrap_or_default();
        Refusal::invalid(field, format!("{what}: {reason}"))
    })
}

/// Checks the filters or the pattern of a request, and restricts them to the caller's rights.
pub(super) fn filters(
    filters: Option<Vec<String>>,
    pattern: Option<&str>,
    caller: &Caller,
    access: Access,
    stop: &Arc<AtomicBool>,
) -> Result<Filters, Refusal> {
    if filters
        .as_ref()
        .is_some_and(|filters| filters.len() > FILTERS_MAX)
    {
        let message = format!("there are more than {FILTERS_MAX} filters: use fewer, or a pattern");
        return Err(Refusal::invalid("filters", message));
    }
    let filters = match (filters, pattern) {
        (Some(_), Some(_)) => {
            let message = "give either filters or a pattern, not both";
            return Err(Refusal::invalid("pattern", message));
        }
        (None, Some(text)) => Pattern::new(text)
            .map(Filters::of_pattern)
            .map_err(|error| Refusal::invalid("pattern", error.to_string()))?,
        (filters, None) => {
            Filters::new(filters).map_err(|error| Refusal::invalid("filters", error.to_string()))?
        }
    };
    let filters = filters
        .under(caller.restricting_rights(), access)
        .within_work(stop);
    if filters.may_want_some() {
        return Ok(filters);
    }
    let word = match access {
        Access::Replay => "replay",
        _ => "read",
    };
    Err(Refusal::not_allowed(format!(
        "the filters match nothing that this user may {word}"
    )))
}

/// Fails if the filters gave up: their results so far would be incomplete.
pub(super) fn check_work(filters: &Filters) -> Result<(), Refusal> {
    filters.check_work().map_err(|over| match over {
        WorkOver::TooLong { .. } => Refusal::invalid("pattern", over.to_string()),
        WorkOver::Spent => Refusal::exhausted(over.to_string()),
        WorkOver::Stopped => Refusal::unavailable(over.to_string()),
    })
}

/// Limits the number of named partitions, because repeating one would repeat its work.
pub(super) fn check_partitions(field: &str, asked: usize, shared: &Shared) -> Result<(), Refusal> {
    let most = shared.log.partitions().len();
    if asked <= most {
        return Ok(());
    }
    let message = format!("the request names {asked} partitions; the log has {most}");
    Err(Refusal::invalid(field, message))
}

/// A partition's number; JSON keys carry it as text.
pub(super) fn number(field: &str, text: &str) -> Result<u32, Refusal> {
    text.parse()
        .map_err(|_| Refusal::invalid(field, format!("`{text}` is not a partition number")))
}

#[cfg(test)]
mod tests {
    use super::{Ticket, read};
    use tonic::Status;

    #[test]
    fn unknown_and_missing_fields_are_refused_by_name() {
        let refused = |body: &str| {
            Status::from(read::<Ticket>("ticket", body.as_bytes()).unwrap_err())
                .message()
                .to_owned()
        };
        let text = refused(r#"{"partition": 1, "start": 0, "ende": 3}"#);
        assert!(
            text.contains(r#""field":"ende""#) && text.contains("invalid_argument"),
            "{text}"
        );
        assert!(refused(r#"{"partition": 1}"#).contains(r#""field":"start""#));
        assert!(refused("no").contains(r#""field":"""#));
        let long = "é".repeat(400_000);
        let text = refused(&format!(r#"{{"{long}": 1}}"#));
        assert!(
            text.contains("unknown field `éé") && text.len() < 5_000,
            "it travels in a header"
        );
    }
}
