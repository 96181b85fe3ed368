//! The JSON of requests: descriptors, tickets and action bodies. Unknown fields are refused by name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arrow_flight::FlightDescriptor;
use arrow_flight::flight_descriptor::DescriptorType;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::callers::caller::Caller;
use super::error::Refusal;
use crate::auth::Access;
use crate::filter::Filters;
use crate::filter_work::WorkOver;
use crate::pattern::Pattern;

/// Requests, of which an unknown field is refused by name.
macro_rules! requests {
    ($($(#[$about:meta])* pub struct $Name:ident { $($fields:tt)* })+) => {
        $(
            $(#[$about])*
            #[derive(Debug, Deserialize)]
            #[serde(deny_unknown_fields)]
            pub struct $Name { $($fields)* }
        )+
    };
}

requests! {
    pub struct Empty {}

    pub struct Topics {
        pub filters: Option<Vec<String>>,
        pub pattern: Option<String>,
    }

    pub struct Offsets {
        pub partitions: Option<Vec<u32>>,
        pub filters: Option<Vec<String>>,
        pub pattern: Option<String>,
        pub time_us: Option<i64>,
        pub epoch_before: Option<BTreeMap<String, u64>>,
    }

    pub struct Plan {
        pub from: BTreeMap<String, u64>,
        pub filters: Option<Vec<String>>,
        pub pattern: Option<String>,
        pub max_records: Option<u64>,
        pub max_bytes: Option<u64>,
    }

    pub struct Commit {
        pub group: String,
        pub reader_epoch: u64,
        pub initial: Option<BTreeMap<String, u64>>,
        pub offsets: Option<BTreeMap<String, Committed>>,
    }

    pub struct Committed {
        pub committed: u64,
        pub scanned: Option<u64>,
    }

    pub struct CommittedOf {
        pub group: String,
        pub reader_epoch: Option<u64>,
    }

    pub struct Groups {
        /// The last name of the previous page.
        pub after: Option<String>,
        pub limit: Option<usize>,
    }

    pub struct ResetGroup {
        pub group: String,
        pub offsets: BTreeMap<String, u64>,
    }

    pub struct GroupOf {
        pub group: String,
    }

    pub struct Gap {
        pub group: Option<String>,
        /// The id of another log, whose broker is gone; `None` for this log.
        pub log_id: Option<String>,
        pub partition: u32,
        pub start: u64,
        /// May be unknown for another log.
        pub end: Option<u64>,
        pub reason: String,
    }

    pub struct Backup {
        pub name: String,
    }

    pub struct Ticket {
        pub partition: u32,
        pub filters: Option<Vec<String>>,
        pub pattern: Option<String>,
        pub start: u64,
        pub end: Option<u64>,
        #[serde(default)]
        pub follow: bool,
        pub batch_rows: Option<usize>,
    }

    pub struct Put {
        pub op: String,
    }
}

/// Bodies up to this size are parsed on the thread that receives them.
pub const SMALL_BODY_BYTES: usize = 16 << 10;
/// The most filters of one request.
const FILTERS_MAX: usize = 4_096;
/// Kept small because decoding a body takes several times its size.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Parses the body of `what`; an empty body is the empty object.
pub fn read<T: DeserializeOwned>(what: &str, body: &[u8]) -> Result<T, Refusal> {
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

/// The unparsed JSON object in a descriptor.
pub fn text_of(descriptor: &FlightDescriptor) -> Result<&Bytes, Refusal> {
    if descriptor.r#type() != DescriptorType::Cmd {
        return Err(Refusal::invalid(
            "",
            "the descriptor must be a command with a JSON object",
        ));
    }
    Ok(&descriptor.cmd)
}

/// Parses the JSON object in a descriptor that is always short.
pub fn command<T: DeserializeOwned>(descriptor: &FlightDescriptor) -> Result<T, Refusal> {
    let text = text_of(descriptor)?;
    if text.len() > SMALL_BODY_BYTES {
        let message = format!(
            "the descriptor has {} bytes of JSON; the limit is {SMALL_BODY_BYTES}",
            text.len()
        );
        return Err(Refusal::invalid("", message));
    }
    read("the descriptor", text)
}

/// Checks the filters or the pattern of a request, and restricts them to the caller's rights.
pub fn filters(
    filters: Option<Vec<String>>,
    pattern: Option<String>,
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
        (None, Some(text)) => Pattern::new(&text)
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
    let message = format!("the filters match nothing that this user may {word}");
    let refusal = Refusal::not_allowed(message);
    Err(match filters.first() {
        Some(filter) => refusal.about(filter),
        None => refusal,
    })
}

/// Fails if the filters gave up: their results so far would be incomplete.
pub fn check_work(filters: &Filters) -> Result<(), Refusal> {
    filters.check_work().map_err(|over| match over {
        WorkOver::TooLong { .. } => Refusal::invalid("pattern", over.to_string()),
        WorkOver::Spent => Refusal::exhausted(over.to_string()),
        WorkOver::Stopped => Refusal::unavailable(over.to_string()),
    })
}

/// A partition's number; JSON keys carry it as text.
pub fn number(field: &str, text: &str) -> Result<u32, Refusal> {
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
