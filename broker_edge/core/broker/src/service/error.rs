//! Why a call is refused, and the only conversion to a gRPC status with its JSON.

use std::ops::Range;

use headwater_log::{AppendError, GapKind, Offset, Partition, ReadError};
use serde_json::{Map, Value, json};
use tonic::{Code, Status};

use crate::auth::Denied;
use crate::state::StateError;

/// A refusal as docs/protocols.md, section 3, defines it.
#[derive(Debug)]
pub struct Refusal {
    error: &'static str,
    code: Code,
    message: String,
    more: Map<String, Value>,
    /// Whether the caller's own share is used up.
    is_over_share: bool,
    /// The topic or filter that it is about, for the audit.
    topic: Option<Box<str>>,
}

/// Longest message and field name of a refusal, in characters: both may quote the caller's input and are sent in a
/// header.
const MESSAGE_CHARS_MAX: usize = 1_000;
const FIELD_CHARS_MAX: usize = 100;

fn shortened(mut text: String, chars_max: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(chars_max) {
        text.truncate(end);
        text.push('…');
    }
    text
}

fn at(partition: &Partition) -> Value {
    json!({"partition": partition.id().0})
}

impl Refusal {
    fn new(error: &'static str, code: Code, message: impl Into<String>) -> Refusal {
        Refusal {
            error,
            code,
            message: shortened(message.into(), MESSAGE_CHARS_MAX),
            more: Map::new(),
            is_over_share: false,
            topic: None,
        }
    }

    /// With these members beside error and message.
    fn with(mut self, more: Value) -> Refusal {
        if let Value::Object(more) = more {
            self.more = more;
        }
        self
    }

    pub fn invalid(field: &str, message: impl Into<String>) -> Refusal {
        let field = shortened(field.to_owned(), FIELD_CHARS_MAX);
        let refusal = Refusal::new("invalid_argument", Code::InvalidArgument, message);
        refusal.with(json!({"field": field}))
    }

    pub fn not_found(message: impl Into<String>) -> Refusal {
        Refusal::new("not_found", Code::NotFound, message)
    }

    pub fn fenced(group: &str, newest: u64, given: u64) -> Refusal {
        let message =
            format!("a newer reader of group {group} has epoch {newest}; this reader has {given}");
        Refusal::new("fenced", Code::FailedPrecondition, message)
            .with(json!({"group": group, "reader_epoch": newest}))
    }

    pub fn out_of_range(partition: &Partition, wanted: u64) -> Refusal {
        let (log_start, high_watermark) = (partition.log_start().0, partition.high_watermark().0);
        let message = format!(
            "offset {wanted} of partition {} is outside [{log_start}, {high_watermark}]",
            partition.name()
        );
        let more = json!({
            "partition": partition.id().0,
            "log_start": log_start,
            "high_watermark": high_watermark,
            "wanted": wanted,
        });
        Refusal::new("out_of_range", Code::OutOfRange, message).with(more)
    }

    pub fn stopped(partition: &Partition, reason: &str) -> Refusal {
        let message = format!(
            "partition {} accepts no records until the broker restarts: {reason}",
            partition.name()
        );
        Refusal::new("stopped", Code::Unavailable, message).with(at(partition))
    }

    /// The records are queued, neither written nor refused.
    pub fn queued_for_space(partition: &Partition) -> Refusal {
        let message = format!(
            "no space left for partition {}; the records wait for it and may still be written, so send them again with \
             the same idempotency keys",
            partition.name()
        );
        Refusal::new("full", Code::ResourceExhausted, message).with(at(partition))
    }

    pub fn unavailable(message: impl Into<String>) -> Refusal {
        Refusal::new("unavailable", Code::Unavailable, message)
    }

    /// This node is not the one that serves clients. `leader`: the Flight address of the one that does.
    pub fn not_leader(leader: Option<&str>) -> Refusal {
        let message = match leader {
            Some(leader) => format!("this node does not serve clients: use {leader}"),
            None => {
                "this node does not serve clients and knows none that does: try again".to_owned()
            }
        };
        Refusal::new("not_leader", Code::Unavailable, message).with(json!({"leader": leader}))
    }

    /// The caller has used up one user's share; ending its own calls frees it.
    pub fn over_share(message: impl Into<String>) -> Refusal {
        Refusal {
            is_over_share: true,
            ..Refusal::unavailable(message)
        }
    }

    /// The reason in the audit log; `None` for a refusal that concerns no particular caller.
    pub fn audit_reason(&self) -> Option<&'static str> {
        match self.code {
            Code::PermissionDenied => Some("acl"),
            Code::ResourceExhausted if self.error == "exhausted" => Some("limit"),
            _ => self.is_over_share.then_some("share"),
        }
    }

    /// A limit is reached that does not free itself.
    pub fn exhausted(message: impl Into<String>) -> Refusal {
        let code = Code::ResourceExhausted;
        Refusal::new("exhausted", code, message)
    }

    pub fn unauthenticated(denied: Denied) -> Refusal {
        let message = match denied {
            Denied::NoCredentials => {
                "credentials are required: `Authorization: Basic` with user and password, or `Bearer` with a token"
            }
            Denied::Busy => "too many credential checks are waiting; try again",
            Denied::Method => "credentials must be sent as `Authorization: Basic` or `Bearer`",
            _ => "the credentials are invalid or have expired",
        };
        let (error, code) = match denied {
            Denied::Busy => ("unavailable", Code::Unavailable),
            _ => ("unauthenticated", Code::Unauthenticated),
        };
        Refusal::new(error, code, message)
    }

    pub fn not_allowed(message: impl Into<String>) -> Refusal {
        let code = Code::PermissionDenied;
        Refusal::new("permission_denied", code, message)
    }

    /// A refusal that is about this topic or filter.
    pub fn about(self, topic: &str) -> Refusal {
        Refusal {
            topic: Some(topic.into()),
            ..self
        }
    }

    pub fn topic(&self) -> Option<&str> {
        self.topic.as_deref()
    }

    /// The error code for programs.
    pub fn error(&self) -> &'static str {
        self.error
    }

    pub fn code(&self) -> Code {
        self.code
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    /// The caller has reached its limit of connections.
    pub fn too_many_connections(of: &str, max: usize, setting: &str) -> Refusal {
        let message = format!(
            "the {of} has {max} connections, the limit of {setting}: close some, or raise the limit"
        );
        Refusal::unavailable(message).with(json!({"limit": setting}))
    }

    pub fn is_too_many(&self) -> bool {
        self.more.contains_key("limit")
    }

    pub fn is_not_allowed(&self) -> bool {
        self.code == Code::PermissionDenied
    }

    pub fn internal(message: impl Into<String>) -> Refusal {
        Refusal::new("internal", Code::Internal, message)
    }

    pub fn data_loss(partition: &Partition, range: &Range<Offset>, kind: GapKind) -> Refusal {
        let (start, end, reason) = (range.start.0, range.end.0, kind.name());
        let message = format!(
            "offsets [{start}, {end}) of partition {} are lost: {reason}",
            partition.name()
        );
        let at = partition.id().0;
        let more = json!({"partition": at, "start": start, "end": end, "reason": reason});
        Refusal::new("data_loss", Code::DataLoss, message).with(more)
    }

    pub fn from_read(partition: &Partition, error: ReadError) -> Refusal {
        match error {
            ReadError::OutOfRange { wanted, .. } => Refusal::out_of_range(partition, wanted.0),
            ReadError::Damaged { range } => Refusal::data_loss(partition, &range, GapKind::Damage),
            ReadError::Io { .. } => {
                Refusal::internal(format!("partition {}: {error}", partition.name()))
            }
        }
    }

    pub fn from_append(partition: &Partition, error: AppendError) -> Refusal {
        match error {
            AppendError::ReadOnly { reason, .. } => Refusal::stopped(partition, &reason),
            AppendError::TooLarge { .. } => Refusal::invalid("value", error.to_string()),
            AppendError::Full { .. } => {
                let code = Code::ResourceExhausted;
                Refusal::new("full", code, error.to_string()).with(at(partition))
            }
            AppendError::QueueFull { .. }
            | AppendError::Unverified { .. }
            | AppendError::NotLeader { .. } => {
                Refusal::unavailable(error.to_string()).with(at(partition))
            }
        }
    }

    pub fn from_state(partition: &Partition, error: StateError) -> Refusal {
        match error {
            StateError::Append(error) => Refusal::from_append(partition, error),
            StateError::Read(error) => Refusal::from_read(partition, error),
            StateError::KeyTooLong { .. } => Refusal::invalid("group", error.to_string()),
            StateError::TooMany { .. } | StateError::NoPartition => {
                Refusal::internal(error.to_string())
            }
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        let mut body = Map::from_iter([
            ("error".to_owned(), Value::from(refusal.error)),
            ("message".to_owned(), Value::from(refusal.message)),
        ]);
        body.extend(refusal.more);
        Status::new(refusal.code, Value::Object(body).to_string())
    }
}
