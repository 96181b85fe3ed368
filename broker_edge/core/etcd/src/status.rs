//! What a status of gRPC means: what is wrong, and whether the request may have been carried out.

use std::error::Error as StdError;

use tonic::{Code, Status};

use crate::error::Fault;

/// Of what a peer says, in a message to a person.
const SAID_CHARS_MAX: usize = 200;

/// The connection is closed, and the request was not sent.
#[derive(Debug, thiserror::Error)]
#[error("the connection is closed")]
pub struct Gone;

/// Why a request has no answer.
#[derive(Debug)]
pub struct Failure {
    pub fault: Fault,
    /// The member may have carried it out.
    pub may_be_done: bool,
    /// The token is refused: authenticate and ask again.
    pub is_token_refused: bool,
}

/// Of a request that was not sent, or changes nothing.
impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self {
            fault,
            may_be_done: false,
            is_token_refused: false,
        }
    }
}

/// Whether etcd itself has made this status, and not a library, a proxy or another server.
fn is_of_etcd(status: &Status) -> bool {
    status.message().starts_with("etcdserver:") || status.message().starts_with("auth:")
}

/// What a status means for a request that was sent.
pub fn failure(status: &Status) -> Failure {
    let is_gone = sources(status).any(|source| source.is::<Gone>());
    let token =
        status.code() == Code::Unauthenticated || status.message().contains("auth store is old");
    Failure {
        fault: fault(status, is_gone),
        may_be_done: !(is_gone || is_refusal(status)),
        is_token_refused: is_of_etcd(status) && token,
    }
}

/// Whether etcd says that it has not carried out a request, and will not.
pub fn is_refusal(status: &Status) -> bool {
    if !is_of_etcd(status) {
        return false;
    }
    match status.code() {
        // It says the same of the write that fills the store, and carries that one out.
        Code::ResourceExhausted => !is_full(status),
        Code::InvalidArgument
        | Code::NotFound
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::FailedPrecondition
        | Code::OutOfRange => true,
        _ => false,
    }
}

fn is_full(status: &Status) -> bool {
    status.message().contains("space exceeded")
}

fn fault(status: &Status, is_gone: bool) -> Fault {
    let message = shortened(status.message());
    if is_gone {
        return Fault::Unreachable(Gone.to_string());
    }
    if is_of_etcd(status) {
        return match status.code() {
            Code::Unavailable if message.contains("no leader") => Fault::NoLeader,
            Code::Unavailable => Fault::Unavailable(message),
            Code::PermissionDenied => Fault::Denied,
            Code::InvalidArgument if message.contains("user name is empty") => Fault::NoUser,
            Code::NotFound if message.contains("lease not found") => Fault::NoLease,
            Code::ResourceExhausted if is_full(status) => Fault::Full,
            _ => Fault::Refused(message),
        };
    }
    let why = shortened(
        &sources(status)
            .last()
            .map_or(message, |source| source.to_string()),
    );
    match status.code() {
        _ if sources(status).next().is_some() => Fault::Lost(why),
        Code::OutOfRange => Fault::LargeAnswer(why),
        Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded => Fault::Unavailable(why),
        _ => Fault::NotEtcd(why),
    }
}

fn sources(status: &Status) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(StdError::source(status), |&error| error.source())
}

pub fn deepest(error: &(dyn StdError + 'static)) -> String {
    let last = std::iter::successors(Some(error), |&error| error.source()).last();
    shortened(&last.map_or_else(String::new, ToString::to_string))
}

pub fn said(error: &impl ToString) -> String {
    shortened(&error.to_string())
}

/// Text of a peer, safe to show: bounded and in one line.
pub fn shortened(text: &str) -> String {
    let visible = text
        .chars()
        .map(|one| if one.is_control() { ' ' } else { one });
    visible.take(SAID_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_etcd_itself_can_say_that_a_request_was_not_carried_out() {
        let denied = Status::permission_denied("etcdserver: permission denied");
        assert!(!failure(&denied).may_be_done);
        assert_eq!(failure(&denied).fault, Fault::Denied);
        let busy = Status::resource_exhausted("etcdserver: too many requests");
        assert!(!failure(&busy).may_be_done);
        for status in [
            Status::permission_denied("h2 protocol error: inadequate security"),
            Status::unavailable("etcdserver: request timed out"),
            Status::unavailable("etcdserver: no leader"),
            Status::unavailable("etcdserver: leader changed"),
            Status::unknown("etcdserver: something new"),
            Status::resource_exhausted("etcdserver: mvcc: database space exceeded"),
            Status::cancelled(""),
            Status::out_of_range("decoded message length too large"),
        ] {
            assert!(failure(&status).may_be_done, "{status}");
        }
    }

    #[test]
    fn a_refused_token_is_told_from_a_wrong_password() {
        let token = |status: &Status| failure(status).is_token_refused;
        assert!(token(&Status::unauthenticated(
            "etcdserver: invalid auth token"
        )));
        assert!(token(&Status::invalid_argument(
            "etcdserver: revision of auth store is old"
        )));
        assert!(!token(&Status::unauthenticated("who are you?")));
        let wrong = "etcdserver: authentication failed, invalid user ID or password";
        assert!(!token(&Status::invalid_argument(wrong)));
    }

    #[test]
    fn text_of_a_peer_stays_in_one_short_line() {
        let text = shortened(&"a\r\nb\u{1b}".repeat(1000));
        assert_eq!(text.chars().count(), SAID_CHARS_MAX);
        assert!(text.starts_with("a  b a"), "{text}");
    }
}
