//! `headwaterd-faults`: the broker into which `headwater torture` injects faults. Never part of a release.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Err(wrong) = headwater_log::faults::check_environment() {
        eprintln!("headwaterd-faults: {wrong}");
        std::process::exit(headwater_broker::cli::EXIT_USAGE);
    }
    if arguments == ["--failpoints"] {
        // The names that HEADWATER_FAULTS accepts, one per line.
        use std::io::Write;
        let names = headwater_log::faults::POINTS.join("\n");
        let written = writeln!(std::io::stdout(), "{names}");
        std::process::exit(i32::from(written.is_err()));
    }
    std::process::exit(headwater_broker::cli::run(&arguments));
}
