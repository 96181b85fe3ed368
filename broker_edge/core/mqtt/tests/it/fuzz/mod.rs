//! Fuzzing of the codec: corpus packets, changed, spliced and generated, are checked against the codec's promises.
//!
//! A short run is part of the tests; `make fuzz-machine ARGS='--executions 10000000'` is the long one. The mutator
//! knows the format, and the codec's answers steer the run: an input becomes a seed when its error sentence, or its
//! packet type with its set of properties, has not been seen before. `make fuzz` runs the same checks on inputs that
//! coverage guides. A failure prints the input and the seed.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic anywhere")]

mod check;
mod mutate;
#[path = "../../../../fuzz/src/replay.rs"]
mod replay;

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use mutate::Mutator;

use crate::counting::held_bytes;

/// Executions of the short run.
const EXECUTIONS: u64 = 300_000;
/// The most seeds of a run, corpus included, so that the process does not grow with the number of findings.
const SEEDS_MAX: usize = 4096;
/// How much more memory a run may hold than at its beginning. Seeds do not count: their number is bounded, and a short
/// run still finds new ones.
const GROWTH_BYTES_MAX: i64 = 1 << 20;

/// The packets of the corpus.
fn corpus() -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz-corpus");
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    let mut seeds = Vec::new();
    for file in files {
        for line in std::fs::read_to_string(&file).unwrap().lines() {
            if line.starts_with('#') {
                continue;
            }
            let digits = line.split(' ').next().unwrap();
            let pairs = (0..digits.len()).step_by(2).map(|at| &digits[at..at + 2]);
            seeds.push(
                pairs
                    .map(|pair| u8::from_str_radix(pair, 16).unwrap())
                    .collect(),
            );
        }
    }
    seeds
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
}

/// Bytes that this thread holds, without the seeds.
fn held_beside(seeds: &[Vec<u8>]) -> i64 {
    let of_seeds: usize = seeds.iter().map(Vec::capacity).sum();
    held_bytes() - of_seeds as i64
}

/// Resident memory of this process, in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

#[test]
fn no_bytes_make_the_codec_panic_allocate_or_disagree_with_itself() {
    let executions = number("HEADWATER_FUZZ_EXECUTIONS").unwrap_or(EXECUTIONS);
    let seed = number("HEADWATER_FUZZ_SEED").unwrap_or(0x9e37_79b9_7f4a_7c15);
    let mut seeds = corpus();
    let of_corpus = seeds.len();
    let mut mutator = Mutator::new(seed);
    let mut seen = HashSet::new();
    for bytes in &seeds {
        seen.insert(check::check(bytes, 0));
    }
    let mut input = Vec::with_capacity(1 << 16);
    let (mut before_kib, mut held) = (0, 0);
    for execution in 0..executions {
        if execution == executions / 10 {
            before_kib = resident_kib();
            held = held_beside(&seeds);
        }
        mutator.next_input(&seeds, &mut input);
        let cut = mutator.below(input.len() + 1);
        let outcome = catch_unwind(AssertUnwindSafe(|| check::check(&input, cut)));
        let Ok(outcome) = outcome else {
            panic!("execution {execution} of seed {seed:#x}: {input:02x?}");
        };
        if seeds.len() < SEEDS_MAX && seen.insert(outcome) {
            seeds.push(input.clone());
        }
    }
    let after_kib = resident_kib();
    eprintln!(
        "codec: {executions} executions, {} outcomes from {of_corpus} seeds, resident {before_kib} KiB then {after_kib} KiB",
        seen.len(),
    );
    let grown = held_beside(&seeds) - held;
    assert!(
        grown <= GROWTH_BYTES_MAX,
        "the run holds {grown} bytes more"
    );
}

#[test]
fn inputs_that_coverage_has_found_keep_the_promises_of_the_codec() {
    replay::replay("mqtt", |input| {
        if let Some((cut, packet)) = input.split_first() {
            check::check(packet, usize::from(*cut));
        }
    });
}

#[test]
fn the_corpus_reaches_every_kind_of_packet_and_most_refusals() {
    let seeds = corpus();
    let kinds: HashSet<u8> = seeds.iter().map(|seed| seed[0] >> 4).collect();
    assert_eq!(kinds.len(), 16);
    let outcomes: HashSet<u64> = seeds.iter().map(|seed| check::check(seed, 0)).collect();
    assert!(
        outcomes.len() > seeds.len() / 2,
        "{} outcomes of {} seeds",
        outcomes.len(),
        seeds.len()
    );
}

/// The negative control: the checks can fail.
#[test]
fn an_encoder_that_drops_a_byte_would_be_noticed() {
    let publish = corpus().into_iter().find(|seed| seed[0] == 0x32).unwrap();
    let result = catch_unwind(AssertUnwindSafe(|| {
        check::check_with(&publish, 0, |out| {
            out.pop();
        })
    }));
    assert!(result.is_err());
}
