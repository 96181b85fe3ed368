//! The readers of bytes from outside, each as one function of bytes that panics when a promise does not hold: nothing
//! panics, a refusal says something, and what was read can be written and read again.
//!
//! `make fuzz` calls them with inputs that coverage guides; the tests call them with the corpus and with changed inputs
//! of it (`broker_edge/core/fuzz`). The codec has its function in its own tests, the log in `log/src/fuzz`. Whole
//! connections have theirs beside the code that serves them: `engine/fuzz`, `service/fuzz`.

mod arrow_put;
mod identity;
#[allow(dead_code, reason = "the tests of the log use the rest")]
#[path = "../../../log/tests/it/support/memory.rs"]
pub(crate) mod memory_files;
mod requests;
mod settings;
mod stored;
mod transports;

/// A reader and the name of its corpus.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: &[Target] = &[
    ("first_bytes", transports::first_bytes),
    ("websocket", transports::websocket),
    ("upgrade", transports::upgrade),
    ("users", identity::users),
    ("acl", identity::acl),
    ("token_keys", identity::token_keys),
    ("token", identity::token),
    ("certificate", identity::certificate),
    ("config", settings::config),
    ("flight_json", requests::flight_json),
    ("headers", requests::headers),
    ("artifact_manifest", requests::artifact_manifest),
    ("arrow_put", arrow_put::arrow_put),
    ("stored", stored::stored),
    ("session", crate::engine::fuzz::session),
    ("admin_http", crate::service::fuzz::admin_http),
];

/// A refusal is a sentence for a person: not empty, not longer than `bytes_max`, one line.
fn check_sentence(sentence: &str, bytes_max: usize) {
    assert!(!sentence.trim().is_empty(), "a refusal says nothing");
    assert!(
        sentence.len() <= bytes_max,
        "a refusal of {} bytes: {sentence}",
        sentence.len()
    );
    assert!(
        !sentence.contains('\n'),
        "a refusal of several lines: {sentence}"
    );
}

#[cfg(test)]
#[path = "../../../fuzz/src/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::{TARGETS, replay};

    #[test]
    fn every_reader_keeps_its_promises_on_its_corpus_and_on_changed_inputs() {
        for (name, read) in TARGETS {
            replay::replay(name, *read);
        }
    }

    /// The negative control.
    #[test]
    #[should_panic(expected = "a reader that trusts a length")]
    fn a_reader_that_trusts_its_input_is_noticed() {
        replay::replay("first_bytes", |input| {
            let trusted = input
                .first()
                .is_none_or(|first| input.len() > usize::from(*first));
            assert!(trusted, "a reader that trusts a length");
        });
    }
}
