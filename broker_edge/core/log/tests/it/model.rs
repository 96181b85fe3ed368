//! Random runs of the log on a simulated computer, compared with a reference that is a vector: `support/reference.rs`
//! defines the promises, `support/sim` what a disk may do. proptest prints the seed of a failure and shortens the case.

use crate::support::machine::{Crash, Machine, Settings, Spec};
use crate::support::reference::Reference;
use crate::support::sim::SimFiles;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Append(usize, Vec<Spec>, bool),
    Queue(usize, Vec<Spec>),
    Unique(usize, u8, usize),
    Remove(usize, u64),
    Maintain,
    Check,
    /// Seconds on both clocks.
    Pass(u64),
    /// The wall clock jumps.
    Jump(i64),
    FailSyncs,
    /// The power goes before a call soon.
    CutSoon(u64),
    Crash(Crash, Vec<(u64, Crash)>),
    Stop(Option<Crash>, Vec<(u64, Crash)>),
}

fn spec() -> impl Strategy<Value = Spec> {
    let bytes = prop_oneof![5 => 0..300_usize, 2 => 300..2000_usize, 1 => 4000..9000_usize];
    let key = proptest::option::weighted(0.1, 0..6_u8);
    (0..4_u8, bytes, proptest::bool::weighted(0.2), key).prop_map(|(topic, bytes, retain, key)| {
        Spec {
            topic,
            bytes,
            retain,
            key,
        }
    })
}

fn crash() -> impl Strategy<Value = Crash> {
    prop_oneof![2 => Just(Crash::Power), 1 => Just(Crash::Kill)]
}

/// Interrupted starts, one after the other.
fn crashes() -> impl Strategy<Value = Vec<(u64, Crash)>> {
    prop_oneof![
        1 => Just(Vec::new()),
        1 => proptest::collection::vec((1..120_u64, crash()), 1..4),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let partition = || prop_oneof![1 => Just(0_usize), 5 => Just(1_usize), 2 => Just(2_usize)];
    let specs = || proptest::collection::vec(spec(), 1..5);
    prop_oneof![
        16 => (partition(), specs(), any::<bool>()).prop_map(|(at, specs, inline)| Step::Append(at, specs, inline)),
        3 => (partition(), specs()).prop_map(|(at, specs)| Step::Queue(at, specs)),
        3 => (partition(), 0..6_u8, 0..500_usize).prop_map(|(at, key, bytes)| Step::Unique(at, key, bytes)),
        2 => (partition(), 0..101_u64).prop_map(|(at, percent)| Step::Remove(at, percent)),
        2 => Just(Step::Maintain),
        1 => Just(Step::Check),
        2 => prop_oneof![Just(6_u64), Just(8000)].prop_map(Step::Pass),
        1 => (-5_000_000..5_000_000_i64).prop_map(Step::Jump),
        1 => Just(Step::FailSyncs),
        3 => (1..60_u64).prop_map(Step::CutSoon),
        3 => (crash(), crashes()).prop_map(|(crash, crashes)| Step::Crash(crash, crashes)),
        1 => (proptest::option::of(crash()), crashes()).prop_map(|(crash, crashes)| Step::Stop(crash, crashes)),
    ]
}

fn settings() -> impl Strategy<Value = Settings> {
    let sync = prop_oneof![Just(Settings::always()), Just(Settings::interval())];
    let tail_bytes = prop_oneof![Just(0_usize), Just(4000), Just(1 << 20)];
    let retention_bytes = prop_oneof![Just(None), Just(Some(40_u64 << 10))];
    (sync, tail_bytes, retention_bytes).prop_map(|(settings, tail_bytes, retention_bytes)| {
        Settings {
            tail_bytes,
            retention_bytes,
            ..settings
        }
    })
}

fn run(steps: Vec<Step>, settings: Settings, seed: u64) -> Machine {
    let mut machine = Machine::created(SimFiles::new(seed), settings);
    for step in steps {
        if machine.files.is_off() && !matches!(step, Step::Crash(..) | Step::Stop(..)) {
            machine.crash(Crash::Power, &[]);
        }
        match step {
            Step::Append(at, specs, inline) => machine.append(at, &specs, inline),
            Step::Queue(at, specs) => {
                machine.queue(at, &specs, false);
            }
            Step::Unique(at, key, bytes) => machine.append_unique(at, key, bytes),
            Step::Remove(at, percent) => machine.remove(at, percent),
            Step::Maintain => machine.maintain(),
            Step::Check => machine.check(),
            Step::Pass(seconds) => machine.pass(std::time::Duration::from_secs(seconds)),
            Step::Jump(by_us) => {
                // Waiting records have their time by now, but records of one batch share its base time.
                (0..3).for_each(|at| machine.settle(at));
                machine.clock.jump(by_us);
            }
            Step::FailSyncs => machine.files.fail_syncs(true),
            Step::CutSoon(calls) => machine.files.cut_before(calls),
            Step::Crash(crash, crashes) => machine.crash(crash, &crashes),
            Step::Stop(crash, crashes) => machine.stop(crash, &crashes),
        }
    }
    if machine.files.is_off() {
        machine.crash(Crash::Power, &[]);
    }
    machine.check();
    // Records readable now must stay, even if the next start finds less in the page cache.
    machine.crash(Crash::Kill, &[]);
    machine.crash(Crash::Power, &[(9, Crash::Power)]);
    machine
}

/// Bits of segments, indexes and marks flip while the log is closed; then it is used and restarted again.
fn rot(machine: &mut Machine, flips: &[(usize, usize, u8)]) {
    machine.references.iter_mut().for_each(Reference::rot);
    let flips = flips.to_vec();
    machine.crash_with(Crash::Power, &[], |files| {
        for (file, at, bit) in flips {
            let names = files.names().into_iter();
            let names: Vec<_> = names
                .filter(|path| {
                    let name = path.to_string_lossy();
                    name.ends_with(".seg") || name.ends_with(".idx") || name.ends_with("mark")
                })
                .collect();
            files.with_bytes(&names[file % names.len()], |bytes| {
                if !bytes.is_empty() {
                    let at = at % bytes.len();
                    bytes[at] ^= 1 << bit;
                }
            });
        }
    });
}

/// Cases of each test; more with `HEADWATER_MODEL_CASES`.
fn cases(by_default: u32) -> ProptestConfig {
    let cases = std::env::var("HEADWATER_MODEL_CASES")
        .ok()
        .and_then(|text| text.parse().ok());
    ProptestConfig {
        failure_persistence: None,
        max_shrink_iters: 2000,
        ..ProptestConfig::with_cases(cases.unwrap_or(by_default))
    }
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn whatever_happens_the_log_is_the_vector_of_what_was_acknowledged(
        steps in proptest::collection::vec(step(), 1..80), settings in settings(), seed in any::<u64>(),
    ) {
        run(steps, settings, seed);
    }
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn what_rots_is_reported_and_nothing_else_changes(
        steps in proptest::collection::vec(step(), 5..50), settings in settings(), seed in any::<u64>(),
        flips in proptest::collection::vec((0..100_usize, 0..40_000_usize, 0..8_u8), 1..6),
    ) {
        let mut machine = run(steps, settings, seed);
        rot(&mut machine, &flips);
        (0..3).for_each(|at| machine.append(at, &[Spec { topic: 1, bytes: 500, retain: true, key: None }], false));
        machine.check();
        machine.crash(Crash::Power, &[(30, Crash::Power)]);
    }
}
