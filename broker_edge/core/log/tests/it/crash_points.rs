//! The power fails before every single call of a run that uses all functions of the log, and again before every call of
//! the following start. The disk states that `docs/format.md` §10 allows are sampled by seeds.

use crate::support::machine::{Crash, Machine, NAMES, Settings};
use crate::support::reference::Reference;
use crate::support::script::{SCRIPT, spec};
use crate::support::sim::{Moment, SimFiles};
use headwater_log::{Log, SyncMode};

/// A moment of the run, and what the log must contain if the power fails there.
struct Point {
    moment: Moment,
    references: Vec<Reference>,
}

fn points(settings: &Settings) -> Vec<Point> {
    let files = SimFiles::new(1);
    files.record();
    let mut machine = Machine::created(files.clone(), settings.clone());
    let mut before = vec![NAMES.map(Reference::of).to_vec()];
    let mut after = vec![machine.references.clone()];
    for act in SCRIPT {
        files.note(before.len());
        before.push(machine.references.clone());
        act(&mut machine);
        after.push(machine.references.clone());
    }
    assert!(
        machine.partition(1).log_start().0 > 0,
        "segments were removed"
    );
    let moments = files.recorded().into_iter();
    moments
        .map(|moment| {
            let pairs = before[moment.note].iter().zip(&after[moment.note]);
            let references = pairs
                .map(|(before, after)| Reference::during(before, after))
                .collect();
            Point { moment, references }
        })
        .collect()
}

#[derive(Debug, Default)]
struct Tried {
    crashes: usize,
    crashes_in_starts: usize,
}

/// Crashes before every `stride`-th call, and in the following starts before every `stride_within`-th.
fn crash_everywhere(settings: &Settings, stride: usize, stride_within: usize) -> Tried {
    let mut tried = Tried::default();
    let points = points(settings);
    assert!(points.len() > 200, "only {} calls", points.len());
    for (at, point) in points
        .iter()
        .enumerate()
        .skip(at_random(stride))
        .step_by(stride)
    {
        for (seed, crash) in [
            (at, Crash::Power),
            (at + 1000, Crash::Power),
            (at, Crash::Kill),
        ] {
            let seed = seed as u64;
            eprintln!(
                "before {} ({at}), {crash:?}, seed {seed}",
                point.moment.call
            );
            let files = point.moment.computer(seed);
            end(&files, crash);
            files.record();
            let references = point.references.clone();
            let mut machine = Machine::new(files.clone(), settings.clone(), references.clone());
            machine.start(&[]);
            let within = files.recorded();
            go_on(&mut machine);
            tried.crashes += 1;
            // The checks after a start only read, so they would only repeat the start's last moment.
            let within: Vec<_> = within
                .iter()
                .take_while(|moment| moment.note == 0)
                .filter(|moment| !moment.call.starts_with("read_at"))
                .collect();
            for (number, moment) in within
                .iter()
                .enumerate()
                .skip(at % stride_within)
                .step_by(stride_within)
            {
                for crash in [Crash::Power, Crash::Kill] {
                    let seed = seed + number as u64;
                    eprintln!(
                        "  then before {} ({number}), {crash:?}, seed {seed}",
                        moment.call
                    );
                    let files = moment.computer(seed);
                    end(&files, crash);
                    let mut machine = Machine::new(files, settings.clone(), references.clone());
                    machine.start(&[(number as u64 % 40 + 1, Crash::Power)]);
                    go_on(&mut machine);
                    tried.crashes_in_starts += 1;
                }
            }
        }
    }
    tried
}

fn end(files: &SimFiles, crash: Crash) {
    match crash {
        Crash::Power => files.power_cut(),
        Crash::Kill => files.kill(),
    }
}

/// The log is in use again, and what it now reports must stay true.
fn go_on(machine: &mut Machine) {
    machine.append(1, &[spec(1, 300), spec(2, 800)], true);
    machine.crash(Crash::Power, &[]);
}

/// The first call of a stride, so that runs on other days try other calls; `HEADWATER_CRASH_STRIDE=1` tries all.
fn at_random(stride: usize) -> usize {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs() as usize / 60 % stride)
}

fn strides(by_default: (usize, usize)) -> (usize, usize) {
    let stride = std::env::var("HEADWATER_CRASH_STRIDE").ok();
    match stride.and_then(|text| text.parse().ok()) {
        Some(stride) => (stride, stride),
        None => by_default,
    }
}

#[test]
fn a_crash_before_any_call_loses_nothing_acknowledged() {
    let (stride, within) = strides((3, 29));
    eprintln!(
        "{:?}",
        crash_everywhere(&Settings::always(), stride, within)
    );
}

#[test]
fn a_crash_before_any_call_loses_nothing_synced_at_an_interval() {
    let (stride, within) = strides((5, 29));
    eprintln!(
        "{:?}",
        crash_everywhere(&Settings::interval(), stride, within)
    );
}

/// A partition folder that is missing when `log.meta` names an epoch is refused as lost, so the folder must be durable
/// before that.
#[test]
fn a_crash_before_any_call_of_the_first_start_leaves_what_the_next_finishes() {
    let settings = Settings::always();
    let files = SimFiles::new(1);
    files.record();
    drop(Log::open(settings.config(), files.seams()).expect("the log opens"));
    let moments = files.recorded();
    assert!(moments.len() > 20, "only {} calls", moments.len());
    for moment in &moments {
        for seed in 0..40 {
            eprintln!("before {}, seed {seed}", moment.call);
            let files = moment.computer(seed);
            end(&files, Crash::Power);
            let references = NAMES.map(Reference::of).into();
            let mut machine = Machine::new(files, settings.clone(), references);
            machine.start(&[]);
            machine.append(1, &[spec(1, 300)], true);
        }
    }
}

/// Negative control: the same crashes find the records of a log that does not sync.
#[test]
#[should_panic(expected = "lost offsets")]
fn a_crash_loses_records_that_were_not_synced() {
    let settings = Settings {
        sync: SyncMode::Never,
        ..Settings::always()
    };
    crash_everywhere(&settings, 5, 1000);
}

/// Appends, and appends again after `change` of the disk; then the power fails and everything is compared.
fn cut_after(seed: u64, change: impl FnOnce(&SimFiles)) {
    let files = SimFiles::new(seed);
    let mut machine = Machine::created(files.clone(), Settings::always());
    machine.append(1, &[spec(0, 100)], true);
    change(&files);
    machine.append(1, &[spec(1, 700)], true);
    machine.crash(Crash::Power, &[]);
}

/// Negative control: the log has to trust the disk, and the comparison notices one that lies.
#[test]
#[should_panic(expected = "lost offsets")]
fn a_disk_that_reports_syncs_it_has_not_done_loses_acknowledged_records() {
    for seed in 0..40 {
        cut_after(seed, SimFiles::lie_about_syncs);
    }
}

/// The other half of the control: nothing but the lie loses them.
#[test]
fn a_disk_that_does_its_syncs_keeps_the_same_records() {
    for seed in 0..40 {
        cut_after(seed, |_| {});
    }
}
