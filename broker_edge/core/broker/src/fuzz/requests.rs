//! Requests: the JSON of Flight, headers, and the manifest of an artifact.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use tonic::Status;

use super::check_sentence;
use crate::filter::Filters;
use crate::hosts::{self, Hosts, Origin};
use crate::pattern::Pattern;
use crate::service::admin::artifact_manifest::Manifest;
use crate::service::admin::byte_range::{RequestedRange, wanted};
use crate::service::authenticate::Shown;
use crate::service::error::Refusal;
use crate::service::request::{self, read};

const TOPICS: [&str; 4] = ["a", "devices/7/telemetry", "$gaps", "ä/水/🦀"];
/// A refusal travels in a header.
const STATUS_BYTES_MAX: usize = 8_000;

fn refused(refusal: Refusal) {
    check_sentence(Status::from(refusal).message(), STATUS_BYTES_MAX);
}

fn parsed<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    read::<T>("the body", body).map_err(refused).ok()
}

fn select(filters: Option<Vec<String>>, pattern: Option<&str>) {
    let filters = match pattern.map(Pattern::new) {
        Some(Ok(pattern)) => {
            for topic in TOPICS {
                let matches = !pattern.is_too_much_for(topic) && pattern.matches(topic);
                let reach = pattern.reach().iter();
                let mut reach = reach.map(|filter| Filters::new(Some(vec![filter.clone()])));
                assert!(
                    !matches || reach.any(|filter| filter.is_ok_and(|it| it.wants(topic))),
                    "{topic} matches and is out of reach: {:?}",
                    pattern.reach()
                );
            }
            Filters::of_pattern(pattern)
        }
        Some(Err(bad)) => return check_sentence(&bad.to_string(), 4_000),
        None => match Filters::new(filters) {
            Ok(filters) => filters,
            Err(bad) => return assert!(!bad.to_string().is_empty()),
        },
    };
    let filters = filters.within_work(&Arc::default());
    for topic in TOPICS {
        assert!(!filters.wants(topic) || filters.may_want_some());
    }
}

/// The first byte chooses the kind of request.
pub fn flight_json(input: &[u8]) {
    let Some((kind, body)) = input.split_first() else {
        return;
    };
    match kind % 12 {
        0 => drop(parsed::<request::Empty>(body)),
        1 => {
            if let Some(topics) = parsed::<request::Topics>(body) {
                select(topics.filters, topics.pattern.as_deref());
            }
        }
        2 => drop(parsed::<request::Offsets>(body)),
        3 => {
            if let Some(plan) = parsed::<request::Plan>(body) {
                for name in plan.from.keys() {
                    let _ = request::number("from", name).map_err(refused);
                }
            }
        }
        4 => drop(parsed::<request::Commit>(body)),
        5 => drop(parsed::<request::CommittedOf>(body)),
        6 => drop(parsed::<request::Groups>(body)),
        7 => drop(parsed::<request::GroupOf>(body)),
        8 => drop(parsed::<request::Gap>(body)),
        9 => drop(parsed::<request::Backup>(body)),
        10 => {
            if let Some(ticket) = parsed::<request::Ticket>(body) {
                select(ticket.filters, ticket.pattern.as_deref());
            }
        }
        _ => drop(parsed::<request::Put>(body)),
    }
}

/// `Authorization`, `Range`, `Host` and `Origin`.
pub fn headers(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Ok(Shown::Password { user, password }) = Shown::parse(text) {
        assert!(user.len() + password.len() < text.len());
    }
    for size in [0, 1, 1_000, u64::MAX] {
        if let RequestedRange::Part(range) = wanted(Some(text), size) {
            assert!(
                range.start < range.end && range.end <= size,
                "{range:?} of {size}"
            );
        }
    }
    let known = Hosts::new(&["broker.example".to_owned()]);
    if let Some((host, _)) = hosts::split(text) {
        assert!(text.contains(host));
        known.knows(host);
    }
    if let Some(origin) = Origin::parse(text) {
        origin.is_of_host("broker.example:80");
        origin.is_at("broker.example", None);
    }
}

pub fn artifact_manifest(input: &[u8]) {
    match Manifest::parse(input, "fw", "1") {
        Ok(manifest) => {
            let chunks = manifest.size.div_ceil(manifest.chunk_size);
            let sizes = (0..chunks).map(|chunk| manifest.bytes_of(chunk));
            assert_eq!(sizes.sum::<u64>(), manifest.size);
            for chunk in 0..chunks {
                let place = manifest
                    .offset_of(chunk)
                    .expect("every chunk has its offset");
                assert!(chunk == 0 || manifest.offset_of(chunk - 1) < Some(place));
            }
            assert_eq!(manifest.offset_of(chunks), None);
        }
        Err(sentence) => check_sentence(&sentence, 2_000),
    }
}
