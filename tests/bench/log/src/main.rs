//! Library benchmarks of the commit log beside two others and a plain program, on the same machine in the same run.
//!
//! `make bench-log` runs all of it. Everything is a ratio of medians over interleaved rounds; nothing fails by a figure.
//! What each checks and keeps. Headwater: a checksum over every byte, verified again whenever it is read from a file;
//! offset, epoch, time, topic and client id of each record; the newest 32 MiB in memory for all readers; an index by
//! offset, time and topic. `segments` and `rumqttlog`: no checksum; the place of each record in an index; 1 MiB of what is
//! not written yet, which a read makes go to the file first; they never sync, and read by one `pread` for the place and
//! one for the bytes. The plain program keeps and checks nothing.

mod cases;
mod measure;
mod subject;

use std::path::PathBuf;

use cases::{Case, Scale};
use measure::{Cost, Counting, median};
use subject::Payloads;

#[global_allocator]
static ALLOCATOR: Counting = Counting(mimalloc::MiMalloc);

const USAGE: &str = "log-bench [--short] [--dir DIR] [--only WORD] [--row NAME]";

fn main() {
    let mut scale = Scale {
        rounds: 7,
        records: 256 << 10,
        reads: 200_000,
        syncs: 1000,
        row: "",
    };
    let mut root = std::env::temp_dir();
    let mut only = String::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), argument == "--short") {
            (_, true) => {
                scale = Scale {
                    rounds: 3,
                    records: 64 << 10,
                    reads: 20_000,
                    syncs: 100,
                    ..scale
                }
            }
            ("--dir", _) => root = PathBuf::from(arguments.next().expect(USAGE)),
            ("--row", _) => scale.row = arguments.next().expect(USAGE).leak(),
            ("--only", _) => only = arguments.next().expect(USAGE),
            _ => {
                eprintln!("{USAGE}");
                std::process::exit(2);
            }
        }
    }
    let payloads = Payloads::new();
    let (root, payloads) = (root.as_path(), &payloads);
    let all = scale.records;
    let newest = 24 << 10;
    let cases: Vec<(&str, Box<dyn Fn() -> Case>)> = vec![
        ("append", Box::new(|| cases::appends(root, payloads, scale))),
        (
            "single",
            Box::new(|| cases::single_reads(root, payloads, scale, 1, newest)),
        ),
        (
            "single",
            Box::new(|| cases::single_reads(root, payloads, scale, 64, newest)),
        ),
        (
            "single",
            Box::new(|| cases::single_reads(root, payloads, scale, 1, all)),
        ),
        (
            "single",
            Box::new(|| cases::single_reads(root, payloads, scale, 64, all)),
        ),
        (
            "batch",
            Box::new(|| cases::batch_reads(root, payloads, scale, 256 << 10)),
        ),
        (
            "batch",
            Box::new(|| cases::batch_reads(root, payloads, scale, 1 << 20)),
        ),
        (
            "batch",
            Box::new(|| cases::batch_reads(root, payloads, scale, 4 << 20)),
        ),
        (
            "sync",
            Box::new(|| cases::synced(root, payloads, scale, 1, 1)),
        ),
        (
            "sync",
            Box::new(|| cases::synced(root, payloads, scale, 16, 8)),
        ),
        (
            "sync",
            Box::new(|| cases::synced(root, payloads, scale, 256, 4)),
        ),
    ];
    for (word, case) in cases {
        if word.contains(&only) {
            print(&case());
        }
    }
}

fn print(case: &Case) {
    println!("\n{} ({})", case.title, case.goal);
    println!(
        "  {:<34} {:>12} {:>8} {:>8} {:>10} {:>8} {:>8}",
        "", "records/s", "GB/s", "ratio", "CPU us/rec", "I/O/rec", "alloc/rec"
    );
    let of = |costs: &[Cost], f: fn(&Cost) -> f64| median(costs.iter().map(f).collect());
    let best_peer = case
        .rows
        .iter()
        .filter(|row| row.is_peer)
        .map(|row| of(&row.costs, Cost::per_second))
        .fold(f64::NAN, f64::max);
    for row in &case.rows {
        let rate = of(&row.costs, Cost::per_second);
        println!(
            "  {:<34} {:>12.0} {:>8.2} {:>8.2} {:>10.3} {:>8.3} {:>8.2}",
            row.name,
            rate,
            of(&row.costs, Cost::bytes_per_second) / 1e9,
            rate / best_peer,
            of(&row.costs, Cost::cpu_us_per_unit),
            of(&row.costs, |cost| cost.calls as f64 / cost.units as f64),
            of(&row.costs, |cost| cost.allocations as f64
                / cost.units as f64),
        );
    }
}
