//! Random runs of appends, reads, restarts and removals against a vector.

mod support;

use headwater_log::{Log, LogConfig, Offset};
use proptest::prelude::*;
use support::sim::SimFiles;
use support::*;

#[derive(Debug, Clone)]
enum Step {
    Append {
        payloads: Vec<Vec<u8>>,
        inline: bool,
    },
    Read {
        at: usize,
        max_bytes: usize,
    },
    Remove {
        below: usize,
    },
    Maintain,
    Stop,
    Kill,
    PowerCut,
}

fn step() -> impl Strategy<Value = Step> {
    let payload = prop_oneof![
        4 => proptest::collection::vec(any::<u8>(), 0..60),
        1 => (1000..9000_usize, any::<u8>()).prop_map(|(length, byte)| vec![byte; length]),
    ];
    prop_oneof![
        8 => (proptest::collection::vec(payload, 1..6), any::<bool>())
            .prop_map(|(payloads, inline)| Step::Append { payloads, inline }),
        4 => (0..200_usize, 1..20_000_usize).prop_map(|(at, max_bytes)| Step::Read { at, max_bytes }),
        1 => (0..200_usize).prop_map(|below| Step::Remove { below }),
        1 => Just(Step::Maintain),
        1 => Just(Step::Stop),
        1 => Just(Step::Kill),
        1 => Just(Step::PowerCut),
    ]
}

fn sim_open(files: &SimFiles, tail_bytes: usize) -> Log {
    let config = LogConfig {
        segment_bytes: 16 << 10,
        tail_bytes,
        ..config(std::path::Path::new("/data"))
    };
    open_with(config, files.seams())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn a_log_is_a_vector_of_records(steps in proptest::collection::vec(step(), 1..60), seed in any::<u64>(), tail in prop_oneof![Just(0_usize), Just(4000), Just(1 << 20)]) {
        let files = SimFiles::new(seed);
        let mut log = sim_open(&files, tail);
        let mut model: Vec<Vec<u8>> = Vec::new();
        for step in steps {
            match step {
                Step::Append { payloads, inline } => {
                    let records = records(payloads.len() as u32, &payloads);
                    let partition = telemetry(&log);
                    let range = if inline { partition.append_inline(records) } else { partition.append(records) };
                    let range = range.expect("taken");
                    prop_assert_eq!(range.start.0, model.len() as u64);
                    await_durable(partition, range.end);
                    model.extend(payloads);
                }
                Step::Read { at, max_bytes } => check_read(&log, &model, at, max_bytes)?,
                Step::Remove { below } => {
                    telemetry(&log).advance_log_start(Offset(below as u64));
                    prop_assert!(telemetry(&log).log_start() <= Offset(model.len() as u64));
                }
                Step::Maintain => log.maintain(),
                Step::Stop => {
                    log.shutdown();
                    drop(log);
                    log = sim_open(&files, tail);
                }
                Step::Kill | Step::PowerCut => {
                    if matches!(step, Step::Kill) { files.kill() } else { files.power_cut() }
                    drop(log);
                    log = sim_open(&files, tail);
                }
            }
            prop_assert_eq!(telemetry(&log).high_watermark(), Offset(model.len() as u64));
        }
        let start = telemetry(&log).log_start().0 as usize;
        let found = read_all(telemetry(&log));
        prop_assert_eq!(found.len(), model.len() - start);
        for (offset, payload) in found {
            prop_assert_eq!(&payload, &model[offset as usize]);
        }
        prop_assert_eq!(telemetry(&log).gaps(), vec![]);
    }
}

fn check_read(
    log: &Log,
    model: &[Vec<u8>],
    at: usize,
    max_bytes: usize,
) -> Result<(), TestCaseError> {
    let partition = telemetry(log);
    let from = Offset(at as u64);
    match partition.read(from, max_bytes) {
        Err(_) => prop_assert!(from < partition.log_start() || at > model.len()),
        Ok(batches) if batches.is_empty() => prop_assert_eq!(at, model.len()),
        Ok(batches) => {
            let bytes: usize = batches.iter().map(headwater_log::Batch::bytes_len).sum();
            prop_assert!(batches.len() == 1 || bytes <= max_bytes);
            prop_assert!(batches[0].base_offset() <= from && from < batches[0].next_offset());
            prop_assert!(
                batches
                    .windows(2)
                    .all(|pair| pair[0].next_offset() == pair[1].base_offset())
            );
            for (offset, payload) in batches.iter().flat_map(payloads) {
                prop_assert_eq!(&payload, &model[offset as usize]);
            }
        }
    }
    Ok(())
}
